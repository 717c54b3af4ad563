"""What a benchmark run changes in the model: by options, by `--condition NAME:setting=value,…`, and the grid of Table 1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InterventionError, TaskError
from sinkscope.io import bounded_yaml

if TYPE_CHECKING:
    from sinkscope.interventions.conditions import Condition

# The first key of an autoregressive model is masked in two ways, which do not do the same.
POSITION_0 = {
    "second": "mask position 0 after the prefill",  # as in the paper: the prompt was read with the sink in place
    "first": "mask position 0 from the first row on",  # nearly harmless: no state was built on the sink
}


def grid(causal: bool, ks: Sequence[int] = (1, 5, 10)) -> list[Condition]:
    """Nothing, then for each k the sinks by both rankings and count-matched random keys.

    An autoregressive model is ranked by its last row, as in the paper, and by all rows. The last row also ranks content
    keys, so that position 0 alone stands beside them: after the prefill, and from the first row on.
    """
    from sinkscope.interventions.conditions import Condition

    found = [Condition("none")]
    if causal:
        found += [Condition("mask_positions", positions=(0,), since=since) for since in POSITION_0]
    for k in ks:
        if k < 1:
            raise TaskError(f"Expected numbers of sinks of at least 1 (0 is always run), got {k}.")
        for rows in ("last", "all") if causal else ("all",):
            found += [Condition("mask_sinks", k, rank, rows) for rank in ("clean", "as_run")]
            found.append(Condition("mask_random", k, "clean", rows))
    return found


def label(condition: Condition) -> str:
    """The condition's label; the two ways to mask position 0 have names of their own."""
    only_since = {name for name, _ in condition.settings} <= {"positions", "since"}
    if condition.name == "mask_positions" and condition.positions == (0,) and only_since:
        return POSITION_0[condition.get("since", "first")]
    return condition.label


def parse_condition(text: str) -> Condition:
    """`mask_sinks:k=5,rank=as_run`: the name of an intervention as study files have it, and settings in YAML's flow style.

    Commas inside brackets, braces and quotes belong to the value: `mask_positions:positions=[0,1]`.
    """
    from sinkscope.interventions.conditions import read_entry
    from sinkscope.settings import cache_conditions as _caches  # noqa: F401 - conditions that change how a model decodes

    name, _, rest = text.partition(":")
    # What stands behind the name is YAML's flow style with = in place of the colon.
    flow, count = re.subn(r"(^|,)\s*(\w+)\s*=", r"\1 \2: ", rest)
    settings = bounded_yaml.parse(f"{{{flow}}}", f"--condition {name}", TaskError)[0]
    if not isinstance(settings, dict) or "name" in settings or len(settings) != count:
        raise TaskError(f"Expected a condition as NAME:setting=value,setting=value, got {text!r:.80}.")
    entry = {"name": name.strip(), **settings}
    try:
        found = read_entry(entry)
    except InterventionError as error:
        field = getattr(error, "field", "")
        raise TaskError(f"--condition {text:.80}: {field or 'it'} {str(error).rstrip('.')}.") from None
    if len(found) != 1:
        raise TaskError(f"Expected one condition, got a sweep of {len(found)} in {text!r:.80}; repeat --condition.")
    return found[0]


def decode_words(condition: Condition) -> dict[str, Any]:
    """Settings that a condition puts over the decoder's, such as its cache; none for what changes attention."""
    words = dict(condition.decode)
    if isinstance(words.get("cache"), Mapping):
        from sinkscope.settings.choices import SparseCache

        words["cache"] = SparseCache.from_dict(words["cache"])
    return words


def as_list(intervention: Any) -> list[Any]:
    """None, one intervention or several, as a list."""
    if intervention is None:
        return []
    return list(intervention) if isinstance(intervention, (list, tuple)) else [intervention]


def described(intervention: Any) -> list[dict[str, Any]]:
    """Name and every setting of each intervention."""
    return [one.to_dict() for one in as_list(intervention)]
