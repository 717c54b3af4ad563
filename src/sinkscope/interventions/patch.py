"""Move what a sink carries: values or keys of one sink take the place of another's.

The source is another row of the batch at the same step ("next": row i takes from row i + 1, the last from the first), or the
same row one forward earlier ("previous") or at its first forward ("first"). There the same selector picks. In study files
`of: random` moves as many random keys instead: the control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.fields import among
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.positions import MaskPositions
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.selected import SelectorIntervention
from sinkscope.interventions.settings import OF, RANK, ROWS, WHICH, K, Setting, of_random, register

PatchSource = Literal["next", "previous", "first"]
SOURCE = Setting(
    "source", "next", among(get_args(PatchSource)), "next, previous or first", place=35, label="from {}".format
)
WORDS = (K, RANK, ROWS, replace(OF, quiet=True), SOURCE, *WHICH)


@dataclass(frozen=True)
class _Patched(SelectorIntervention):
    """of: an intervention that picks keys, "sinks" for MaskSinks(1), or positions for MaskPositions(positions)."""

    _part: ClassVar[Literal["values", "keys"]]  # what is moved
    of: Selector  # what __post_init__ makes of the other forms
    source: PatchSource = "next"

    if TYPE_CHECKING:

        def __init__(self, of: Selector | Literal["sinks"] | Sequence[int], source: PatchSource = "next") -> None: ...

    def __post_init__(self) -> None:
        given: object = self.of
        if isinstance(given, list | tuple) and given:
            object.__setattr__(self, "of", MaskPositions(tuple(given)))
        elif given == "sinks":
            object.__setattr__(self, "of", MaskSinks(1))
        super().__post_init__()

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        own = call.per_head(call.v if self._part == "values" else call.k)  # [batch, head, key, dim]: what is moved
        if self.source == "next":
            states, there = own.roll(-1, 0), None if picked is None else picked.roll(-1, 0)
        else:
            before: Tensor | None = memory.own.get((id(self), call.layer))
            if before is None or self.source == "previous":
                memory.own[id(self), call.layer] = own
            missing = -1 if before is None else call.keys - before.shape[2]
            if before is None or picked is None or missing < 0:
                return None
            states = torch.nn.functional.pad(before, (0, 0, 0, missing))
            there = picked & (torch.arange(call.keys, device=own.device) < before.shape[2])
        if picked is None or there is None:
            return None
        moved, touched = _moved(own, picked, states, there)
        if torch.equal(moved, own):  # its own values: nothing is changed, to the last bit
            return None
        part: dict[str, Any] = {self._part: lambda states: moved}
        return Change(touched=touched, **part)


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
