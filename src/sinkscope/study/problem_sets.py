"""The driver's side of a study: which problems a unit asks, as prompts for a worker, and whether its answers are right."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from sinkscope.study.schema import Study
from sinkscope.study.units import Job, Prompt, Unit, kind_of, perform
from sinkscope.tasks import Problem, problems


@functools.lru_cache(maxsize=32)
def draw_problems(name: str, count: int, split: str, seed: int, difficulty: int | None) -> dict[int, Problem]:
    """The problems of a task by their numbers, shortest first: chunks are of like length, so that little is padded."""
    drawn = enumerate(problems(name, n=count, split=split, seed=seed, difficulty=difficulty))
    return dict(sorted(drawn, key=lambda item: (len(item[1].prompt), item[0])))


class ProblemSets:
    """The problems of a study. The same answer to the same problem is judged once: a program's verdict takes time."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.verdicts: dict[tuple[str, str], bool] = {}  # by prompt and answer

    def unit_problems(self, unit: Unit) -> dict[int, Problem]:
        """The unit's problems by their numbers; none of a kind that asks none."""
        task = next((task for task in self.study.tasks if task.name == unit.task), None)
        count = 0 if task is None else kind_of(unit).count_problems(self.study, task)
        if task is None or not count:
            return {}
        everything = draw_problems(task.name, count, self.study.split, self.study.seed, task.difficulty)
        return dict(list(everything.items())[unit.first : unit.last])

    def make_job(self, unit: Unit) -> Job:
        """What a worker gets."""
        found = self.unit_problems(unit).items()
        return Job(unit, tuple(Prompt(number, one.prompt, answer=one.answer) for number, one in found))

    def grade(self, unit: Unit, found: dict[str, Any]) -> dict[str, Any]:
        """What a worker found, with a verdict on every answer."""
        asked = self.unit_problems(unit)

        def right(number: int, text: str) -> bool:
            key = asked[number].prompt, text
            if key not in self.verdicts:
                self.verdicts[key] = bool(asked[number].check(text))
            return self.verdicts[key]

        return kind_of(unit).grade(found, right)


def run_unit(study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
    """One unit from its problems to what is stored, in this process."""
    sets = ProblemSets(study)
    return sets.grade(unit, perform(study, sets.make_job(unit), folder))
