"""What picked keys carry: nothing, the mean of all, or what a sink of another row or step carries.

A key whose value is taken away keeps its attention: does a sink store anything?
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.attention.call import Call, Change
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention, Label, Match
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.selected import SelectorIntervention, random_controls
from sinkscope.validation import settings


@settings(InterventionError)
class _ChangedValues(SelectorIntervention):
    always: ClassVar[tuple[str, ...]] = ("k", "rank", "rows", "of")

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        return random_controls(self)

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        if picked is None:
            return None
        return Change(values=lambda values: self.replaced(values, picked, call.real_keys), touched=picked)

    @abstractmethod
    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        """values [batch, head, key, dim], picked bool [batch, head, key] → values."""


@settings(InterventionError)
class ZeroValues(_ChangedValues):
    """Set the values of selected keys to zero; the attention that they receive is unchanged.

    Args:
        of: Selector of the keys, such as `MaskSinks(k=1)`.
    """

    name: ClassVar[str] = "zero_values"

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        return values.masked_fill(picked.unsqueeze(-1), 0.0)


@settings(InterventionError)
class MeanValues(_ChangedValues):
    """Replace the values of selected keys by the mean value of the head's keys, padding left out.

    Args:
        of: Selector of the keys, such as `MaskSinks(k=1)`.
    """

    name: ClassVar[str] = "mean_values"

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            mean = values.mean(2, keepdim=True)
        else:
            weights = real[:, None, :, None].to(values.dtype)
            mean = (values * weights).sum(2, keepdim=True) / weights.sum(2, keepdim=True)
        return values.where(~picked.unsqueeze(-1), mean)


# ---- moved: values or keys of one sink take the place of another's


@settings(InterventionError)
class _Patched(SelectorIntervention):
    """In study files `of: random` moves as many random keys instead: the control."""

    _part: ClassVar[Literal["values", "keys"]]  # what is moved
    always: ClassVar[tuple[str, ...]] = ("k", "rank", "rows", "source")
    source: Annotated[Literal["next", "previous", "first"], Label("from {}", 35)] = "next"

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        return random_controls(self)

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


@settings(InterventionError)
class PatchValues(_Patched):
    """Replace the values of selected keys by those of the source's selected keys; the attention that they receive is
    unchanged.

    Args:
        of: Selector of the keys, here and in the source, such as `MaskSinks(k=1)`.
        source: Source of the values: "next" for the next sequence of the batch at the same step (the last sequence
            takes from the first), "previous" for the same sequence one forward earlier, "first" for its first forward.
    """

    name: ClassVar[str] = "patch_values"
    _part: ClassVar[Literal["values", "keys"]] = "values"


@settings(InterventionError)
class PatchKeys(_Patched):
    """Replace the key vectors of selected keys by those of the source's selected keys; values are unchanged.

    Key vectors are taken after the rotary embedding, so they bring the position of the source along.

    Args:
        of: Selector of the keys, here and in the source, such as `MaskSinks(k=1)`.
        source: Source of the key vectors, as in `PatchValues`.
    """

    name: ClassVar[str] = "patch_keys"
    _part: ClassVar[Literal["values", "keys"]] = "keys"


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
