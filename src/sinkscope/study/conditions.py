"""Conditions: what is changed while a model answers, as plain data, as a name, and as the intervention itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sinkscope.errors import RuleError
from sinkscope.study.reader import Fields, among, number, whole

if TYPE_CHECKING:
    from sinkscope.interventions import Intervention, Selector

NAMES = (
    "none", "noop", "mask_sinks", "mask_random", "mask_positions", "zero_values", "mean_values", "window", "cut",
)  # fmt: skip
MASKS = ("mask_sinks", "mask_random", "mask_positions", "cut")  # those that must leave masked keys with nothing
TAKES: dict[str, tuple[str, ...]] = {
    "none": (),
    "noop": (),
    "mask_sinks": ("k", "rank", "rows", "above", "keep_self"),
    "mask_random": ("k", "rank", "rows", "match", "keep_self"),
    "mask_positions": ("positions", "since"),
    "zero_values": ("k", "rank", "rows", "of"),
    "mean_values": ("k", "rank", "rows", "of"),
    "window": ("radius",),
    "cut": ("start", "stop"),
}
MODELS = ("all", "causal", "diffusion")


@dataclass(frozen=True)
class Condition:
    """One condition. Fields that its name does not take are None (k: 0)."""

    name: str
    k: int = 0
    rank: str | None = None
    rows: str | None = None
    match: str | None = None  # mask_random: as many keys ("count") or as much attention ("mass")
    of: str | None = None  # zero_values, mean_values: of the "sinks" or of "random" keys
    positions: tuple[int, ...] | None = None
    since: str | None = None  # mask_positions: from the "first" forward on, or the "second" as sinks are
    radius: int | None = None
    start: float | None = None  # cut: shares of the prompt
    stop: float | None = None
    above: tuple[tuple[str, Any], ...] | None = None  # mask_sinks: only keys that this rule marks
    keep_self: bool = False

    @property
    def label(self) -> str:
        """Name and settings in a few words, the same for every K only in its number."""
        words = [self.name.replace("_", " ")]
        words += [f"K={self.k}"] if self.k else []
        words += [word for word in (self.rank, self.of, self.match) if word]
        words += [f"by {self.rows} rows" if self.rows == "all" else "by last row"] if self.rows else []
        words += [",".join(map(str, self.positions))] if self.positions is not None else []
        words += ["since the second forward"] if self.since == "second" else []
        words += [f"radius {self.radius}"] if self.radius is not None else []
        words += [f"{self.start:g}–{self.stop:g}"] if self.start is not None and self.stop is not None else []
        words += ["above " + ",".join(str(value) for _, value in self.above)] if self.above else []
        words += ["keep self"] if self.keep_self else []
        return " ".join(words)

    @property
    def key(self) -> str:
        """A name for files: letters, digits, dots and hyphens."""
        return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in self.label.replace("K=", "k"))

    @property
    def must_take_effect(self) -> bool:
        """Whether masked keys must receive exactly nothing."""
        return self.name in MASKS and not self.keep_self

    def series(self) -> Condition:
        """The condition without its K: tests over K are corrected together."""
        return replace(self, k=0, radius=None)

    def to_dict(self) -> dict[str, Any]:
        """name, k, rank and rows always; the other fields where they say something."""
        always = {"name": self.name, "k": self.k, "rank": self.rank, "rows": self.rows}
        more = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in always}
        said = {name: value for name, value in more.items() if value is not None and value is not False}
        if self.positions is not None:
            said["positions"] = list(self.positions)
        if self.above is not None:
            said["above"] = dict(self.above)
        return {**always, **said}

    def intervention(self, seed: int, causal: bool = False) -> Intervention | None:
        """What to put into the model; None for none. causal: the model writes with a cache, a row a forward."""
        from sinkscope import interventions as make
        from sinkscope.study.late import LatePositions

        late = LatePositions if self.since == "second" else make.MaskPositions
        by_name: dict[str, Callable[[], Intervention | None]] = {
            "none": lambda: None,
            "noop": lambda: make.MaskSinks(k=0),
            "mask_sinks": lambda: self._selector(seed, causal),
            "mask_random": lambda: self._selector(seed, causal, random=True),
            "mask_positions": lambda: late(self.positions or ()),
            "zero_values": lambda: make.ZeroValues(self._selector(seed, causal, random=self.of == "random")),
            "mean_values": lambda: make.MeanValues(self._selector(seed, causal, random=self.of == "random")),
            "window": lambda: make.Window(self.radius),
            "cut": lambda: make.CutContext(float(self.start or 0), float(self.stop or 0)),
        }
        return by_name[self.name]()

    def _selector(self, seed: int, causal: bool, random: bool = False) -> Selector:
        from sinkscope.interventions import MaskRandom, MaskSinks
        from sinkscope.sinks import rule_from_dict
        from sinkscope.study.columns import ColumnSinks

        words: dict[str, Any] = {"k": self.k, "rank": self.rank, "rows": self.rows, "keep_self": self.keep_self}
        if random:
            return MaskRandom(seed=seed, match=self.match or "count", **words)  # type: ignore[arg-type]
        kind = ColumnSinks if causal and self.rows == "all" else MaskSinks
        return kind(above=None if self.above is None else rule_from_dict(dict(self.above)), **words)


def condition_from_dict(data: Mapping[str, Any]) -> Condition:
    """The condition that `to_dict` wrote."""
    known = {field.name for field in fields(Condition)}
    words = {name: value for name, value in data.items() if name in known}
    if words.get("positions") is not None:
        words["positions"] = tuple(words["positions"])
    if words.get("above") is not None:
        words["above"] = tuple(dict(words["above"]).items())
    return Condition(**words)


def read_condition(given: Fields) -> list[tuple[Condition, str]]:
    """An entry of a study file: every list in it is a sweep; with the kind of models that it is for."""
    name = given.need("name", among(NAMES), f"one of {', '.join(NAMES)}")
    models = given.take("for", "all", among(MODELS), f"one of {', '.join(MODELS)}")
    takes = TAKES[name]
    swept: dict[str, list[Any]] = {}
    for field in takes:
        default, check, expected = _FIELDS[field]
        if field in given.left:
            value = given.left.pop(field)
            values = value if isinstance(value, list) and field != "positions" else [value]
            for one in values:
                if not check(one):
                    raise given.error(field, f"must be {expected}, not {one!r}")
            if not values:
                raise given.error(field, f"must be {expected}, not an empty list")
            swept[field] = values
        elif default is ...:
            raise given.error("", f"needs the field {field!r}: {expected}")
        else:
            swept[field] = [default]
    given.done(("name", "for", *takes))
    made = [_made(given, name, dict(zip(swept, values, strict=True))) for values in itertools.product(*swept.values())]
    return [(condition, models) for condition in made]


def _made(given: Fields, name: str, words: dict[str, Any]) -> Condition:
    if words.get("positions") is not None:
        words["positions"] = tuple(words["positions"])
    if words.get("above") is not None:
        from sinkscope.sinks.rules import rule_from_dict

        try:
            words["above"] = tuple(rule_from_dict(words["above"]).to_dict().items())
        except (RuleError, TypeError) as error:
            raise given.error("above", f"is no sink rule: {str(error).rstrip('.')}") from None
    if name == "cut" and words["stop"] < words["start"]:
        raise given.error("stop", f"must be at least start, {words['start']}, not {words['stop']}")
    return Condition(name, **words)


def _positions(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(whole(-(10**9)), value))


# Field of a condition → default (... where it must be given), check, and what is expected.
_FIELDS: dict[str, tuple[Any, Any, str]] = {
    "k": (..., whole(1), "a whole number of at least 1"),
    "rank": ("clean", among(("clean", "as_run")), "clean or as_run"),
    "rows": ("all", among(("all", "last")), "all or last"),
    "match": ("count", among(("count", "mass")), "count or mass"),
    "of": ("sinks", among(("sinks", "random")), "sinks or random"),
    "positions": (..., _positions, "a list of whole numbers"),
    "since": ("first", among(("first", "second")), "first or second"),
    "radius": (..., whole(0), "a whole number of at least 0"),
    "start": (..., number(0, 1), "a share of the prompt from 0 to 1"),
    "stop": (..., number(0, 1), "a share of the prompt from 0 to 1"),
    "above": (
        None,
        lambda value: isinstance(value, dict),
        "a sink rule, such as {rule: threshold, epsilon: 3, unit: sum}",
    ),
    "keep_self": (False, lambda value: isinstance(value, bool), "true or false"),
}
