"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sinkscope.decoding import decode
from sinkscope.decoding.run import Step
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit, UnitKind, Workload, conditions_for, decoded_units, decoding
from sinkscope.study.units.given import AfterFirst, asked, batch_of, changed, model_for


class AnswersKind(UnitKind):
    """Every condition of the study, every task, a chunk of problems at a time."""

    name = "answers"
    order = 10
    unchanged = "tokens"
    what = "the answer to a problem of {task},"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        conditions = [] if info.likelihood else conditions_for(study, info)
        return decoded_units("answers", study, info, conditions, study.chunk)

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        return decoding(unit.decoder, unit.last - unit.first, prompt)

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """Answer a chunk of problems under the unit's condition."""
        model = model_for(study, unit)
        chunk = asked(study, unit)
        ids, mask = batch_of(model, [problem.prompt for _, problem in chunk])
        with changed(study, unit, model, [number for number, _ in chunk]) as taken:
            commits = Commits(taken)
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
        return {"rows": rows, "effect": taken.effect(), "forwards": done.forwards}


@dataclass
class Commits:
    """How sure the model was of what it committed, row by row."""

    taken: AfterFirst
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
