"""Why masking hurts where it does: is confidence lost, and the commit late, where a token looked at the masked sink?

The first forward is the same with and without masking, so that the second forward sees the same canvas in both runs:
there, the change of confidence is the effect of the mask alone. Dependence is what each position paid, in the clean run,
to the keys that the mask takes; positions of one problem are split at its median.

With one commit per step a position can only come later if another comes earlier: delays add up to nothing. So everything
is decoded once more with commits by a threshold, where a model that is less sure takes more steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Outcome, Tap
from sinkscope.attention.capture import listening
from sinkscope.attention.context import seeded
from sinkscope.decoding import decode
from sinkscope.decoding.run import Step
from sinkscope.errors import StudyError
from sinkscope.interventions import MaskRandom, MaskSinks, intervene
from sinkscope.interventions.base import top
from sinkscope.interventions.conditions import Condition
from sinkscope.settings.decode import Decode
from sinkscope.study.schema import LEAST_STEPS, Study
from sinkscope.study.unit import ModelInfo, Unit
from sinkscope.study.units.base import Kind
from sinkscope.study.units.given import asked, batch_of, model_for, row_seeds

SURE = 0.99  # probability from which a token is committed where their number is free; lower, and hardly one stays open
LOOKED = 1  # the forward at which confidence is compared: the first one that masking changes


class MechanismKind(Kind):
    """Diffusion models whose every forward takes the whole canvas, at the first point of a sweep.

    Block-causal ones are left out, as autoregressive ones are: their second forward may be of another block, with other
    keys, and most of the canvas has no confidence in it.
    """

    name = "mechanism"
    order = 20

    def plan(self, study: Study, fact: ModelInfo) -> list[Unit]:
        problems = study.mechanism.problems
        if fact.causal or fact.likelihood or not problems:
            return []
        setting, settings = next(iter(fact.settings.items()))
        if settings.get("block_causal"):
            return []
        steps = settings.get("steps")
        if steps is not None and steps < LEAST_STEPS:
            raise StudyError(
                f"The mechanism needs at least {LEAST_STEPS} steps, and {fact.name} decodes in {steps}; "
                "give decode more steps, or leave the mechanism out."
            )
        return [
            Unit("mechanism", fact.asked, Condition("mask_sinks", k, "clean", "all"), setting, task.name, first,
                 min(first + study.chunk, problems), index, settings, fact.name)
            for k in study.mechanism.k
            for task in study.tasks
            for index, first in enumerate(range(0, problems, study.chunk))
        ]  # fmt: skip

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        return mechanism(study, unit)


@dataclass
class Dependence(Tap):
    """Attention that every query pays at the second forward to the top keys of the first, averaged over layers and heads."""

    k: int
    picked: dict[int, Tensor] = field(default_factory=dict)  # layer → bool [batch, head, key]
    paid: Tensor | None = None  # [batch, query], summed over layers
    layers: int = 0

    def watches(self, call: Call) -> bool:
        return call.forward is not None and call.forward.step <= LOOKED

    def take(self, call: Call, outcome: Outcome) -> None:
        if call.forward is None or call.forward.step > LOOKED:
            return
        if call.forward.step == 0:
            self.picked[call.layer] = top(outcome.clean.sum(2), self.k)
            return
        scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
        keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
        scores = call.q.float() @ keys.float().mT * scale  # [batch, head, query, key]
        if call.real_keys is not None:
            scores = scores.masked_fill(~call.real_keys[:, None, None], -torch.inf)
        paid = (scores.softmax(-1) * self.picked[call.layer][:, :, None]).sum(-1).mean(1).cpu()
        self.paid = paid if self.paid is None else self.paid + paid
        self.layers += 1

    def dependence(self) -> Tensor:
        """[batch, query], 0 … 1."""
        assert self.paid is not None
        return self.paid / self.layers


@dataclass
class Watch:
    """Confidence at the second forward, and the step at which each position was committed."""

    confidence: Tensor | None = None  # [batch, position]
    committed_at: Tensor | None = None

    def __call__(self, step: Step) -> None:
        if self.committed_at is None:
            self.committed_at = torch.full(step.canvas.shape, -1)
        self.committed_at[step.committed.cpu()] = step.index
        if step.index == LOOKED:
            self.confidence = step.confidence.cpu()


def mechanism(study: Study, unit: Unit) -> dict[str, Any]:
    """One row per problem: change of confidence and of the commit step in the half that depended more, and in the other."""
    model = model_for(study, unit)
    chunk = asked(study, unit, limit=study.mechanism.problems)
    ids, mask = batch_of(model, [problem.prompt for _, problem in chunk])
    settings, k = Decode.from_dict(dict(unit.decode)), unit.condition.k
    clean, masked, control, tap = Watch(), Watch(), Watch(), Dependence(k)
    with listening(model.module, tap):
        decode(model, ids, settings, attention_mask=mask, history=False, on_step=clean)
    seeds = row_seeds(study, unit, [number for number, _ in chunk])
    changes = MaskSinks(k=k), MaskRandom(k=k, seed=study.seed)
    for watch, change in zip((masked, control), changes, strict=True):
        with intervene(model, change), seeded(seeds):
            decode(model, ids, settings, attention_mask=mask, history=False, on_step=watch)
    free, free_tap = [Watch(), Watch(), Watch()], Dependence(k)
    for watch, one in zip(free, (None, *changes), strict=True):
        with ExitStack() as stack:
            stack.enter_context(listening(model.module, free_tap) if one is None else intervene(model, one))
            stack.enter_context(seeded(seeds))
            decode(model, ids, freely(settings), attention_mask=mask, history=False, on_step=watch)
    if any(watch.confidence is None for watch in (clean, masked, control)):  # all was committed at the first forward
        return {"rows": [{"problem": number, "positions": 0} for number, _ in chunk]}
    depends, freely_depends = (_of_predicted(one, model.shift) for one in (tap, free_tap))
    rows = []
    for row, (number, _) in enumerate(chunk):
        found = _compared(row, depends, clean, masked, control)
        rows.append({"problem": number, **found, **_delayed(row, freely_depends, free)})
    return {"rows": rows}


def _of_predicted(tap: Dependence, shift: bool) -> Tensor | None:
    """[batch, position]; where tokens are predicted from the position before them, theirs is what that one paid."""
    if tap.paid is None:  # all was committed at the first forward
        return None
    return tap.dependence().roll(1, dims=1) if shift else tap.dependence()


def freely(settings: Decode) -> Decode:
    """The same canvas as one block, with as many commits per step as the model is sure of."""
    words = {name: getattr(settings, name) for name in ("eos_id", "eot_id", "forbid_eos", "seed", "noise")}
    return Decode.parallel(settings.length, None, threshold=SURE, **words)


def _compared(
    row: int, depends: Tensor | None, clean: Watch, masked: Watch, control: Watch
) -> dict[str, float | int | None]:
    assert depends is not None
    assert clean.confidence is not None and masked.confidence is not None and control.confidence is not None
    assert clean.committed_at is not None and masked.committed_at is not None and control.committed_at is not None
    open_ = clean.confidence[row].isfinite() & masked.confidence[row].isfinite() & control.confidence[row].isfinite()
    places = open_.nonzero().squeeze(-1)
    found: dict[str, float | int | None] = {"positions": len(places)}
    if len(places) < 2:
        return found
    for half, at in _halves(depends[row], places).items():
        found[f"dependence_{half}"] = float(depends[row, at].double().mean())
        for name, watch in (("sinks", masked), ("random", control)):
            assert watch.confidence is not None and watch.committed_at is not None
            change = watch.confidence[row, at] - clean.confidence[row, at]
            late = (watch.committed_at[row, at] - clean.committed_at[row, at]).double()
            found[f"confidence_{name}_{half}"] = float(change.double().mean())
            found[f"delay_{name}_{half}"] = float(late.mean())
    return found


def _halves(depends: Tensor, places: Tensor) -> dict[str, Tensor]:
    """The places that depended more, and those that depended less; depends: [position]."""
    order = places[depends[places].double().argsort(stable=True, descending=True)]
    return {"high": order[: len(order) // 2], "low": order[(len(order) + 1) // 2 :]}


def _delayed(row: int, depends: Tensor | None, free: Sequence[Watch]) -> dict[str, float]:
    """Where commits are free: the delay of what the clean run left open at the first forward, which masking does not change."""
    before, *after = (_committed(watch)[row] for watch in free)
    places = (before > 0).nonzero().squeeze(-1)
    if depends is None or len(places) < 2:
        return {}
    found: dict[str, float] = {"free_positions": len(places)}
    for name, steps in zip(("sinks", "random"), after, strict=True):
        late = (steps - before).double()
        found[f"free_delay_{name}"] = float(late[places].mean())
        for half, at in _halves(depends[row], places).items():
            found[f"free_delay_{name}_{half}"] = float(late[at].mean())
        found[f"free_steps_{name}"] = float(steps.max() - before.max())
    return found


def _committed(watch: Watch) -> Tensor:
    assert watch.committed_at is not None
    return watch.committed_at
