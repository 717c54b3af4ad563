"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sinkscope.attention.context import seeded
from sinkscope.decoding import decode
from sinkscope.decoding.run import Step
from sinkscope.interventions import intervene
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit
from sinkscope.study.units import UnitKind, Workload, conditions_for, decoded_units, decoding
from sinkscope.study.units.given import AfterFirst, asked, batch_of, model_for, row_seeds


class AnswersKind(UnitKind):
    """Every condition of the study, every task, a chunk of problems at a time."""

    name = "answers"
    order = 10
    unchanged = "tokens"
    what = "the answer to a problem of {task},"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        return (
            [] if info.likelihood else decoded_units("answers", study, info, conditions_for(study, info), study.chunk)
        )

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        return decoding(unit.decoder, unit.last - unit.first, prompt)

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """Answer a chunk of problems under the unit's condition."""
        model = model_for(study, unit)
        chunk = asked(study, unit)
        ids, mask = batch_of(model, [problem.prompt for _, problem in chunk])
        commits = Commits()
        intervention = unit.condition.intervention(study.seed, model.causal)
        with ExitStack() as stack:
            stack.enter_context(seeded(row_seeds(study, unit, [number for number, _ in chunk])))
            if intervention is not None:
                commits.taken.active = stack.enter_context(intervene(model, intervention))
            done = decode(model, ids, unit.decoder, attention_mask=mask, history=False, on_step=commits)
        rows = []
        for (number, problem), returned, sure in zip(chunk, done.returned, commits.means(), strict=True):
            tokens = returned.cpu()
            text = model.decode_text(tokens)
            if (right := _verdicts.get((problem.prompt, text))) is None:
                right = _verdicts[problem.prompt, text] = bool(problem.check(text))
            rows.append(
                {"problem": number, "correct": right, "text": text, "tokens": tokens.tolist(), "confidence": sure}
            )
        return {"rows": rows, "effect": commits.taken.effect(), "forwards": done.forwards}


@dataclass
class Commits:
    """How sure the model was of what it committed, row by row."""

    taken: AfterFirst = field(default_factory=AfterFirst)
    total: Tensor | None = None
    count: Tensor | None = None

    def __call__(self, step: Step) -> None:
        sure = step.confidence.double().masked_fill(~step.committed, 0.0).nan_to_num(0.0).sum(1).cpu()
        number = step.committed.sum(1).cpu()
        self.total = sure if self.total is None else self.total + sure
        self.count = number if self.count is None else self.count + number
        if step.index == 0:
            self.taken.begin()

    def means(self) -> list[float]:
        assert self.total is not None and self.count is not None
        means: list[float] = (self.total / self.count.clamp(min=1)).tolist()
        return means


# The same answer to the same problem is judged once: a program's verdict takes time.
_verdicts: dict[tuple[str, str], bool] = {}  # by prompt and text
