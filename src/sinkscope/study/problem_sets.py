"""The driver's side of a study: which problems a unit asks, as prompts for a worker, and whether its answers are right."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.models.hub import TOKENIZER, fetch_snapshot
from sinkscope.models.load import load, load_config_only
from sinkscope.models.model import Model
from sinkscope.study.schema import Study, TaskPlan, name_and_mode
from sinkscope.study.units import Job, ModelInfo, Prompt, Unit, kind_of, perform
from sinkscope.study.units.worker import IN_MEMORY
from sinkscope.tasks import Problem, problems
from sinkscope.tasks.benchmarks import Benchmark
from sinkscope.tasks.problem import digest_prompts, read_prompts


@functools.lru_cache(maxsize=32)
def number_problems(file: str | None, count: int, **drawn: Any) -> dict[int, Problem]:
    """The problems of a task or of a file by their numbers, shortest first: chunks are of like length, little is padded."""
    found = problems(n=count, **drawn) if file is None else read_prompts(file)[:count]
    return dict(sorted(enumerate(found), key=lambda item: (len(item[1].prompt), item[0])))


class ProblemSets:
    """The problems of a study. The same answer to the same problem is judged once: a program's verdict takes time."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.verdicts: dict[tuple[str, str, int, str], bool] = {}  # by model, task, problem and answer
        self.benchmarks: dict[tuple[str, str], Benchmark] = {}  # by model and task
        self.outlines: dict[str, Model] = {}

    # ---- benchmarks

    def benchmark(self, model: str, task: TaskPlan) -> Benchmark:
        """A benchmark as this model is asked it."""
        if (model, task.name) not in self.benchmarks:
            if model not in self.outlines:
                self.outlines[model] = load_outline(model)
            limit = None if self.study.sequential else task.problems
            words = {name: value for name, value in self.study.decode.items() if not isinstance(value, list)}
            plan = replace(task.benchmark(), decode={**words, **task.decode})
            self.benchmarks[model, task.name] = Benchmark(plan, self.outlines[model], limit)
        return self.benchmarks[model, task.name]

    def count_problems(self) -> Study:
        """The study with the size of every benchmark and file in it; what is missing is told before a model is loaded."""
        tasks = []
        for task in self.study.tasks:
            sizes = [self.benchmark(model, task).size for model in self.study.models] if task.is_benchmark else []
            if task.prompts is not None:
                read = len(read_prompts(task.prompts))
                sized = min(task.problems or read, read)
                tasks.append(replace(task, problems=sized, digest=digest_prompts(task.prompts)))
                continue
            tasks.append(replace(task, problems=min(task.problems or max(sizes), *sizes)) if sizes else task)
        self.study = replace(self.study, tasks=tuple(tasks))
        return self.study

    def add_protocols(self, info: ModelInfo) -> ModelInfo:
        """The model with the settings of its protocols, which its plan needs."""
        own = {task.name: self.benchmark(info.asked, task) for task in self.study.tasks if task.is_benchmark}
        if not own or not info.answers:
            return info
        points = dict(self.study.settings())
        protocols = {
            name: {label: one.settings(points[label]).to_dict() for label in info.settings} for name, one in own.items()
        }
        return replace(info, protocols=protocols, benchmarks={name: one.about for name, one in own.items()})

    def describe(self, models: Sequence[ModelInfo]) -> list[str]:
        """How each model is asked each benchmark, and which scores others report: worth knowing before a run."""
        lines = []
        for task in self.study.tasks:
            read = [] if task.prompts is None else read_prompts(task.prompts)[: task.problems]
            if count := sum(not one.is_judged for one in read):
                what = "prompts have no answer and no check, and count as not right"
                lines.append(f"{task.name}: {count} of {len(read)} {what}")
        for info in models:
            for task in self.study.tasks if info.benchmarks else ():
                if not task.is_benchmark:
                    continue
                one = self.benchmark(info.asked, task)
                settings = ", ".join(f"{name}={value}" for name, value in one.settings().to_dict().items())
                lines.append(f"{info.name}, {task.name}: protocol {one.protocol.name}, {one.how}; {settings}")
                for row in one.published:
                    lines.append(f"{info.name}, {task.name}: {row['score']:g} % without masking, by {row['by']}")
        return lines

    # ---- units

    def task_of(self, unit: Unit) -> TaskPlan | None:
        return next((task for task in self.study.tasks if task.name == unit.task), None)

    def order(self, task: TaskPlan) -> Sequence[int]:
        """Numbers of a benchmark's problems as chunks are cut from them; a random order where rounds are looked at."""
        count = task.problems or 0
        return random.Random(self.study.seed).sample(range(count), count) if self.study.sequential else range(count)

    def unit_problems(self, unit: Unit) -> dict[int, Problem]:
        """The problems of ours that a unit asks, by their numbers."""
        task = self.task_of(unit)
        count = 0 if task is None else kind_of(unit).count_problems(self.study, task)
        if task is None or not count:
            return {}
        drawn = {"kind": task.name, "split": self.study.split, "seed": self.study.seed, "difficulty": task.difficulty}
        everything = number_problems(task.prompts, count, **drawn)
        numbers = (
            sorted(everything) if self.study.sequential else list(everything)
        )  # rounds are asked as they are drawn
        return {number: everything[number] for number in numbers[unit.first : unit.last]}

    def make_job(self, unit: Unit) -> Job:
        """What a worker gets."""
        task = self.task_of(unit)
        if task is not None and task.is_benchmark:
            asked = self.benchmark(unit.model, task)
            numbers = self.order(task)[unit.first : unit.last]
            return Job(unit, tuple(Prompt(number, "", *asked.prompt(number)) for number in numbers))
        found = self.unit_problems(unit).items()
        return Job(unit, tuple(Prompt(number, one.prompt, answer=one.answer) for number, one in found))

    def grade(self, unit: Unit, found: dict[str, Any]) -> dict[str, Any]:
        """What a worker found, with a verdict on every answer."""
        task = self.task_of(unit)
        if task is not None and task.is_benchmark:
            self._judge_together(unit, task, found)
        asked = {} if task is None or task.is_benchmark else self.unit_problems(unit)

        def right(number: int, text: str) -> bool:
            key = unit.model, unit.task, number, text
            if key not in self.verdicts:
                self.verdicts[key] = bool(asked[number].check(text))
            return self.verdicts[key]

        return kind_of(unit).grade(found, right)

    def _judge_together(self, unit: Unit, task: TaskPlan, found: Mapping[str, Any]) -> None:
        """All answers of a unit at once: several sandboxes run at a time."""
        rows = [row for rows in found.values() if isinstance(rows, list) for row in rows if isinstance(row, dict)]
        answers = {
            (row["problem"], text): None for row in rows if "text" in row for text in row.get("texts", [row["text"]])
        }
        new = [pair for pair in answers if (unit.model, unit.task, *pair) not in self.verdicts]
        if new:
            numbers, texts = [number for number, _ in new], [text for _, text in new]
            for pair, verdict in zip(new, self.benchmark(unit.model, task).grade(numbers, texts), strict=True):
                self.verdicts[unit.model, unit.task, *pair] = verdict


def load_outline(label: str, need_tokenizer: bool = True) -> Model:
    """A model without its weights, whose tokenizer lays prompts out."""
    if label in IN_MEMORY:
        return IN_MEMORY[label]
    name, mode = name_and_mode(label)
    model = load_config_only(name)
    if model.tokenizer is None and not Path(name).expanduser().exists():
        model.tokenizer = model.family.load_tokenizer(fetch_snapshot(name, TOKENIZER))
    if model.tokenizer is None and need_tokenizer:  # a GGUF file has it inside
        model = load(name)
    if model.tokenizer is None and need_tokenizer:
        raise StudyError(f"Expected a model with a tokenizer for a benchmark, and {name} has none; add its files.")
    return model if mode is None else model.in_mode(mode)


def run_unit(study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
    """One unit from its problems to what is stored, in this process."""
    sets = ProblemSets(study)
    return sets.grade(unit, perform(study, sets.make_job(unit), folder))
