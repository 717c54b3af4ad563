"""How a study file names an intervention: its settings, each with a check, a default and its words in a label.

An intervention becomes usable in study files by `@register(name, setting, …)` above its class, and by nothing else.
Installed packages may add theirs (`sinkscope.plugins`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sinkscope import plugins
from sinkscope.errors import InterventionError

if TYPE_CHECKING:
    from sinkscope.interventions.base import Intervention
    from sinkscope.interventions.conditions import Condition

REQUIRED: Any = ...  # a setting without a default must be given


class SettingError(InterventionError):
    """One setting of a condition is wrong; `field` names it (empty: their combination), the text is what it must be."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    return str(value)


@dataclass(frozen=True)
class Setting:
    """One setting of an intervention, as a study file has it."""

    name: str
    default: Any
    check: Callable[[Any], bool]
    expected: str = ""  # what `check` wants, as it follows "must be …"; a check of `sinkscope.fields` says it itself
    label: Callable[[Any], str] = _text  # the words that the label of a condition has for a value
    place: int = 50  # labels put lower numbers first
    quiet: bool = False  # the default is left out of labels and of results
    sweeps: bool = True  # a list in a study file is a sweep; False: a list is one value
    read: Callable[[Any], Any] = (
        _same  # value of a study file → the same with every default filled in; may raise RuleError
    )
    freeze: Callable[[Any], Any] = _same  # plain value → one that can be compared and hashed
    thaw: Callable[[Any], Any] = _same  # … and back
    build: Callable[[Any], Any] = _same  # frozen value → what the intervention's constructor takes

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", self.expected or getattr(self.check, "expected", "another value"))


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

    def setting(self, name: str) -> Setting | None:
        return next((one for one in self.settings if one.name == name), None)


_known: dict[str, Registered] = {}
InterventionClass = TypeVar("InterventionClass", bound="type[Intervention]")


def add(entry: Registered) -> None:
    """Make an intervention known to study files; the same name again must come from the same place (a reload)."""
    for field in ("name", "for"):
        if entry.setting(field) is not None:
            raise InterventionError(f"A setting of {entry.name} must not be called {field!r}: choose another name.")
    if entry.name in _known and not _is_reload(_known[entry.name], entry):
        raise InterventionError(f"An intervention named {entry.name!r} is already registered: choose another name.")
    _known[entry.name] = entry


def _is_reload(there: Registered, new: Registered) -> bool:
    old, fresh = (getattr(one.make, "origin", None) for one in (there, new))
    return old is not None and old == fresh


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
        from sinkscope.interventions.base import Selector
        from sinkscope.interventions.steps import STEPS

        def make(values: dict[str, Any], seed: int) -> Intervention:
            words = {name: value for name, value in values.items() if name != STEPS.name}
            if hasattr(cls, "from_settings"):
                made: Intervention = cls.from_settings(words, seed)
            else:
                seeded = any(field.name == "seed" for field in dataclasses.fields(cls))
                made = cls(**words, **({"seed": seed} if seeded else {}))  # type: ignore[arg-type]
            steps = values.get(STEPS.name)
            return made if steps is None else dataclasses.replace(made, steps=steps)

        make.origin = (cls.__module__, cls.__qualname__)  # type: ignore[attr-defined]
        empties = issubclass(cls, Selector) if masks is None else masks
        more = {name: getattr(cls, name) for name in ("contradiction", "label") if hasattr(cls, name)}
        add(Registered(name, (*settings, STEPS), make, empties, **more, short=short, controls=controls, aim=aim))
        return cls

    return known


def registered() -> Mapping[str, Registered]:
    """Every intervention that study files may name, those of installed packages included."""
    import sinkscope.interventions as _own  # noqa: F401 - registers the package's own

    plugins.load("interventions", "conditions")
    return _known
