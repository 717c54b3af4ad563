"""Why masking hurts where it does: is confidence lost, and the commit late, where a token looked at the masked sink?

The first forward is the same with and without masking, so that the second forward sees the same canvas in both runs.
There the change of confidence is the effect of the mask alone. Dependence is what each position paid, in the clean run,
to the keys that the mask takes; positions of one problem are split at its median.

With one commit per step a position can only come later if another comes earlier: delays add up to nothing. So everything
is decoded once more with commits by a threshold, where lower confidence delays commits and takes more steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.forward import seeded
from sinkscope.attention.patch import patched
from sinkscope.conditions import Condition
from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.decoding.cost import Workload, forwards_of
from sinkscope.decoding.settings import Decode
from sinkscope.errors import StudyError
from sinkscope.interventions import MaskRandom, MaskSinks, intervene
from sinkscope.interventions.base import top
from sinkscope.results.rows import Interval, Mechanism
from sinkscope.statistics import bootstrap
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Job, Load, ModelInfo, Rows, Unit, UnitKind, decoded_units
from sinkscope.study.units.worker import encode_batch, model_for, row_seeds

LEAST_STEPS = 2  # what the second forward sees is compared
SURE = 0.99  # probability from which a token is committed where their number is free; lower, and hardly one stays open
LOOKED = 1  # the forward at which confidence is compared: the first one that masking changes


class MechanismKind(UnitKind):
    """Diffusion models whose every forward takes the whole canvas, at the first point of a sweep.

    Block-causal ones are left out, as autoregressive ones are: their second forward may be of another block, with other
    keys, and most of the canvas has no confidence in it.
    """

    name = "mechanism"
    order = 20

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        problems = study.mechanism.problems
        if info.causal or not info.answers or not problems:
            return []
        setting, settings = next(iter(info.settings.items()))
        if settings.get("block_causal"):
            return []
        steps = settings.get("steps")
        if steps is not None and steps < LEAST_STEPS:
            told = f"The mechanism needs at least {LEAST_STEPS} steps, and {info.name} decodes in {steps}"
            raise StudyError(f"{told}; give decode more steps, or leave the mechanism out.")
        conditions = [Condition.of(MaskSinks(k)) for k in study.mechanism.k]
        first = replace(info, settings={setting: settings})
        return decoded_units("mechanism", study, first, conditions, study.chunk, problems)

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        both = (unit.decoder, with_threshold_commits(unit.decoder))
        parts = [part for one in both for part in forwards_of(one, unit.last - unit.first, prompt)]
        return [replace(part, forwards=part.forwards * 3) for part in parts]  # clean, no sinks, no random keys

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        return {"mechanism": mechanism_rows(study, units, load)}

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        return study.mechanism.problems

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """One row per problem: change of confidence and of the commit step in the half that depended more, and in the other."""
        unit, numbers = job.unit, [prompt.number for prompt in job.prompts]
        model, k = model_for(study, unit), unit.condition.k
        ids, mask = encode_batch(model, job.prompts)
        seeds = row_seeds(study, unit, numbers)

        def decoded(settings: Decode) -> tuple[list[Watch], Tensor | None]:
            """Clean, without sinks, without random keys; and what each position depended on in the clean run."""
            watches, tap = [], Dependence(k)
            for change in (None, MaskSinks(k=k), MaskRandom(k=k, seed=study.seed)):
                watches.append(Watch())
                with patched(model.module, tap) if change is None else intervene(model, change), seeded(seeds):
                    decode(model, ids, settings, attention_mask=mask, history=False, on_step=watches[-1])
            if tap.paid is None:  # all was committed at the first forward
                return watches, None
            # Where tokens are predicted from the position before them, theirs is what that one paid.
            return watches, tap.dependence().roll(1, dims=1) if model.shift else tap.dependence()

        (planned, depends), (free, freely_depends) = map(decoded, (unit.decoder, with_threshold_commits(unit.decoder)))
        if depends is None or any(not len(watch.confidence) for watch in planned):
            return {"rows": [{"problem": number, "positions": 0} for number in numbers]}
        rows = []
        for row, number in enumerate(numbers):
            found = _compared(row, depends[row], planned)
            rows.append({"problem": number, **found, **_delayed(row, freely_depends, free)})
        return {"rows": rows}


@dataclass
class Dependence(Tap):
    """Attention that every query pays at the second forward to the top keys of the first, averaged over layers and heads."""

    k: int
    picked: dict[int, Tensor] = field(default_factory=dict)  # layer → bool [batch, head, key]
    paid: Tensor | None = None  # [batch, query], summed over layers
    layers: int = 0

    def needs_sums_fused(self, call: Call) -> bool:
        return call.forward is not None and call.forward.step <= LOOKED

    def take(self, call: Call, outcome: CallResult) -> None:
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
    """Confidence at the second forward, and the step at which each position was committed; both [batch, position]."""

    confidence: Tensor = field(default_factory=lambda: torch.empty(0))
    committed_at: Tensor = field(default_factory=lambda: torch.empty(0))

    def __call__(self, step: Step) -> None:
        if not len(self.committed_at):
            self.committed_at = torch.full(step.canvas.shape, -1)
        self.committed_at[step.committed.cpu()] = step.index
        if step.index == LOOKED:
            self.confidence = step.confidence.cpu()


def with_threshold_commits(settings: Decode) -> Decode:
    """The same canvas as one block, with as many commits per step as the model is sure of."""
    words = {name: getattr(settings, name) for name in ("eos_id", "eot_id", "forbid_eos", "seed", "noise")}
    return Decode.parallel(settings.length, None, threshold=SURE, **words)


def _compared(row: int, depends: Tensor, watches: Sequence[Watch]) -> dict[str, float | int]:
    """Confidence at the second forward, and commit steps, where all three runs left a position open; depends: [position]."""
    clean, *masked = [(watch.confidence[row], watch.committed_at[row]) for watch in watches]
    places = torch.stack([confidence.isfinite() for confidence, _ in (clean, *masked)]).all(0).nonzero().squeeze(-1)
    found: dict[str, float | int] = {"positions": len(places)}
    if len(places) < 2:
        return found
    for half, at in _halves(depends, places).items():
        found[f"dependence_{half}"] = float(depends[at].double().mean())
        for name, (confidence, committed_at) in zip(("sinks", "random"), masked, strict=True):
            found[f"confidence_{name}_{half}"] = float((confidence[at] - clean[0][at]).double().mean())
            found[f"delay_{name}_{half}"] = float((committed_at[at] - clean[1][at]).double().mean())
    return found


def _halves(depends: Tensor, places: Tensor) -> dict[str, Tensor]:
    """The places that depended more, and those that depended less; depends: [position]."""
    order = places[depends[places].double().argsort(stable=True, descending=True)]
    return {"high": order[: len(order) // 2], "low": order[(len(order) + 1) // 2 :]}


def _delayed(row: int, depends: Tensor | None, free: Sequence[Watch]) -> dict[str, float]:
    """Where commits are free: the delay of what the clean run left open at the first forward, which masking does not change."""
    before, *after = (watch.committed_at[row] for watch in free)
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


# ---- rows of results.json


def mechanism_rows(study: Study, units: Sequence[Unit], load: Load) -> list[Mechanism]:
    """Confidence and commit delay in the half of the positions that depended more on the masked keys, and in the other."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    units_of: dict[str, str] = {}
    for unit in units:
        units_of[unit.shown] = "nats" if unit.decode.get("confidence") == "entropy" else "points"
        rows = [row for row in load(unit)["rows"] if row["positions"] >= 2]
        found.setdefault((unit.shown, unit.condition.k), []).extend(rows)
    return [
        Mechanism(model, k, len(rows), units_of[model], **_summarise_halves(study, rows))
        for (model, k), rows in found.items()
    ]


def _summarise_halves(study: Study, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of both halves, and the gaps between them under sinks and random keys, problem by problem."""
    if not rows:
        return {}
    names = [name for name in rows[0] if name.startswith(("dependence", "confidence", "delay"))]
    entry: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in names}
    for what in ("confidence", "delay"):
        sinks, random = _gaps(rows, what)
        entry[f"{what}_sinks_gap"] = _mean(study, sinks)
        entry[f"{what}_random_gap"] = _mean(study, random)
        entry[f"{what}_gap_beyond_random"] = _mean(study, sinks - random)
    free = [row for row in rows if "free_delay_sinks" in row]
    if not free:
        return entry
    # Where the number of commits per step is free: of all positions, between the halves, and of the last one.
    sinks, random = _gaps(free, "free_delay")
    entry["free_problems"] = len(free)
    entry["free_delay_sinks_gap"] = _mean(study, sinks)
    entry["free_delay_gap_beyond_random"] = _mean(study, sinks - random)
    for what in ("free_delay", "free_steps"):
        sinks, random = (np.array([row[f"{what}_{keys}"] for row in free]) for keys in ("sinks", "random"))
        entry[f"{what}_sinks"] = _mean(study, sinks)
        entry[f"{what}_beyond_random"] = _mean(study, sinks - random)
    entry["free_delay_random"] = _mean(study, np.array([row["free_delay_random"] for row in free]))
    return entry


def _gaps(rows: Sequence[Mapping[str, Any]], what: str) -> list[npt.NDArray[np.float64]]:
    """The half that looked more less the other, a number per problem: under sinks, and under random keys."""
    return [
        np.array([row[f"{what}_{keys}_high"] - row[f"{what}_{keys}_low"] for row in rows])
        for keys in ("sinks", "random")
    ]


def _mean(study: Study, values: npt.NDArray[np.float64]) -> Interval:
    low, high = bootstrap(values.tolist(), study.draws, study.seed)
    return Interval(float(values.mean()), low, high)
