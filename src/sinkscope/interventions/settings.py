"""How a study file names an intervention: its settings, each with a check, a default and its words in a label.

An intervention becomes usable in study files by `@register(name, setting, …)` above its class, and by nothing else.
Installed packages may add theirs. Settings that several share stand at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from sinkscope.errors import InterventionError
from sinkscope.fields import TRUTH, Allowed, allowed_fields, among, frozen, thawed, whole
from sinkscope.interventions.base import WINDOW, Intervention, Selector, Steps
from sinkscope.interventions.memory import Rank, Rows
from sinkscope.registry import Registry
from sinkscope.sinks.rules import rule_from_dict
from sinkscope.sinks.tokens import KINDS, kinds_named

if TYPE_CHECKING:
    from sinkscope.interventions.conditions import Condition


REQUIRED: Any = ...  # a setting without a default must be given


class SettingError(InterventionError):
    """One setting of a condition is wrong; `field` names it (empty: their combination), the text is what it must be."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class Setting:
    """One setting of an intervention, as a study file has it."""

    name: str
    default: Any
    check: Callable[[Any], bool] | None = None  # None: what the type of the intervention's field says
    expected: str = ""  # what `check` wants, as it follows "must be …"; a check of `sinkscope.fields` says it itself
    label: Callable[[Any], str] = str  # the words that the label of a condition has for a value
    place: int = 50  # labels put lower numbers first
    quiet: bool = False  # the default is left out of labels and of results
    sweeps: bool = True  # a list in a study file is a sweep; False: a list is one value
    read: Callable[[Any], Any] = lambda value: (
        value
    )  # value of a study file → with every default filled in; may raise RuleError
    freeze: Callable[[Any], Any] = frozen  # plain value → one that can be compared and hashed
    thaw: Callable[[Any], Any] = thawed  # … and back
    build: Callable[[Any], Any] = lambda value: value  # frozen value → what the intervention's constructor takes

    def __post_init__(self) -> None:
        if self.check is not None and not self.expected:
            object.__setattr__(self, "expected", getattr(self.check, "expected", "another value"))

    def allows(self, value: Any) -> bool:
        """Whether a study file may say this; null says the same as leaving it out, where that is the default."""
        return (value is None and self.default is None) or self.check is None or self.check(value)


# What a study makes of an intervention, which says it when it registers.
# Settings of a condition and whether the model is causal → a name for tables; None where a few words do not say all of it.
ShortName = Callable[[Mapping[str, Any], bool], str | None]
# A condition → the conditions that control for it, best first: random keys matched by count or by mass. Having any makes it a
# test of sinks, which is charted.
Controls = Callable[["Condition"], Mapping[Literal["count", "mass"], Sequence["Condition"]]]
# What it is meant to do to sinks, beside masking: verdicts say whether it did, and at what price.
Aim = Literal["weaken", "hold"]


@dataclass(frozen=True)
class Registered:
    """An intervention as study files know it."""

    name: str
    settings: tuple[Setting, ...]
    make: Callable[[dict[str, Any], int], Intervention | None]  # built values, seed → the intervention
    masks: bool = False  # whether the keys that it takes must receive exactly nothing
    contradiction: Callable[[dict[str, Any]], tuple[str, str] | None] = lambda values: None
    label: Callable[[dict[str, Any]], str] | None = None  # in place of the settings' own words
    decode: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # built values → words over the decode settings
    short: ShortName | None = None
    controls: Controls | None = None
    aim: Aim | None = None

    def __contains__(self, name: str) -> bool:
        return any(one.name == name for one in self.settings)

    def setting(self, name: str) -> Setting:
        return next(one for one in self.settings if one.name == name)


INTERVENTIONS: Registry[Registered] = Registry("condition", InterventionError)
InterventionClass = TypeVar("InterventionClass", bound=type[Intervention])


def add(entry: Registered) -> None:
    """Make an intervention known to study files."""
    for field in ("name", "for"):
        if field in entry:
            raise InterventionError(f"A setting of {entry.name} must not be called {field!r}: choose another name.")
    INTERVENTIONS.add(entry.name, entry)


def register(
    name: str, *settings: Setting, masks: bool | None = None, short: ShortName | None = None,
    controls: Controls | None = None, aim: Aim | None = None,
) -> Callable[[InterventionClass], InterventionClass]:  # fmt: skip
    """Class decorator: `name` is what study files call it, `settings` what it takes there.

    Settings are passed to the class by their names; a field `seed` gets the study's seed. A class may have class methods:
    `from_settings(values, seed)` to be made in another way, `contradiction(values)` → (setting, sentence) or None, and
    `label(values)` → the words behind its name in labels.
    masks: the keys that it picks must receive exactly nothing (True for a Selector); the study checks it. short, controls,
    aim: what tables, verdicts and charts make of it (see `ShortName`, `Controls`, `Aim`); without them it has its whole
    label and no control.
    """

    def known(cls: InterventionClass) -> InterventionClass:
        def make(values: dict[str, Any], seed: int) -> Intervention:
            words = {name: value for name, value in values.items() if name != STEPS.name}
            if hasattr(cls, "from_settings"):
                made: Intervention = cls.from_settings(words, seed)
            else:
                seeded = any(field.name == "seed" for field in fields(cls))
                made = cls(**words, **({"seed": seed} if seeded else {}))  # type: ignore[arg-type]
            steps = values.get(STEPS.name)
            return made if steps is None else replace(made, steps=steps)

        make.__module__, make.__qualname__ = cls.__module__, cls.__qualname__  # by which a reload is known
        empties = issubclass(cls, Selector) if masks is None else masks
        more = {name: getattr(cls, name) for name in ("contradiction", "label") if hasattr(cls, name)}
        allowed = allowed_fields(cls)
        taken = tuple(replace(one, check=one.check or allowed.get(one.name)) for one in (*settings, STEPS))
        add(Registered(name, taken, make, empties, **more, short=short, controls=controls, aim=aim))
        return cls

    return known


# ---- the settings that several interventions share ----

KIND_NAMES = Allowed(
    f"structural, content, or a list of {', '.join(KINDS)}",
    lambda value: isinstance(value, str | list | tuple) and bool(kinds_named(value)),
)


def _steps(steps: Steps) -> str:
    shown = ["" if end is None else f"{end:g}" if isinstance(end, int) else f"{100 * end:g}%" for end in steps]
    return f"steps {shown[0]}–{shown[1]}"


def _rule(name: str, place: int) -> Setting:
    return Setting(
        name, None, lambda value: isinstance(value, dict), "a sink rule, such as {rule: threshold, epsilon: 3, unit: sum}",
        label=lambda items: f"{name} " + ",".join(str(value) for _, value in items), place=place, quiet=True,
        read=lambda value: rule_from_dict(value).to_dict(), freeze=lambda value: tuple(dict(value).items()), thaw=dict,
        build=lambda items: rule_from_dict(dict(items)),
    )  # fmt: skip


K = Setting("k", REQUIRED, whole(1), label=lambda k: f"K={k}", place=10)
RANK = Setting("rank", "clean", among(get_args(Rank)), place=20)
OF = Setting("of", "sinks", among(("sinks", "random")), place=30)
MATCH = Setting("match", "count", among(("count", "mass")), place=40)
ROWS = Setting(
    "rows", "all", among(get_args(Rows)), place=50, label=lambda rows: f"by {rows} row{'s' * (rows == 'all')}"
)
SCORE = Setting("score", "sum", among(("sum", "per_row")), place=51, quiet=True, label=lambda _: "per row that sees it")
PER = Setting(
    "per", "head", among(("head", "layer", "model")), "head, layer or model", place=52, quiet=True,
    label=lambda per: f"per {per}",
)  # fmt: skip
KINDS_OF = Setting(
    "kinds", None, KIND_NAMES, place=53, quiet=True, sweeps=False,
    label=lambda kinds: kinds if isinstance(kinds, str) else "+".join(kinds),
)  # fmt: skip
VALUE_NORM = Setting(
    "value_norm", None, among(("low", "high")), place=54, quiet=True, label=lambda norm: f"{norm} value norm"
)
ABOVE, BELOW = _rule("above", 90), _rule("below", 91)
KEEP_SELF = Setting("keep_self", False, TRUTH, place=100, quiet=True, label=lambda _: "keep self")
PERSIST = Setting("persist", False, TRUTH, place=60, quiet=True, label=lambda _: "persistent")
ALIGNED = Setting("aligned", False, TRUTH, place=61, quiet=True, label=lambda _: "aligned")
AVOID = Setting("avoid", None, whole(0), place=62, quiet=True, label=lambda count: f"avoiding {count}")
AMONG = Setting("among", "all", among(("all", "prompt")), place=55, quiet=True, label=lambda among: f"in the {among}")
STEPS = Setting("steps", None, WINDOW, place=110, quiet=True, sweeps=False, label=_steps)
WHICH = (ABOVE, BELOW, KINDS_OF, VALUE_NORM, PER, SCORE)  # which keys compete, and how they are ranked
DRAWN = (PERSIST, ALIGNED, AVOID)  # how random keys are


# ---- short names and controls of interventions that rank keys ----


def ranked_keys(given: Mapping[str, Any], causal: bool = False) -> str | None:
    """top key, structural key, strong sink > 0.3; with rank and rows where they are given; None where that is not all."""
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
