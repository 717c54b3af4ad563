"""What an intervention is: a frozen dataclass that says, call by call, what to change in the attention.

The dataclass is also the entry of a study file: its fields are the settings, its `name` is what the file calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

import torch
from pydantic import AfterValidator, PlainValidator, TypeAdapter
from torch import Tensor

from sinkscope.attention.call import Call, Change
from sinkscope.attention.patch import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.memory import Map, Memory
from sinkscope.registry import Registry
from sinkscope.validation import FieldError, FromZero, settings, show_value

Match = Literal["count", "mass"]
Aim = Literal["weaken", "hold"]
End = int | float | None  # None is open
Steps = tuple[End, End]


@dataclass(frozen=True)
class Label:
    """How the label of a condition writes a setting: a format or a function, and its place, lower ones first."""

    text: str | Callable[[Any], str]
    place: int = 50

    def write(self, value: Any) -> str:
        return self.text.format(value) if isinstance(self.text, str) else self.text(value)


# ---- types of fields


def _check_steps(value: Steps) -> Steps:
    first, last = value
    for end in value:
        fits = end is None or (type(end) is int and end >= 0) or (type(end) is float and 0 <= end <= 1)
        if not fits or (type(first) is type(last) and first is not None and not first < last):  # type: ignore[operator]
            raise ValueError(
                "must be two forwards or shares of the generation, [from, to), either of them null for open, "
                f"got {show_value(value)}"
            )
    return value


def _steps_text(steps: Steps) -> str:
    first, last = ("" if end is None else f"{end:g}" if isinstance(end, int) else f"{100 * end:g}%" for end in steps)
    return f"steps {first}–{last}"


def _read_heads(value: Any) -> Any:
    numbers = TypeAdapter(tuple[FromZero, ...])
    pairs = TypeAdapter(tuple[tuple[FromZero, FromZero], ...])
    for kind in (numbers, pairs):
        try:
            found = kind.validate_python(value)
        except ValueError:
            continue
        if found:
            return found
    raise ValueError(f"must be a list of heads, or of [layer, head], got {show_value(value)}")


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("must be a list of whole numbers from 0 on, or left out for all of them")
    return value


def write_list(values: Sequence[Any]) -> str:
    """1,2 or 3.0,4.1 for pairs."""
    return ",".join(".".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in values)


StepsField = Annotated[tuple[Any, Any], AfterValidator(_check_steps), Label(_steps_text, 110)]
Layers = Annotated[
    tuple[FromZero, ...], AfterValidator(_not_empty), Label(lambda some: f"layers {write_list(some)}", 60)
]
# Numbers of heads in every layer, or pairs of layer and head.
Heads = Annotated[
    tuple[int, ...] | tuple[tuple[int, int], ...],
    PlainValidator(_read_heads),
    Label(lambda some: f"heads {write_list(some)}", 61),
]


# ---- what a study file can name


class Entry:
    """A frozen dataclass that study files name: a class with a `name` registers itself.

    always: settings that results and labels give at their defaults too.
    """

    name: ClassVar[str] = ""
    always: ClassVar[tuple[str, ...]] = ()
    unset: ClassVar[tuple[str, ...]] = ()  # fields that no entry gives

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).get("name"):
            INTERVENTIONS.add(cls.name, cls)

    @classmethod
    def from_entry(cls, words: Mapping[str, Any]) -> Self:
        """Made of what a study file says; a pydantic ValidationError names the first wrong setting."""
        for setting in cls.unset:
            if setting in words:
                raise FieldError("must not be given: the study decides it", setting)
        made: Self = TypeAdapter(cls).validate_python(dict(words))
        return made

    def to_entry(self) -> dict[str, Any]:
        """Settings as a study file would give them: those that are always given, and those that are not at their default."""
        found = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            given = one.name in self.always or one.default is MISSING or value != one.default
            if given and value is not None and one.name not in self.unset:
                found[one.name] = to_plain(value)
        return found

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """The annotated type of every setting that an entry may have."""
        known = get_type_hints(cls, include_extras=True)
        return {one.name: known[one.name] for one in fields(cls) if one.name not in cls.unset}  # type: ignore[arg-type]

    @classmethod
    def takes_list(cls, setting: str) -> bool:
        """Whether a list in a study file is one value of this setting; else it is a sweep."""
        return _is_list(cls.hints().get(setting))

    def label(self) -> str:
        """The settings in a few words."""
        words = [(label_of(self.hints().get(name), name), value) for name, value in self.settings().items()]
        written = [(label.place, label.write(value)) for label, value in words]
        return " ".join(text for _, text in sorted(written, key=lambda pair: pair[0]) if text)

    def settings(self) -> dict[str, Any]:
        """The settings that a label gives, as values of their types."""
        return {name: getattr(self, name) for name in self.to_entry()}


INTERVENTIONS: Registry[type[Entry]] = Registry("condition", InterventionError)


def to_plain(value: Any) -> Any:
    """As a YAML or JSON file holds it."""
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    if isinstance(value, Entry):
        return {"name": value.name, **value.to_entry()}
    return value.to_dict() if hasattr(value, "to_dict") else value


def label_of(hint: Any, name: str) -> Label:
    """What an annotation says of its setting's label."""
    for part in (hint, *get_args(hint)):
        found = next((one for one in getattr(part, "__metadata__", ()) if isinstance(one, Label)), None)
        if found is not None:
            return found
    return Label(f"{name}={{}}".replace("_", " "))


def _is_list(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _is_list(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return any(map(_is_list, get_args(hint)))
    return get_origin(hint) in (tuple, list, Sequence)


# ---- interventions


@settings(InterventionError)
class Intervention(Entry, ABC):
    """One way to change attention.

    Settings are fields; what it remembers of a run lives in `Memory`. What a field may hold follows from its type.
    A class with a `name` can be named in study files. `class MyIntervention(Intervention, noop={"k": 0})` says under which
    value of a setting it changes nothing.
    steps: when it acts, (from, to), half-open: whole numbers are forwards (0 is the prefill or the first forward), floats
    shares of the generation, None is open. What is remembered and ranked is so at every step, whether or not it acts there.
    """

    _: KW_ONLY
    steps: StepsField | None = None
    unset: ClassVar[tuple[str, ...]] = ("seed",)
    hides: ClassVar[bool] = False  # whether the keys that it takes must receive exactly nothing
    aim: ClassVar[Aim | None] = None  # what it is meant to do to sinks, beside masking: claims say whether it did
    _noop: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, noop: Mapping[str, Any] | None = None) -> None:
        super().__init_subclass__()
        if noop is not None:
            cls._noop = noop

    @property
    def is_noop(self) -> bool:
        """Whether these settings change nothing: then the output is bit-identical to the untouched model's."""
        return any(getattr(self, name) == value for name, value in self._noop.items())

    @abstractmethod
    def change(self, call: Call, memory: Memory) -> Change | None:
        """What to change in this call; None for nothing."""

    def maps(self) -> set[Map]:
        """Which maps of the last forward it wants to be remembered."""
        return set()

    def prepare(self, model: Any, memory: Memory) -> None:
        """Find out what it needs of the model, into `memory.given`, when the `with` is entered."""

    def check(self, shape: Shape) -> None:
        """Refuse what the model does not have: by its config when the `with` is entered, by what ran when it ends."""
        layers, heads = getattr(self, "layers", None), getattr(self, "heads", None)
        if heads and isinstance(heads[0], tuple):
            layers, heads = [*(layers or ()), *(layer for layer, _ in heads)], [head for _, head in heads]
        shape.check(layers, heads, InterventionError)

    def seeded(self, seed: int) -> Self:
        """The same with the seed of a study, in everything that draws."""
        changed: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "seed":
                changed["seed"] = seed
            elif isinstance(value, Intervention):
                changed[one.name] = value.seeded(seed)
            elif isinstance(value, tuple) and value and isinstance(value[0], Intervention):
                changed[one.name] = tuple(each.seeded(seed) for each in value)
        return replace(self, **changed) if changed else self

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        """What controls for it, best first: random keys matched by count or by mass. Any makes it a test of sinks."""
        return {}

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        """A name for tables; None where a few words do not say all of it. words: settings as in results."""
        keys = name_keys({name: value for name, value in words.items() if name != "of"})
        if keys is None:
            return None
        what, *ranked = keys.split(", ")
        return ", ".join([cls.name.replace("_", " "), "random" if words.get("of") == "random" else what, *ranked])

    def to_dict(self) -> dict[str, Any]:
        """Its class and fields as plain data, selectors and sink rules too; `steps` only where it is given."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in values.items()}
        return {"name": type(self).__name__, **{name: plain[name] for name in plain if name != "steps" or self.steps}}


@settings(InterventionError)
class Selector(Intervention):
    """An intervention that picks keys, head by head, and hides them from every query."""

    hides: ClassVar[bool] = True

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.select(call, memory)
        return None if picked is None else Change(drop=picked, keep_self=getattr(self, "keep_self", False))

    @abstractmethod
    def select(self, call: Call, memory: Memory) -> Tensor | None:
        """bool [batch, head, key]; None for nothing."""


def name_keys(words: Mapping[str, Any]) -> str | None:
    """most-attended key, strong sinks, …; with rank and rows where they are given; None where that is not all."""
    which = {name: value for name, value in words.items() if name not in ("k", "rank", "rows")}
    if not words.get("k") or len(which) > 1:
        return None
    name, value = next(iter(which.items()), ("", cast("Any", None)))
    if name == "":
        keys = "most-attended key"
    elif name == "kinds":
        keys = f"most-attended {show_kinds(value)}"
    elif name in ("above", "below") and value.get("rule") == "head_share":
        limit = "" if value["epsilon"] == STRONG else f" {'>' if name == 'above' else '<'} {value['epsilon']:g}"
        keys = f"{'strong sinks' if name == 'above' else 'weak most-attended key'}{limit}"
    else:
        return None
    ranked = [words["rank"].replace("_", " ")] if "rank" in words else []
    by = ["last row" if words["rows"] == "last" else "columns"] if "rows" in words else []
    return ", ".join([keys, *ranked, *by])


STRONG = 0.3  # of a head's attention


def name_kinds(kinds: str | Sequence[str]) -> str:
    """Kinds of token as labels have them."""
    return kinds if isinstance(kinds, str) else "+".join(kinds)


def show_kinds(kinds: str | Sequence[str] | None, several: bool = False) -> str:
    """Kinds of token for people: special token, content tokens, newline+end token; any key where none is named."""
    if not kinds:
        return "keys" if several else "key"
    names = {"structural": "special", "content": "content"}
    name = names.get(kinds, kinds) if isinstance(kinds, str) else "+".join(kinds)
    return f"{name} tokens" if several else f"{name} token"


def within(steps: Steps | None, forward: int, share: float | None) -> bool:
    """Whether an intervention acts in this forward; forward: how many came before, share: how far the generation is.

    0 is the prefill or the first forward. A share is the decoder's step over the most steps that its settings can take: the
    tokens of a left-to-right generation, the steps of a schedule. With commits by a threshold a generation is over before.
    """
    if steps is None:
        return True
    if share is None and any(isinstance(end, float) for end in steps):
        raise InterventionError(
            "Steps as shares of the generation need a decoder that knows its steps; generate with sk.decode, sk.trace or "
            "model.generate, or give whole numbers of forwards."
        )
    first, last = ((share if isinstance(end, float) else forward) or 0 for end in steps)
    return (steps[0] is None or first >= steps[0]) and (steps[1] is None or last < steps[1])


def top(scores: Tensor, k: int) -> Tensor:
    """The k largest of [..., key] as bool, lowest position first where equal; never a key that scores 0 or less."""
    count = min(k, scores.shape[-1])
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    # The last of them says how many more than enough are equal; which of those stand first needs no order of the others.
    least = scores.amax(-1, keepdim=True) if count == 1 else scores.topk(count).values[..., -1:]
    above, level = scores > least, scores == least
    missing = count - above.sum(-1, keepdim=True)
    return (above | (level & (level.cumsum(-1) <= missing))) & (scores > 0)


def restrict(picked: Tensor, call: Call, layers: Layers | None, heads: Heads | None) -> Tensor | None:
    """Only the chosen layers and heads; None where this layer has none of them."""
    if layers is not None and call.layer not in layers:
        return None
    if heads is None:
        return picked
    chosen = tuple(
        one[1] if isinstance(one, tuple) else one for one in heads if not isinstance(one, tuple) or one[0] == call.layer
    )
    if not chosen:
        return None
    count = picked.shape[1]
    inside = call.once(
        ("heads", chosen, count),
        lambda: torch.tensor([head in chosen for head in range(count)], device=picked.device),
    )
    return picked & inside[None, :, None]
