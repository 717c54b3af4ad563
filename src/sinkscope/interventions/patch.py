"""Move what a sink carries: values or keys of one sink take the place of another's.

The source is another row of the batch at the same step ("next": row i takes from row i + 1, the last from the first), the
same row one forward earlier ("previous") or at its first forward ("first"), or a trace of another generation, whose steps
are computed once more. In study files `of: random` moves as many random keys instead: the control.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change, Outcome, Tap
from sinkscope.attention.capture import listening, module_of
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import top
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.of import OfKeys
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import Setting, among, register
from sinkscope.interventions.sinks import MaskSinks
from sinkscope.interventions.words import ABOVE, BELOW, OF, RANK, ROWS, WHICH, K

if TYPE_CHECKING:
    from sinkscope.sinks.columns import TraceLike

SOURCES = ("next", "previous", "first")
SOURCE = Setting(
    "source", "next", among(SOURCES), "next, previous or first", place=35, label=lambda source: f"from {source}"
)
OF_RANDOM = replace(OF, quiet=True)  # sinks unless said otherwise
WORDS = (K, RANK, ROWS, OF_RANDOM, SOURCE, ABOVE, BELOW, *WHICH)


@dataclass(frozen=True)
class Donor:
    """One layer at one forward of the source."""

    states: Tensor  # [batch, head, key, dim]
    picked: Tensor  # bool [batch, head, key]


@dataclass(frozen=True)
class _Patched(OfKeys):
    source: Literal["next", "previous", "first"] | TraceLike = "next"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.source, str):
            if self.source not in SOURCES:
                raise InterventionError(f"Expected source to be next, previous, first or a trace, got {self.source!r}.")
        elif getattr(self.source, "received", None) is None or getattr(self.source, "canvas", None) is None:
            raise InterventionError(
                f"Expected source to be next, previous, first or a full trace, got {type(self.source).__name__}."
            )

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name not in ("source", "of")}
        of = MaskRandom(seed=seed, **words) if values.get("of") == "random" else MaskSinks(**words)
        return cls(of, values.get("source", "next"))

    def to_dict(self) -> dict[str, Any]:
        source = self.source if isinstance(self.source, str) else "trace"
        return {"name": type(self).__name__, "of": self.of.to_dict(), "source": source}

    def prepare(self, model: Any, memory: Memory) -> None:
        if not isinstance(self.source, str):
            memory.given[id(self)] = _recorded(model, self.source, self._states)

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        own = self._states(call)
        donor = self._donor(call, memory, own, picked)
        if picked is None or donor is None:
            return None
        moved, touched = _moved(own, picked, donor)
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
        steps = memory.given[id(self)]
        step = memory.step(call)
        if step == 0 or step >= len(steps):
            return None
        k = self.of.k if isinstance(self.of, Ranked) else None
        scores = steps[step - 1][1][call.layer]  # what the keys of the source received a forward earlier
        if k is None:
            if picked is None:
                return None
            chosen = picked[:1, :, : scores.shape[-1]]
        else:
            chosen = top(scores, k)
        states = steps[step][0][call.layer]
        return Donor(states.expand(len(own), -1, -1, -1), chosen.expand(len(own), -1, -1))

    @abstractmethod
    def _states(self, call: Call) -> Tensor:
        """[batch, head, key, dim]: what is moved."""

    @abstractmethod
    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        """What the call is asked for, given what was moved."""


@register("patch_values", *WORDS)
class PatchValues(_Patched):
    """The picked keys carry the values of the source's picked keys; what they draw stays as it is."""

    def _states(self, call: Call) -> Tensor:
        return call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)

    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        return Change(values=lambda values: moved, touched=touched)


@register("patch_keys", *WORDS)
class PatchKeys(_Patched):
    """The picked keys are looked for as the source's picked keys are; what they carry stays as it is.

    Keys are moved behind the rotary embedding, so that a key brings the position along from which it comes.
    """

    def _states(self, call: Call) -> Tensor:
        return call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)

    def _change(self, moved: Tensor, touched: Tensor) -> Change:
        return Change(keys=lambda keys: moved, touched=touched)


def _moved(own: Tensor, picked: Tensor, donor: Donor) -> tuple[Tensor, Tensor]:
    """The n-th picked key of a head takes from the n-th of the source; heads in which either has fewer keep the rest."""
    most = int(picked.sum(-1).max())
    order, valid = _places(picked, most)
    source, there = _places(donor.picked, most)
    valid = valid & there
    taken = donor.states.gather(2, source.unsqueeze(-1).expand(-1, -1, -1, own.shape[-1]))
    kept = own.gather(2, order.unsqueeze(-1).expand_as(taken))
    moved = own.scatter(2, order.unsqueeze(-1).expand_as(taken), torch.where(valid.unsqueeze(-1), taken, kept))
    return moved, torch.zeros_like(picked).scatter(2, order, valid)


def _places(picked: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Columns of the picked keys in ascending order [batch, head, most], and which of the entries are picked at all."""
    order = picked.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices[..., :most]
    found = picked.gather(-1, order)
    short = most - order.shape[-1]
    return (order, found) if not short else (
        torch.nn.functional.pad(order, (0, short)), torch.nn.functional.pad(found, (0, short)),
    )  # fmt: skip


class _States(Tap):
    """Keys or values, and what keys received, of one forward."""

    def __init__(self, read: Any) -> None:
        self.read, self.states, self.scores = read, {}, {}  # type: ignore[var-annotated]

    def ranks(self, call: Call) -> bool:
        return True

    def take(self, call: Call, outcome: Outcome) -> None:
        self.states[call.layer] = self.read(call)
        self.scores[call.layer] = outcome.clean.sum(2)


def _recorded(model: Any, trace: TraceLike, read: Any) -> list[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    """States and column sums of every step of a trace, layer by layer: its canvases are computed once more."""
    if not hasattr(model, "logits") or trace.causal:
        raise InterventionError(
            "A trace as the source of a patch needs a loaded diffusion model, whose canvases can be computed again; "
            "use source='next', 'previous' or 'first'."
        )
    steps = []
    for canvas in trace.canvas[:-1]:
        states = _States(read)
        with listening(module_of(model), states):
            model.logits(canvas[None])
        steps.append((states.states, states.scores))
    return steps
