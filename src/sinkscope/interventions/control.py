"""Make sinks weaker, move them, or hold them still: the softmax, the scores of the top keys, and a key for what is too much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change, EachCall, Extra
from sinkscope.attention.capture import listening, module_of
from sinkscope.errors import InterventionError
from sinkscope.fields import FromZero, number
from sinkscope.interventions.base import Intervention, top
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import RANK, REQUIRED, ROWS, WHICH, K, Setting, register

NonNegative = Annotated[float, number(0, 1e6)]
RANKED = (RANK, ROWS, *WHICH)


@register("off_by_one", Setting("weight", 1.0, place=11, label="{:g}".format), aim="weaken")
@dataclass(frozen=True)
class SoftmaxOffByOne(Intervention, noop={"weight": 0}):
    """`weight` is added to the denominator of every softmax, so that a head may attend to nothing; 0 is the plain softmax."""

    weight: NonNegative = 1.0

    def change(self, call: Call, memory: Memory) -> Change | None:
        heads = call.q.shape[1]
        nothing = call.q.new_zeros(1, heads, 1, call.k.shape[-1]), call.q.new_zeros(1, heads, 1, call.v.shape[-1])
        return Change(extra=Extra(*nothing, bias=math.log(self.weight)))


@register("soften", Setting("temperature", REQUIRED, number(0.01, 100), place=11, label="{:g}".format), aim="weaken")
@dataclass(frozen=True)
class Soften(Intervention, noop={"temperature": 1}):
    """Scores are divided by `temperature` before the softmax: above 1 attention spreads out, below it gathers."""

    temperature: Annotated[float, number(0.01)]

    def change(self, call: Call, memory: Memory) -> Change | None:
        return Change(temperature=self.temperature)


@register("add_sink_token", Setting("token", None, place=12, quiet=True, label="of token {}".format), aim="weaken")
@dataclass(frozen=True)
class AddSinkToken(Intervention, noop={"count": 0}):
    """One more key that every query sees: a token that stands at position 0 and sees nothing but itself.

    Its states come from the model run on that token alone. token: its id; the tokenizer's begin, padding or end token
    unless given. count: 0 adds nothing.
    """

    token: FromZero | None = None
    count: Literal[0, 1] = 1

    def prepare(self, model: Any, memory: Memory) -> None:
        token = _sink_token(model) if self.token is None else self.token
        states: dict[int, tuple[Tensor, Tensor]] = {}  # layer → key and value, [1, head, 1, dim]

        def keep(call: Call) -> None:
            states[call.layer] = call.per_head(call.k), call.per_head(call.v)

        with listening(module_of(model), EachCall(keep)):
            model.logits(torch.tensor([[token]]))
        memory.given[id(self)] = states

    def change(self, call: Call, memory: Memory) -> Change | None:
        key, value = memory.given[id(self)][call.layer]
        return Change(extra=Extra(key, value))


def _sink_token(model: Any) -> int:
    if not hasattr(model, "logits"):
        raise InterventionError("A sink token needs a loaded model, whose states of that token can be computed.")
    tokenizer = getattr(model, "tokenizer", None)
    ids = (getattr(tokenizer, "bos_token_id", None), getattr(model, "pad_id", None), getattr(model, "eos_id", None))
    found = next((token for token in ids if token is not None), None)
    if found is None:
        raise InterventionError("The model names no begin, padding or end token to be the sink; give token=….")
    return int(found)


def _raised(picked: Tensor | None, call: Call, gain: float) -> Change | None:
    """`gain` (nats) is added to the scores of the picked keys, which stay in sight."""
    if picked is None:
        return None
    return Change(bias=picked[:, :, None].to(call.q.dtype) * gain, touched=picked)


PENALTY, BONUS = (Setting(name, REQUIRED, place=11, label="by {:g}".format) for name in ("penalty", "bonus"))


@register("penalise_sinks", K, PENALTY, *RANKED, masks=False, aim="weaken")
@dataclass(frozen=True)
class PenaliseSinks(Ranked, noop={"k": 0, "penalty": 0}):
    """The scores of the top keys are lowered by `penalty` (nats) before the softmax: e^penalty times less, not nothing."""

    penalty: NonNegative = field(default=1.0, kw_only=True)

    def change(self, call: Call, memory: Memory) -> Change | None:
        return _raised(self.select(call, memory), call, -self.penalty)


@register("hold_sinks", K, BONUS, *RANKED, masks=False, aim="hold")
@dataclass(frozen=True)
class HoldSinks(Ranked, noop={"k": 0, "bonus": 0}):
    """The keys that were on top after the first forward keep `bonus` (nats) on their scores: sinks that do not move."""

    bonus: NonNegative = field(default=4.0, kw_only=True)

    def change(self, call: Call, memory: Memory) -> Change | None:
        return _raised(self.select(call, memory), call, self.bonus)

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        held: Tensor | None = memory.own.get((id(self), call.layer))
        if held is None:
            held = super().select(call, memory)
            if held is not None:
                memory.own[id(self), call.layer] = held
        return None if held is None else torch.nn.functional.pad(held, (0, call.keys - held.shape[-1]))


@register("rotate_sinks", K, *RANKED, masks=False)
@dataclass(frozen=True)
class RotateSinks(Ranked):
    """A sink's scores go to another key: the nearest of the same kind that is no top key; that one's scores come back.

    What both carry stays where it is: is it the place that counts, or what stands there?
    """

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.select(call, memory)
        if picked is None:
            return None
        order = _swapped(picked, memory.kinds(call), call.real_keys)
        moved = order != torch.arange(call.keys, device=order.device)
        if moved.device.type == "cpu" and not bool(moved.any()):  # a GPU would have to be waited for
            return None
        spread = order.unsqueeze(-1)
        return Change(keys=lambda keys: keys.gather(2, spread.expand(-1, -1, -1, keys.shape[-1])), touched=moved)


def _swapped(picked: Tensor, kinds: Tensor, real: Tensor | None) -> Tensor:
    """[batch, head, key]: which key's scores each key gets; pairs change places, everything else stays."""
    batch, heads, keys = picked.shape
    columns = torch.arange(keys, device=picked.device)
    order = columns.expand(batch, heads, keys).clone()
    same = kinds[:, :, None] == kinds[:, None, :]  # [batch, key, key]
    if real is not None:
        same = same & real[:, None, :]
    distance = (columns[:, None] - columns[None]).abs().to(torch.float32)
    used = picked.clone()
    for _ in range(int(picked.sum(-1).max())):
        waiting = picked & (order == columns)
        sink = top(waiting.float(), 1)  # the first that has no partner yet
        place = sink.to(torch.int8).argmax(-1)  # [batch, head]
        rows = torch.arange(batch, device=picked.device)[:, None]
        cost = distance[place].masked_fill(~same[rows, place] | used, torch.inf)
        partner = cost.argmin(-1)
        fits = sink.any(-1) & torch.isfinite(cost.gather(-1, partner[..., None])[..., 0])
        for a, b in ((place, partner), (partner, place)):
            here = torch.where(fits, a, place)[..., None]
            order = order.scatter(-1, here, torch.where(fits, b, order.gather(-1, place[..., None])[..., 0])[..., None])
        used = used | (torch.zeros_like(used).scatter(-1, partner[..., None], True) & fits[..., None])
        picked = picked & ~sink
    return order
