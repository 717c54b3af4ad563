"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sinkscope.attention.context import seeded
from sinkscope.decoding import decode
from sinkscope.decoding.run import Step
from sinkscope.interventions import Active, intervene
from sinkscope.settings.decode import Decode
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit
from sinkscope.study.units.base import Kind, decode_of, wanted
from sinkscope.study.units.given import asked, batch_of, model_for, row_seeds
from sinkscope.tasks import Problem


class AnswersKind(Kind):
    """Every condition of the study, every task, a chunk of problems at a time."""

    name = "answers"
    order = 10
    unchanged = "tokens"
    what = "the answer to a problem of {task},"

    def plan(self, study: Study, fact: ModelInfo) -> list[Unit]:
        if fact.likelihood:
            return []
        return [
            Unit("answers", fact.asked, condition, setting, task.name, first, min(first + study.chunk, task.problems),
                 index, decode_of(fact, setting, condition), fact.name)
            for setting in fact.settings
            for condition in wanted(study, fact)
            for task in study.tasks
            for index, first in enumerate(range(0, task.problems, study.chunk))
        ]  # fmt: skip

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        return answers(study, unit)


@dataclass
class Commits:
    """How sure the model was of what it committed, row by row."""

    total: Tensor | None = None
    count: Tensor | None = None
    first: dict[str, float] = field(default_factory=dict)  # what an intervention had counted after the first forward
    active: Active | None = None

    def __call__(self, step: Step) -> None:
        sure = step.confidence.double().masked_fill(~step.committed, 0.0).nan_to_num(0.0).sum(1).cpu()
        number = step.committed.sum(1).cpu()
        self.total = sure if self.total is None else self.total + sure
        self.count = number if self.count is None else self.count + number
        if step.index == 0 and self.active is not None:
            self.first = dict(vars(self.active.effect))

    def means(self) -> list[float]:
        assert self.total is not None and self.count is not None
        means: list[float] = (self.total / self.count.clamp(min=1)).tolist()
        return means

    def effect(self) -> dict[str, float]:
        """Keys and attention that were there and that were taken, from the second forward on."""
        if self.active is None:
            return {}
        now = vars(self.active.effect)
        taken = {name: now[name] - self.first.get(name, 0) for name in ("keys", "keys_seen", "mass", "mass_seen")}
        moved = {"moved": self.active.effect.moved_share} if now["moved_seen"] else {}
        return {**taken, "leak": now["leak"], **moved}


def answers(study: Study, unit: Unit) -> dict[str, Any]:
    """Answer a chunk of problems under the unit's condition."""
    model = model_for(study, unit)
    chunk = asked(study, unit)
    ids, mask = batch_of(model, [problem.prompt for _, problem in chunk])
    commits = Commits()
    intervention = unit.condition.intervention(study.seed, model.causal)
    settings = Decode.from_dict(dict(unit.decode))
    with seeded(row_seeds(study, unit, [number for number, _ in chunk])):
        if intervention is None:
            done = decode(model, ids, settings, attention_mask=mask, history=False, on_step=commits)
        else:
            with intervene(model, intervention) as active:
                commits.active = active
                done = decode(model, ids, settings, attention_mask=mask, history=False, on_step=commits)
    rows = []
    for (number, problem), tokens, sure in zip(
        chunk, [answer.cpu() for answer in done.returned], commits.means(), strict=True
    ):
        text = model.decode_text(tokens)
        right = _right(problem, text)
        rows.append({"problem": number, "correct": right, "text": text, "tokens": tokens.tolist(), "confidence": sure})
    return {"rows": rows, "effect": commits.effect(), "forwards": done.forwards}


def _right(problem: Problem, text: str) -> bool:
    """Whether the answer is right; the same answer to the same problem is judged once (a program's verdict takes time)."""
    known = _verdicts.get((problem.prompt, text))
    if known is None:
        known = _verdicts[problem.prompt, text] = bool(problem.check(text))
    return known


_verdicts: dict[tuple[str, str], bool] = {}
