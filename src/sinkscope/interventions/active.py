"""`intervene`: put interventions into a model, know what they did, and take them out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change, Outcome, Tap
from sinkscope.attention.capture import Shape, listening, module_of
from sinkscope.errors import InterventionError
from sinkscope.interventions.activations import ActivationIntervention
from sinkscope.interventions.base import Intervention, within
from sinkscope.interventions.effect import Effect, Tally
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.interventions.memory import Memory
from sinkscope.sinks.tokens import KindsOf


@dataclass
class Active(Tap):
    """Interventions at work in one model."""

    interventions: tuple[Intervention, ...]
    memory: Memory = field(default_factory=Memory)
    tally: Tally = field(default_factory=Tally)
    masked: list[Tensor] | None = None  # with record=True: bool [batch, head, key] of every call, in order

    @property
    def effect(self) -> Effect:
        """What was taken away so far; on a GPU, reading it waits for the device."""
        return self.tally.read()

    def change(self, call: Call) -> list[Change]:
        self.memory.open(call)
        # Every intervention is asked at every step: what it keeps must not depend on when it acts.
        step, share = self.memory.step(call), None if call.forward is None else call.forward.share
        asked = [(each.change(call, self.memory), each.steps) for each in self.interventions if not each.is_noop]
        found = [change for change, steps in asked if within(steps, step, share) and change is not None]
        for removed in (change.removed for change in found if change.removed is not None):
            counted = removed[: call.rows]
            self.tally.count(keys=(counted > 0).sum(), mass=counted.sum())
        return found

    def act(self, each: ActivationIntervention, activation: Tensor, context: HookContext) -> Tensor | None:
        """What an intervention on activations makes of one, counted."""
        # Places are behind the attention, which is counted already.
        forward = self.memory.steps.get(context.layer, 1) - 1
        made = each.act(activation, context, self.memory)  # at every step, as above
        if made is None or not within(each.steps, forward, context.share):
            return None
        with torch.no_grad():
            before = activation[: context.rows].float()
            moved = (made[: context.rows].float() - before).square().sum()
            self.tally.count(moved=moved, moved_seen=before.square().sum())
        return made

    def ranks(self, call: Call) -> bool:
        return any(each.maps() for each in self.interventions if not each.is_noop)

    def take(self, call: Call, outcome: Outcome) -> None:
        if wanted := {name for each in self.interventions if not each.is_noop for name in each.maps()}:
            self.memory.keep(call, outcome, wanted)
        self.tally.add(call, outcome)
        if self.masked is not None:
            none = torch.zeros_like(outcome.clean_by_all, dtype=torch.bool)
            self.masked.append((none if outcome.drop is None else outcome.drop)[: call.rows].clone())

    def done(self, call: Call) -> None:
        self.memory.close(call)


@contextmanager
def intervene(model: Any, *interventions: Intervention, record: bool = False) -> Iterator[Active]:
    """Change the attention of `model` until the `with` ends; several interventions act together in the same call.

    model: a loaded model or any torch module. Layers and heads that the model does not have are refused. Only calls of the
    thread that entered the `with` are changed. record: keep which keys each call masked, in `masked`.
    """
    for each in interventions:
        if not isinstance(each, Intervention):
            raise InterventionError(f"Expected interventions such as MaskSinks(k=5), got {each!r}.")
    root = module_of(model)
    shape = Shape.of(root)
    for each in interventions:
        each.check(shape)
    active = Active(interventions, masked=[] if record else None)
    if any(each.needs_kinds for each in interventions):
        active.memory.kinds_of = _kinds_of(model)
    for each in interventions:
        if not each.is_noop:
            each.prepare(model, active.memory)
    with ExitStack() as stack:
        for each in interventions:
            if isinstance(each, ActivationIntervention) and not each.is_noop:
                stack.enter_context(hook(root, each.where(shape), partial(active.act, each)))
        listener = stack.enter_context(listening(root, active))
        yield active
    for each in interventions:
        each.check(Shape.seen(listener))


def _kinds_of(model: Any) -> KindsOf:
    """Kinds of tokens are decided from a tokenizer."""
    if getattr(model, "tokenizer", None) is None:
        raise InterventionError(
            f"Expected a model with a tokenizer, since kinds=… is decided from it, got {type(model).__name__} without one; "
            "load it with sk.load(…) from a folder with tokenizer files."
        )
    return KindsOf(model.tokenizer, getattr(model, "mask_id", None))
