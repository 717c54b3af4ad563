"""Interventions on the keys that another one picks: others are hidden in their place, or all others.

`SelectorIntervention` is the base of all that have a selector, `of`. A study file writes its selector flat: `of` is one word,
and the selector's settings stand beside the intervention's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import PlainValidator, TypeAdapter
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.attention.patch import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import (
    INTERVENTIONS,
    Intervention,
    Label,
    Match,
    Selector,
    show_kinds,
)
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.positions import MaskPositions, Positions
from sinkscope.interventions.ranked import Among, Kinds, MaskRandom, MaskSinks, Ranked, keys_of_kinds, prompt_keys
from sinkscope.validation import FieldError, Truth, settings, show_value

# Classes of keys that a study file names by `of`: all but the sinks, or those of them that are of a kind.
OTHERS: Mapping[str, str | None] = {"others": None, "structural": "structural", "content": "content"}
RANDOM_ONLY = ("seed", "match", "persist", "aligned", "avoid")  # settings of random keys, which sinks do not have


def select_keys(of: str, words: Mapping[str, Any]) -> Selector:
    """The selector that a study file names by `of`: sinks, random keys, positions, others, or positions instead of sinks."""
    own = {name: value for name, value in words.items() if name != "positions"}
    if of == "random":
        return MaskRandom.from_entry(own)
    if of == "positions":
        return MaskPositions.from_entry({"positions": words.get("positions")})
    sinks = MaskSinks.from_entry({name: value for name, value in own.items() if name not in RANDOM_ONLY})
    if of in OTHERS:
        return MaskOthers(sinks, kinds=OTHERS[of])
    return MaskInstead(sinks, words.get("positions") or ()) if of == "instead" else sinks


def read_selector(value: Any) -> Selector:
    """A selector, or {name: …} with its settings."""
    if isinstance(value, Mapping) and (entry := INTERVENTIONS.get(value.get("name"))) is not None:
        value = entry.from_entry({name: one for name, one in value.items() if name != "name"})
    if not isinstance(value, Selector):
        raise ValueError(f"must be an intervention that picks keys, such as MaskSinks(k=1), got {show_value(value)}")
    if value.steps is not None:
        raise ValueError("must have no steps of its own: give them to the intervention, where they have an effect")
    return value


SelectorField = Annotated[Selector, PlainValidator(read_selector)]


@settings(InterventionError)
class SelectorIntervention(Intervention):
    """of: MaskSinks, MaskRandom, MaskPositions or CutContext: whose keys, not whether they are hidden.

    choices: what a study file may say for `of`. usual: settings of the selector that it may leave out.
    """

    of: SelectorField
    choices: ClassVar[tuple[str, ...]] = ("sinks", "random")
    usual: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def hints(cls) -> dict[str, Any]:
        flat = {name: hint for one in (MaskPositions, MaskRandom) for name, hint in one.hints().items()}
        return {**flat, **super().hints(), "of": Annotated[str, Label("{}", 30)]}

    @classmethod
    def from_entry(cls, words: Mapping[str, Any]) -> Self:
        """Settings that are fields of its own stay its own; the others say which keys."""
        of = words.get("of", cls.choices[0])
        if not isinstance(of, str):
            return super().from_entry(words)
        if of not in cls.choices:
            raise FieldError(f"must be one of {', '.join(cls.choices)}, got {show_value(of)}", "of")
        own = {one.name for one in fields(cls)} - {"of"}
        strange = set(words) & set(RANDOM_ONLY) - own
        drawn = of == "random" or any(isinstance(one, MaskRandom) for one in words.get("matched", ()))
        if strange and not drawn:
            raise FieldError("has an effect with of: random only", min(strange))
        flat = {name: value for name, value in words.items() if name not in (*own, "of")}
        selector = select_keys(of, {**cls.usual, **flat})
        made: Self = TypeAdapter(cls).validate_python(
            {"of": selector, **{name: value for name, value in words.items() if name in own}}
        )
        return made

    def to_entry(self) -> dict[str, Any]:
        """Flat where a study file's words can say it, else with the selector as a mapping of its own."""
        own = super().to_entry()
        words = self._flat(self.of)
        of = self._word(self.of, words)
        if of is None:
            return own
        silent = {**{one.name: one.default for one in fields(MaskRandom)}, **self.usual}
        flat = {name: value for name, value in words.items() if name in self.always or value != silent.get(name)}
        said = {"of": of} if "of" in self.always or of != self.choices[0] else {}
        return {**flat, **said, **{name: value for name, value in own.items() if name != "of"}}

    def settings(self) -> dict[str, Any]:
        """Plain values of the flat words, and fields as they are."""
        flat = self.to_entry()
        typed = {
            name: getattr(selector, name) for selector in self._chain() for name in flat if hasattr(selector, name)
        }
        return {name: value if name in ("of", "matched") else typed.get(name, value) for name, value in flat.items()}

    def _chain(self) -> list[Intervention]:
        """Its selector's selectors first, itself last."""
        chain: list[Intervention] = [self]
        while isinstance(chain[0], SelectorIntervention):
            chain.insert(0, chain[0].of)
        return chain

    @staticmethod
    def _flat(selector: Selector) -> dict[str, Any]:
        """All settings of a selector and of those below it."""
        words: dict[str, Any] = {}
        if isinstance(selector, MaskInstead | MaskPositions):
            words["positions"] = list(selector.positions)
        inner = selector.of if isinstance(selector, MaskInstead | MaskOthers) else selector
        return {**inner.to_entry(), **words} if isinstance(inner, Ranked) else words

    def _word(self, selector: Selector, words: Mapping[str, Any]) -> str | None:
        """Which of the choices this selector is."""
        for word in self.choices:
            try:
                if select_keys(word, words) == selector:
                    return word
            except (ValueError, InterventionError):
                continue
        return None

    @property
    def is_noop(self) -> bool:
        return self.of.is_noop

    def check(self, shape: Shape) -> None:
        self.of.check(shape)

    def maps(self) -> set[Map]:
        return self.of.maps()


def random_controls(intervention: Any) -> dict[Match, list[Any]]:
    """The same done to as many random keys."""
    sinks = intervention.of
    return {"count": [replace(intervention, of=sinks.as_random())]} if isinstance(sinks, MaskSinks) else {}


@settings(InterventionError)
class MaskInstead(SelectorIntervention, Selector):
    """Mask the keys at given positions, in the heads and forwards in which a selector selects a key.

    This is a control for a sink, which is one token in many heads and steps: another token (for example of the chat
    template) is masked in the same heads. The selected key itself is not masked.

    Args:
        of: Selector that decides in which heads and forwards keys are masked, such as `MaskSinks(k=1)`.
        positions: Positions that are masked.
    """

    name: ClassVar[str] = "mask_instead"
    choices: ClassVar[tuple[str, ...]] = ("sinks",)
    always: ClassVar[tuple[str, ...]] = ("k", "rank", "rows")
    positions: Positions

    def __post_init__(self) -> None:
        if not self.positions:
            raise FieldError("must be at least one position to hide instead, got none", "positions")

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = self.of.select(call, memory)
        there = MaskPositions(self.positions).select(call, memory)
        if picked is None or there is None:
            return None
        return there & picked.any(-1, keepdim=True) & ~picked


@settings(InterventionError)
class MaskOthers(SelectorIntervention, Selector):
    """Mask all keys but those that a selector selects: the control in which only the sink is left.

    Args:
        of: Selector of the keys that are left, such as `MaskSinks(k=1)`.
        kinds: Token categories that are masked, as in `Ranked`; None for all.
        among: Keys that are masked: "all", or "prompt" for keys of the prompt.
        scope: Heads in which keys are masked: "same" for heads in which `of` selects a key, "all" for every head.
        persist: Whether the keys that were selected first are left at all later steps too.
    """

    name: ClassVar[str] = "mask_others"
    choices: ClassVar[tuple[str, ...]] = ("sinks",)
    always: ClassVar[tuple[str, ...]] = ("k", "rank", "rows")
    kinds: Kinds | None = None
    among: Among = "all"
    scope: Annotated[Literal["same", "all"], Label("in {} heads", 63)] = "same"
    persist: Annotated[Truth, Label("persistent", 60)] = False

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        if set(words) - {"k", "kinds", "among", "scope", "persist", "above", "per"} or words.get("k") != 1:
            return None
        keys = f"all {show_kinds(words.get('kinds'), several=True)} but the sink"
        return keys if words.get("scope") == "all" else f"{keys}, in the same heads"

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        spared = self.of.select(call, memory)
        if spared is None:
            return None
        if self.persist:
            first: Tensor = memory.own.setdefault((self, call.layer), spared)
            spared = spared | torch.nn.functional.pad(first, (0, call.keys - first.shape[-1]))
        picked = ~spared
        if call.real_keys is not None:
            picked = picked & call.real_keys[:, None]
        if self.kinds is not None:
            picked = picked & keys_of_kinds(self.kinds, call, memory)[:, None]
        if self.among == "prompt":
            picked = picked & prompt_keys(call)
        return picked & spared.any(-1, keepdim=True) if self.scope == "same" else picked
