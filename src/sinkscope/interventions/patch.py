"""Move what a sink carries: values or keys of one sink take the place of another's.

The source is another row of the batch at the same step ("next": row i takes from row i + 1, the last from the first), or the
same row one forward earlier ("previous") or at its first forward ("first"). Or it is a trace of another generation, whose steps
are computed once more. There the same selector picks, as if it had been at work in that generation. In study files
`of: random` moves as many random keys instead: the control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.context import COMMITTED, MASKED, PROMPT, Forward, forward_context
from sinkscope.errors import InterventionError
from sinkscope.fields import among
from sinkscope.interventions.active import intervene
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.positions import MaskPositions
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.selected import SelectorIntervention
from sinkscope.interventions.settings import OF, RANK, ROWS, WHICH, K, Setting, of_random, register

if TYPE_CHECKING:
    from sinkscope.sinks.columns import TraceLike

SOURCES = ("next", "previous", "first")
SOURCE = Setting(
    "source", "next", among(SOURCES), "next, previous or first", place=35, label=lambda source: f"from {source}"
)
WORDS = (K, RANK, ROWS, replace(OF, quiet=True), SOURCE, *WHICH)


class Donor(NamedTuple):
    """One layer at one forward of the source."""

    states: Tensor  # [batch, head, key, dim]
    picked: Tensor | None  # bool [batch, head, key]: what the selector takes there; None for nothing


@dataclass(frozen=True)
class _Patched(SelectorIntervention):
    """of: an intervention that picks keys, "sinks" for MaskSinks(1), or positions for MaskPositions(positions)."""

    _part: ClassVar[Literal["values", "keys"]]  # what is moved
    of: Selector  # what __post_init__ makes of the other forms
    source: Literal["next", "previous", "first"] | TraceLike = "next"

    if TYPE_CHECKING:

        def __init__(
            self,
            of: Selector | Literal["sinks"] | Sequence[int],
            source: Literal["next", "previous", "first"] | TraceLike = "next",
        ) -> None: ...

    def __post_init__(self) -> None:
        given: object = self.of
        if isinstance(given, list | tuple) and given:
            object.__setattr__(self, "of", MaskPositions(tuple(given)))
        elif given == "sinks":
            object.__setattr__(self, "of", MaskSinks(1))
        super().__post_init__()
        full = getattr(self.source, "received", None) is not None and getattr(self.source, "canvas", None) is not None
        if not full and self.source not in SOURCES:
            raise InterventionError(
                f"Expected source to be next, previous, first or a full trace, got {self.source!r}."
            )

    def to_dict(self) -> dict[str, Any]:
        source = self.source if isinstance(self.source, str) else "trace"
        return {"name": type(self).__name__, **self.settings(), "of": self.of.to_dict(), "source": source}

    def prepare(self, model: Any, memory: Memory) -> None:
        if not isinstance(self.source, str):
            memory.given[id(self)] = _recorded(model, self.source, _Donors(self.of, self._states))

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        own = self._states(call)
        donor = self._donor(call, memory, own, picked)
        if picked is None or donor is None or donor.picked is None:
            return None
        moved, touched = _moved(own, picked, donor.states, donor.picked)
        if torch.equal(moved, own):  # its own values: nothing is changed, to the last bit
            return None
        part: dict[str, Any] = {self._part: lambda states: moved}
        return Change(touched=touched, **part)

    def _donor(self, call: Call, memory: Memory, own: Tensor, picked: Tensor | None) -> Donor | None:
        if self.source == "next":
            return None if picked is None else Donor(own.roll(-1, 0), picked.roll(-1, 0))
        if self.source in ("previous", "first"):
            before = memory.own.get((id(self), call.layer))
            if before is None or self.source == "previous":
                memory.own[id(self), call.layer] = own
            if before is None or picked is None or before.shape[2] > own.shape[2]:
                return None
            there = torch.arange(own.shape[2], device=own.device) < before.shape[2]
            return Donor(torch.nn.functional.pad(before, (0, 0, 0, own.shape[2] - before.shape[2])), picked & there)
        found: Donor | None = memory.given[id(self)].get((memory.step(call), call.layer))
        if found is None or found.picked is None:
            return None
        return Donor(found.states.expand(len(own), -1, -1, -1), found.picked.expand(len(own), -1, -1))

    @classmethod
    def _states(cls, call: Call) -> Tensor:
        """[batch, head, key, dim]: what is moved, as it is now."""
        return call.per_head(call.v if cls._part == "values" else call.k)


@register("patch_values", *WORDS, controls=of_random)
class PatchValues(_Patched):
    """The picked keys carry the values of the source's picked keys; what they draw stays as it is.

    of: an intervention that picks keys, in both runs; "sinks" is MaskSinks(1), a list of positions MaskPositions(positions).
    """

    _part = "values"


@register("patch_keys", *WORDS, controls=of_random)
class PatchKeys(_Patched):
    """The picked keys are looked for as the source's picked keys are; what they carry stays as it is.

    Keys are moved behind the rotary embedding, so that a key brings the position along from which it comes. of: as in
    PatchValues.
    """

    _part = "keys"


def _moved(own: Tensor, picked: Tensor, states: Tensor, donors: Tensor) -> tuple[Tensor, Tensor]:
    """The n-th picked key of a head takes from the n-th of the source; heads in which either has fewer keep the rest."""
    most = int(picked.sum(-1).max())
    order, valid = _places(picked, most)
    source, there = _places(donors, most)
    valid = valid & there
    taken = states.gather(2, source.unsqueeze(-1).expand(-1, -1, -1, own.shape[-1]))
    kept = own.gather(2, order.unsqueeze(-1).expand_as(taken))
    moved = own.scatter(2, order.unsqueeze(-1).expand_as(taken), torch.where(valid.unsqueeze(-1), taken, kept))
    return moved, torch.zeros_like(picked).scatter(2, order, valid)


def _places(picked: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Columns of the picked keys in ascending order [batch, head, most], and which of the entries are picked at all."""
    order = picked.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices[..., :most]
    found = picked.gather(-1, order)
    short = (0, most - order.shape[-1])
    return torch.nn.functional.pad(order, short), torch.nn.functional.pad(found, short)


@dataclass(frozen=True)
class _Donors(SelectorIntervention):
    """Changes nothing, and keeps the states and picked keys of every forward of one generation."""

    read: Callable[[Call], Tensor]

    def change(self, call: Call, memory: Memory) -> None:
        memory.own[memory.step(call), call.layer] = Donor(self.read(call), self.of.select(call, memory))


def _recorded(model: Any, trace: TraceLike, donors: _Donors) -> dict[object, Donor]:
    """(step, layer) → what stands there in a trace: its canvases are computed once more, as the decoder would, one row alone."""
    if not hasattr(model, "logits") or trace.causal or getattr(model, "block", None) is not None:
        raise InterventionError(
            "A trace as the source of a patch needs a loaded diffusion model that sees its whole canvas at every step, so that "
            "it can be computed again; use source='next', 'previous' or 'first'."
        )
    run = object()
    with intervene(model, donors) as active:
        for step, canvas in enumerate(trace.canvas[:-1]):
            ids = canvas[None].to(model.device, torch.int64)
            blank = -1 if trace.mask_id is None else trace.mask_id
            labels = torch.full_like(ids, COMMITTED).masked_fill(ids == blank, MASKED)
            labels[:, : trace.prompt_length] = PROMPT
            with forward_context(Forward(run, step, labels, 1, 0, None, trace.prompt_length, ids=ids)):
                model.logits(ids)
    return active.memory.own
