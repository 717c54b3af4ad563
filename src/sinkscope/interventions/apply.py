"""`intervene`: put interventions into a model, know what they did, and take them out again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.call import Call, CallResult, Change, Tap
from sinkscope.attention.patch import Shape, module_of, patched
from sinkscope.errors import InterventionError
from sinkscope.interventions.activations import ActivationIntervention
from sinkscope.interventions.base import Intervention, within
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.interventions.memory import Memory
from sinkscope.sinks.kinds import KindsOf


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


# One call that is not added up yet, [batch, head, key] each: clean sums, touched keys, what dropped keys still received, and
# which those are.
Counted = tuple[Tensor | None, ...]
SUMMED = ("keys", "mass", "mass_seen", "leak", "moved", "moved_seen")


@dataclass
class Tally:
    """Adds up effects; on a CPU at once; elsewhere the layers of a forward together, when the next forward begins."""

    effect: Effect = field(default_factory=Effect)
    waiting: list[Counted] = field(default_factory=list)
    forward: object = None
    sums: dict[torch.device, list[Tensor]] = field(default_factory=dict)  # of SUMMED; float64 numbers
    real: list[Tensor] = field(default_factory=list)  # keys seen, where some are padding

    def add(self, call: Call, outcome: CallResult) -> None:
        rows = call.rows
        clean, dropped = outcome.clean_by_all, None if outcome.drop is None else outcome.received_by_all
        parts = (clean, outcome.touched, dropped, outcome.drop)
        layer = tuple(None if part is None else part[:rows].detach() for part in parts)
        on_cpu, heads = clean.device.type == "cpu", clean.shape[1]
        if call.real_keys is None:
            self.effect.keys_seen += rows * call.keys * heads
        else:
            real = call.real_keys[:rows]
            self.real.append(call.once(("real count", rows, heads), lambda: real.sum() * heads))
        if on_cpu:
            self._add([layer])
            return
        if call.forward is not self.forward or call.forward is None:
            self._add_waiting()
        self.forward = call.forward
        self.waiting.append(layer)

    def count(self, **found: Tensor) -> None:
        """Add numbers that are counted already, by their names in `Effect`."""
        for name, value in found.items():
            if value.device.type == "cpu":
                self._put(name, value.item())
            else:
                zeros = [value.new_zeros((), dtype=torch.float64)] * len(SUMMED)
                sums, place = self.sums.setdefault(value.device, zeros), SUMMED.index(name)
                sums[place] = torch.maximum(sums[place], value) if name == "leak" else sums[place] + value

    def _put(self, name: str, value: float) -> None:
        before = getattr(self.effect, name)
        setattr(self.effect, name, max(before, value) if name == "leak" else before + value)

    def _add_waiting(self) -> None:
        groups: dict[object, list[Counted]] = {}  # calls that are alike are added up together
        for layer in self.waiting:
            groups.setdefault(tuple(part is not None and (part.device, part.shape) for part in layer), []).append(layer)
        self.waiting = []
        for layers in groups.values():
            self._add(layers)

    def _add(self, layers: list[Counted]) -> None:
        """Layers that are alike."""
        stacked = [[part for part in parts if part is not None] for parts in zip(*layers, strict=True)]
        clean, touched, left, drop = (
            parts[0] if len(parts) == 1 else torch.stack(parts) if parts else None for parts in stacked
        )
        assert clean is not None
        wide = None if clean.device.type == "cpu" else torch.float64
        if touched is not None:
            self.count(keys=touched.sum(), mass=(clean * touched).sum(dtype=wide))
        self.count(mass_seen=clean.sum(dtype=wide))
        if left is not None and drop is not None:
            self.count(leak=(left * drop).amax())

    def read(self) -> Effect:
        """All that was added so far; waits for the device."""
        self._add_waiting()
        for sums in self.sums.values():
            for name, value in zip(SUMMED, torch.stack(sums).tolist(), strict=True):
                self._put(name, int(value) if name == "keys" else value)
        self.effect.keys_seen += sum(int(count) for count in self.real)
        self.sums, self.real = {}, []
        return self.effect


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

    def needs_sums(self, call: Call) -> bool:
        return any(each.maps() for each in self.interventions if not each.is_noop)

    def take(self, call: Call, outcome: CallResult) -> None:
        if wanted := {name for each in self.interventions if not each.is_noop for name in each.maps()}:
            self.memory.keep(call, outcome, wanted)
        self.tally.add(call, outcome)
        if self.masked is not None:
            none = torch.zeros_like(outcome.clean_by_all, dtype=torch.bool)
            self.masked.append((none if outcome.drop is None else outcome.drop)[: call.rows].clone())

    def done(self, call: Call) -> None:
        self.memory.close(call)


@contextmanager
def intervene(
    model: Any, *interventions: Intervention | Sequence[Intervention], record: bool = False
) -> Iterator[Active]:
    """Change the attention or activations of a model inside the `with` block.

    Several interventions act together in the same call. Only calls of the thread that entered the `with` block are
    changed.

    Args:
        model: Model, or any torch module with transformers' attention.
        *interventions: Interventions, one by one or as a list.
        record: Whether the masked keys of each call are kept, in `masked`.

    Returns:
        Active interventions; `effect` has the amount of attention removed, `masked` the masked keys.

    Raises:
        InterventionError: If an intervention names layers or heads that the model does not have.
    """
    root = module_of(model)
    shape = Shape.of(root)
    every: list[Intervention] = []
    for one in interventions:
        every += one if isinstance(one, list | tuple) else [one]  # type: ignore[list-item]
    for each in every:
        if not isinstance(each, Intervention):
            raise InterventionError(f"Expected interventions such as MaskSinks(k=5), got {each!r}.")
        each.check(shape)
    active = Active(tuple(every), masked=[] if record else None)
    if getattr(model, "tokenizer", None) is not None:
        active.memory.kinds_of = KindsOf(model.tokenizer, getattr(model, "mask_id", None))
    for each in every:
        if not each.is_noop:
            each.prepare(model, active.memory)
    with ExitStack() as stack:
        for each in every:
            if isinstance(each, ActivationIntervention) and not each.is_noop:
                stack.enter_context(hook(root, each.where(shape), partial(active.act, each)))
        listener = stack.enter_context(patched(root, active))
        yield active
    for each in every:
        each.check(Shape.seen(listener))
