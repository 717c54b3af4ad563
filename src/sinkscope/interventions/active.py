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
from sinkscope.attention.capture import listening, module_of
from sinkscope.attention.selection import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.activations import ActivationIntervention
from sinkscope.interventions.base import Intervention
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.steps import within
from sinkscope.sinks.tokens import KindsOf


@dataclass
class Effect:
    """What was taken away, summed over all calls that were ranked: shares make models of different size comparable."""

    keys: int = 0
    keys_seen: int = 0
    mass: float = 0.0
    mass_seen: float = 0.0
    leak: float = 0.0  # most attention that a masked key still received; 0 when masking took effect
    moved: float = 0.0  # squared length of what was changed in activations …
    moved_seen: float = 0.0  # … and of the activations

    @property
    def key_share(self) -> float:
        return self.keys / self.keys_seen if self.keys_seen else 0.0

    @property
    def mass_share(self) -> float:
        """Share of the attention that the masked keys would have drawn at that very step."""
        return self.mass / self.mass_seen if self.mass_seen else 0.0

    @property
    def moved_share(self) -> float:
        """Length of the change relative to the activations that it was made in; 0 when nothing took effect."""
        return (self.moved / self.moved_seen) ** 0.5 if self.moved_seen else 0.0

    def to_dict(self) -> dict[str, float]:
        moved = {"moved_share": self.moved_share} if self.moved_seen else {}
        return {"key_share": self.key_share, "mass_share": self.mass_share, "leak": self.leak, **moved}


@dataclass
class Active(Tap):
    """Interventions at work in one model."""

    interventions: tuple[Intervention, ...]
    memory: Memory = field(default_factory=Memory)
    effect: Effect = field(default_factory=Effect)
    masked: list[Tensor] | None = None  # with record=True: bool [batch, head, key] of every call, in order

    def change(self, call: Call) -> list[Change]:
        self.memory.open(call)
        # Every intervention is asked at every step: what it keeps must not depend on when it acts.
        changes = [
            (
                each.change(call, self.memory),
                within(each.steps, self.memory.step(call), None if call.forward is None else call.forward.share),
            )
            for each in self.interventions
            if not each.is_noop
        ]
        found = [change for change, acts in changes if acts and change is not None]
        for removed in (change.removed for change in found if change.removed is not None):
            rows = slice(None) if call.forward is None else slice(call.forward.rows)
            self.effect.keys += int((removed[rows] > 0).sum())
            self.effect.mass += float(removed[rows].sum())
        return found

    def act(self, each: ActivationIntervention, activation: Tensor, context: HookContext) -> Tensor | None:
        """What an intervention on activations makes of one, counted."""
        forward = (
            self.memory.steps.get(context.layer, 1) - 1
        )  # its places are behind the attention, which is counted already
        made = each.act(
            activation, context, self.memory
        )  # at every step: what it keeps must not depend on when it acts
        if made is None or not within(each.steps, forward, context.share):
            return None
        with torch.no_grad():
            before = activation[: context.rows].float()
            self.effect.moved += float((made[: context.rows].float() - before).square().sum())
            self.effect.moved_seen += float(before.square().sum())
        return made

    def ranks(self, call: Call) -> bool:
        return any(each.maps() for each in self.interventions if not each.is_noop)

    def take(self, call: Call, outcome: Outcome) -> None:
        if wanted := {name for each in self.interventions if not each.is_noop for name in each.maps()}:
            self.memory.keep(call, outcome, wanted)
        rows = call.q.shape[0] if call.forward is None else call.forward.rows
        clean = outcome.clean[:rows].detach().sum(2)
        real = clean.shape[0] * call.keys if call.real_keys is None else int(call.real_keys[:rows].sum())
        self.effect.keys_seen += real * clean.shape[1]
        self.effect.mass_seen += float(clean.sum())
        if outcome.touched is not None:
            self.effect.keys += int(outcome.touched[:rows].sum())
            self.effect.mass += float((clean * outcome.touched[:rows]).sum())
        if outcome.drop is not None:
            left = outcome.received[:rows].detach().sum(2) * outcome.drop[:rows]
            self.effect.leak = max(self.effect.leak, float(left.max()))
        if self.masked is not None:
            self.masked.append(
                clean.new_zeros(clean.shape).bool() if outcome.drop is None else outcome.drop[:rows].clone()
            )

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
        caught = stack.enter_context(listening(root, active))
        yield active
    for each in interventions:
        each.check_seen(caught, shape.name)


def _kinds_of(model: Any) -> KindsOf:
    """Kinds of tokens are decided from a tokenizer."""
    if getattr(model, "tokenizer", None) is None:
        raise InterventionError(
            f"Expected a model with a tokenizer, since kinds=… is decided from it, got {type(model).__name__} without one; "
            "load it with sk.load(…) from a folder with tokenizer files."
        )
    return KindsOf(model.tokenizer, getattr(model, "mask_id", None))
