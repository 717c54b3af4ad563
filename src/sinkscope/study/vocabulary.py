"""What a condition is: the one place that answers "which condition is this row about?".

A condition comes as results.json has it, a mapping with its name and settings. What an intervention says about itself
when it registers (short name, controls, aim) is read from there, so that one from outside the package is treated alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sinkscope.interventions.conditions import Condition, condition_from_dict
from sinkscope.interventions.settings import INTERVENTIONS, ranked_keys
from sinkscope.study.results import LikelihoodChange, Match

Settings = Mapping[str, Any]
Key = tuple[str, Match | None]  # what is masked, and for random keys what they share with it
PLAIN = {"name", "k", "rank", "rows"}

# What one masked key per head is, by what its condition says; rules go by their names.
_TOP = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}
_KEYS: Mapping[str, Settings] = {
    "top key": _TOP,
    "last row's top key": {**_TOP, "rows": "last"},
    "strong sink": {**_TOP, "above": "head_share"},
    "structural key": {**_TOP, "kinds": "structural"},
    "content key": {**_TOP, "kinds": "content"},
    "weak top key": {**_TOP, "below": "head_share"},
    "position 0": {"name": "mask_positions", "positions": [0], "since": "second"},
}
# Random keys are drawn until they have the top key's mass; where one key draws half of the attention there are not enough.
_SCORED_KEYS: Mapping[str, Key] = {
    **{name: (name, None) for name in ("top key", "strong sink", "structural key", "content key", "weak top key")},
    "random, ≤ its mass": ("top key", "mass"),
    "random, as many": ("top key", "count"),
    "position 0": ("position 0", None),
}

# A role decides name, colour and mark of a series, the same on every chart: `sinks` is the experiment, `count` and `mass`
# are its random controls, the others are variants.
ROLE_NAMES = {
    "sinks": "sinks masked",
    "count": "random keys, count-matched",
    "mass": "random keys, mass-matched",
    "as_run": "sinks, ranked on applied attention",
    "other_rows": "sinks, ranked by whole columns",
    "position": "position 0 masked",
}


def masked_key(condition: Settings) -> Key | None:
    """Which key per head this masks; random keys are named by the key that they stand for; None for anything else."""
    named = {name: value.get("rule") if isinstance(value, Mapping) else value for name, value in condition.items()}
    says = {name: value for name, value in named.items() if value not in (None, 0)}
    match: Match | None = None
    if says.get("name") == "mask_random":
        match = says.pop("match", "count")
        says["name"] = "mask_sinks"
    return next(((name, match) for name, wanted in _KEYS.items() if says == wanted), None)


def is_untouched(condition: Settings) -> bool:
    """Nothing changed, or the no-op that must change nothing."""
    return condition["name"] in ("none", "noop")


def is_plain_masking(condition: Settings) -> bool:
    """Masked sinks ranked by all or by the last row, with nothing further said."""
    return condition["name"] == "mask_sinks" and set(condition) <= PLAIN


def as_in_the_paper(condition: Settings, family: str) -> bool:
    """Nothing or sinks masked, ranked as the paper ranks them: an ARM's by its last row."""
    plain = condition["name"] in ("none", "mask_sinks") and set(condition) == PLAIN
    return plain and condition["rows"] in (None, "last" if family == "llama" else "all")


def controls(condition: Condition) -> Mapping[Match, Sequence[Condition]]:
    """The conditions that may control for this one, best first, as its intervention names them."""
    entry = INTERVENTIONS.get(condition.name)
    return {} if entry is None or entry.controls is None else entry.controls(condition)


def aim(condition: Settings) -> Literal["weaken", "hold"] | None:
    """What the intervention is meant to do to sinks, beside masking them."""
    entry = INTERVENTIONS.get(condition["name"])
    return None if entry is None else entry.aim


def side_by_side(rows: Sequence[LikelihoodChange]) -> dict[str, dict[str, LikelihoodChange]]:
    """What one masked key per head costs models that were scored on the same true answers: name → model → row."""
    found: dict[str, dict[str, LikelihoodChange]] = {}
    for name, key in _SCORED_KEYS.items():
        mine = {row.model: row for row in rows if row.of == "answers" and masked_key(row.condition) == key}
        found |= {name: mine} if mine else {}
    return found


# ---- roles on the charts ----


def usual_rows(conditions: Sequence[Settings], causal: bool) -> str:
    """By which rows a model's sinks are ranked in the experiment: an ARM's by its last one, as in the paper, if that ran."""
    masked = {str(one.get("rows") or "all") for one in conditions if one["name"] == "mask_sinks"}
    return "last" if causal and "last" in masked else "all"


def role(condition: Settings, rows: str = "all") -> str | None:
    """The part that a condition plays for a model whose sinks are ranked by `rows`; None for what is not charted.

    A sink test by another intervention, one that names controls, is a series of its own; its label is its role.
    """
    one = condition_from_dict(condition)
    says = {name: value for name, value in one.settings if name != "k"}
    rank, by = says.pop("rank", "clean"), says.pop("rows", "all")
    if masked_key(condition) == ("position 0", None):
        return "position"
    if one.name == "mask_random":
        match = says.pop("match", "count")
        return match if not says and by == rows and rank == "clean" else None
    if one.name != "mask_sinks":
        entry = INTERVENTIONS.get(one.name)
        return one.series().label if entry is not None and entry.controls is not None and one.k else None
    if says or (by != rows and rank != "clean"):
        return None
    return "other_rows" if by != rows else "sinks" if rank == "clean" else "as_run"


# ---- names ----


def without_defaults(label: str) -> str:
    """A label without the words that most conditions have in common."""
    return label.replace(" clean", "").replace(" by all rows", "")


def cuts_the_middle(label: str) -> bool:
    """Whether the label is of a cut that leaves both ends of the prompt."""
    start, _, stop = label.removeprefix("cut ").partition("–")
    return label.startswith("cut ") and 0 < float(start) < float(stop) < 1


def short_names(conditions: Mapping[str, Settings], causal: bool) -> dict[str, str]:
    """Whole label → short name, of conditions that stand in one table; the label itself where a name would stand for two.

    K, rank and rows are said where the table has several.
    """
    words = ("k", "rank", "rows")
    several = {word for word in words if len({one[word] for one in conditions.values() if one.get(word)}) > 1}
    found = {}
    for label, condition in conditions.items():
        name = _short_name(condition, several, causal)
        k = condition["k"] if "k" in several else None
        found[label] = label if name is None else f"{name}, K={k}" if k else name
    names = list(found.values())
    return {label: name if names.count(name) == 1 else label for label, name in found.items()}


def _short_name(condition: Settings, several: set[str], causal: bool) -> str | None:
    entry = INTERVENTIONS.get(condition["name"])
    silent = {"name", *({"rank", "rows"} - several)}
    given = {name: value for name, value in condition.items() if name not in silent and value not in (None, False)}
    if entry is None:
        return None
    if entry.short is not None:
        return entry.short(given, causal)
    keys = ranked_keys({name: value for name, value in given.items() if name != "of"})
    if keys is None:
        return None
    what, *ranked = keys.split(", ")
    return ", ".join([entry.name.replace("_", " "), "random" if given.get("of") == "random" else what, *ranked])
