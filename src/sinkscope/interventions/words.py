"""The settings that several interventions share, as study files and labels have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from sinkscope.fields import TRUTH, among, whole
from sinkscope.interventions.settings import REQUIRED, Setting
from sinkscope.sinks.rules import rule_from_dict
from sinkscope.sinks.tokens import KINDS, kinds_named

if TYPE_CHECKING:
    from sinkscope.interventions.conditions import Condition


def _kinds(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, str) for one in value) and bool(kinds_named(tuple(value)))
    return value in ("structural", "content")


def _rule(name: str, place: int) -> Setting:
    return Setting(
        name, None, lambda value: isinstance(value, dict), "a sink rule, such as {rule: threshold, epsilon: 3, unit: sum}",
        label=lambda items: f"{name} " + ",".join(str(value) for _, value in items), place=place, quiet=True,
        read=lambda value: rule_from_dict(value).to_dict(), freeze=lambda value: tuple(dict(value).items()), thaw=dict,
        build=lambda items: rule_from_dict(dict(items)),
    )  # fmt: skip


K = Setting("k", REQUIRED, whole(1), label=lambda k: f"K={k}", place=10)
RANK = Setting("rank", "clean", among(("clean", "as_run")), place=20)
OF = Setting("of", "sinks", among(("sinks", "random")), place=30)
MATCH = Setting("match", "count", among(("count", "mass")), place=40)
ROWS = Setting(
    "rows", "all", among(("all", "last")), place=50, label=lambda rows: f"by {rows} row{'s' * (rows == 'all')}"
)
SCORE = Setting("score", "sum", among(("sum", "per_row")), place=51, quiet=True, label=lambda _: "per row that sees it")
PER = Setting(
    "per", "head", among(("head", "layer", "model")), "head, layer or model", place=52, quiet=True,
    label=lambda per: f"per {per}",
)  # fmt: skip
KINDS_OF = Setting(
    "kinds", None, _kinds, f"structural, content, or a list of {', '.join(KINDS)}", place=53, quiet=True, sweeps=False,
    label=lambda kinds: kinds if isinstance(kinds, str) else "+".join(kinds),
    freeze=lambda kinds: kinds if isinstance(kinds, str) else tuple(kinds),
    thaw=lambda kinds: kinds if isinstance(kinds, str) else list(kinds),
)  # fmt: skip
VALUE_NORM = Setting(
    "value_norm", None, among(("low", "high")), place=54, quiet=True, label=lambda norm: f"{norm} value norm"
)
ABOVE, BELOW = _rule("above", 90), _rule("below", 91)
KEEP_SELF = Setting("keep_self", False, TRUTH, place=100, quiet=True, label=lambda _: "keep self")
PERSIST = Setting("persist", False, TRUTH, place=60, quiet=True, label=lambda _: "persistent")
ALIGNED = Setting("aligned", False, TRUTH, place=61, quiet=True, label=lambda _: "aligned")
AVOID = Setting(
    "avoid", None, lambda value: value is None or whole(0)(value), "a whole number of at least 0", place=62, quiet=True,
    label=lambda count: f"avoiding {count}",
)  # fmt: skip
WHICH = (KINDS_OF, VALUE_NORM, PER, SCORE)  # which keys compete, and how they are ranked


# ---- short names and controls of interventions that rank keys ----


def ranked_keys(given: Mapping[str, Any], causal: bool = False) -> str | None:
    """top key, structural key, strong sink > 0.3; with rank and rows where they are given. None where that is not all."""
    which = {name: value for name, value in given.items() if name not in ("k", "rank", "rows")}
    if not given.get("k") or len(which) > 1:
        return None
    name, value = next(iter(which.items()), ("", cast("Any", None)))
    if name == "":
        words = "top key"
    elif name == "kinds":
        words = f"{value if isinstance(value, str) else '+'.join(value)} key"
    elif name in ("above", "below") and value.get("rule") == "head_share":
        words = f"{'strong sink >' if name == 'above' else 'weak top key <'} {value['epsilon']:g}"
    else:
        return None
    ranked = [given["rank"].replace("_", " ")] if "rank" in given else []
    by = ["last row" if given["rows"] == "last" else "columns"] if "rows" in given else []
    return ", ".join([words, *ranked, *by])


def of_random(condition: Condition) -> Mapping[Literal["count", "mass"], list[Condition]]:
    """Controls of an intervention with the setting `of`: the same done to as many random keys."""
    from sinkscope.interventions.conditions import Condition

    if condition.of == "random":
        return {}
    return {"count": [Condition(condition.name, **{**dict(condition.settings), "of": "random"})]}
