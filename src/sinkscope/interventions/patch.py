"""Move what a sink carries: values or keys of one sink take the place of another's.

The source is another row of the batch at the same step ("next": row i takes from row i + 1, the last from the first), or the
same row one forward earlier ("previous") or at its first forward ("first"). Or it is a trace of another generation, whose steps
are computed once more. There the same selector picks, as if it had been at work in that generation. In study files
`of: random` moves as many random keys instead: the control.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change, Outcome, Tap
from sinkscope.attention.capture import listening, module_of
from sinkscope.attention.context import COMMITTED, MASKED, PROMPT, Forward, forward_context
from sinkscope.errors import InterventionError
from sinkscope.fields import among
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.positions import MaskPositions
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.selected import SelectorIntervention, selector
from sinkscope.interventions.settings import Setting, register
from sinkscope.interventions.words import ABOVE, BELOW, OF, RANK, ROWS, WHICH, K, of_random

if TYPE_CHECKING:
    from sinkscope.sinks.columns import TraceLike

SOURCES = ("next", "previous", "first")
SOURCE = Setting(
    "source", "next", among(SOURCES), "next, previous or first", place=35, label=lambda source: f"from {source}"
)
OF_RANDOM = replace(OF, quiet=True)  # sinks unless said otherwise
WORDS = (K, RANK, ROWS, OF_RANDOM, SOURCE, ABOVE, BELOW, *WHICH)


class Donor(NamedTuple):
    """One layer at one forward of the source."""

    states: Tensor  # [batch, head, key, dim]
    picked: Tensor | None  # bool [batch, head, key]: what the selector takes there; None for nothing


@dataclass(frozen=True)
class _Patched(SelectorIntervention):
    """of: an intervention that picks keys, "sinks" for MaskSinks(1), or positions for MaskPositions(positions)."""

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
        if given == "sinks":
            object.__setattr__(self, "of", MaskSinks(1))
        elif isinstance(given, list | tuple) and given:
            object.__setattr__(self, "of", MaskPositions(tuple(given)))
        if not isinstance(self.of, Selector):
            raise InterventionError(
                f"Expected of='sinks', a list of positions, MaskSinks(…) or another intervention that picks keys, got {given!r}."
            )
        if isinstance(self.source, str):
            if self.source not in SOURCES:
                raise InterventionError(f"Expected source to be next, previous, first or a trace, got {self.source!r}.")
        elif getattr(self.source, "received", None) is None or getattr(self.source, "canvas", None) is None:
            raise InterventionError(
                f"Expected source to be next, previous, first or a full trace, got {type(self.source).__name__}."
            )

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name != "source"}
        return cls(selector(words, seed), values.get("source", "next"))

    def to_dict(self) -> dict[str, Any]:
        source = self.source if isinstance(self.source, str) else "trace"
        steps = {} if self.steps is None else {"steps": self.steps}
        return {"name": type(self).__name__, "of": self.of.to_dict(), "source": source, **steps}

    def prepare(self, model: Any, memory: Memory) -> None:
        if not isinstance(self.source, str):
            memory.given[id(self)] = _recorded(model, self.source, self.of, self._states, memory)

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        own = self._states(call)
        donor = self._donor(call, memory, own, picked)
        if picked is None or donor is None or donor.picked is None:
            return None
        moved, touched = _moved(own, picked, donor.states, donor.picked)
        if torch.equal(moved, own):  # its own values: nothing is changed, to the last bit
            return None
        return self._change(moved, touched)

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
        steps: list[dict[int, Donor]] = memory.given[id(self)]
        found = steps[memory.step(call)].get(call.layer) if memory.step(call) < len(steps) else None
        if found is None or found.picked is None:
            return None
        return Donor(found.states.expand(len(own), -1, -1, -1), found.picked.expand(len(own), -1, -1))

    @abstractmethod
    def _states(self, call: Call) -> Tensor:
        """[batch, head, key, dim]: what is moved."""

    @abstractmethod
    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        """What the call is asked for, given what was moved."""


@register("patch_values", *WORDS, controls=of_random)
class PatchValues(_Patched):
    """The picked keys carry the values of the source's picked keys; what they draw stays as it is.

    of: an intervention that picks keys, in both runs; "sinks" is MaskSinks(1), a list of positions MaskPositions(positions).
    """

    def _states(self, call: Call) -> Tensor:
        return call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)

    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        return Change(values=lambda values: moved, touched=touched)


@register("patch_keys", *WORDS, controls=of_random)
class PatchKeys(_Patched):
    """The picked keys are looked for as the source's picked keys are; what they carry stays as it is.

    Keys are moved behind the rotary embedding, so that a key brings the position along from which it comes. of: as in
    PatchValues.
    """

    def _states(self, call: Call) -> Tensor:
        return call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)

    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        return Change(keys=lambda keys: moved, touched=touched)


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


class _Recorder(Tap):
    """States and picked keys of every forward of one generation, in which nothing is changed."""

    def __init__(self, of: Selector, read: Callable[[Call], Tensor], memory: Memory) -> None:
        self.of, self.read, self.memory = of, read, memory
        self.steps: list[dict[int, Donor]] = []

    def change(self, call: Call) -> list[Change]:
        self.memory.open(call)
        self.steps[-1][call.layer] = Donor(self.read(call), self.of.select(call, self.memory))
        return []

    def ranks(self, call: Call) -> bool:
        return bool(self.of.maps())

    def take(self, call: Call, outcome: Outcome) -> None:
        self.memory.keep(call, outcome, self.of.maps())

    def done(self, call: Call) -> None:
        self.memory.close(call)


def _recorded(
    model: Any, trace: TraceLike, of: Selector, read: Callable[[Call], Tensor], live: Memory
) -> list[dict[int, Donor]]:
    """Every step of a trace, layer by layer: its canvases are computed once more, as the decoder would, one row alone."""
    if not hasattr(model, "logits") or trace.causal or getattr(model, "block", None) is not None:
        raise InterventionError(
            "A trace as the source of a patch needs a loaded diffusion model that sees its whole canvas at every step, so that "
            "it can be computed again; use source='next', 'previous' or 'first'."
        )
    recorder, run = _Recorder(of, read, Memory(kinds_of=live.kinds_of)), object()
    with listening(module_of(model), recorder):
        for step, canvas in enumerate(trace.canvas[:-1]):
            ids = canvas[None].to(model.device, torch.int64)
            blank = -1 if trace.mask_id is None else trace.mask_id
            labels = torch.full_like(ids, COMMITTED).masked_fill(ids == blank, MASKED)
            labels[:, : trace.prompt_length] = PROMPT
            recorder.steps.append({})
            with forward_context(Forward(run, step, labels, 1, 0, None, trace.prompt_length, ids=ids)):
                model.logits(ids)
    return recorder.steps
