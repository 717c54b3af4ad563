"""What a problem is, what a kind of problem is, the register of kinds, and their endless, seeded supply."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sinkscope.errors import TaskError
from sinkscope.files import MB, read_text, report_damage, short
from sinkscope.registry import Registry
from sinkscope.validation import FieldError, FromZero, settings, validate

Source = random.Random
DIFFICULTIES = (1, 2, 3)
SPLITS = ("train", "validation", "test")
# The names and things that all kinds of problems speak of.
NAMES = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Ida", "Leo", "Mia", "Sam", "Tom")
THINGS = ("apples", "books", "cards", "coins", "eggs", "keys", "pens", "shells")
COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold")
# Of a hundred buckets of content: 10 are test, 5 validation, the rest train.
_TEST, _VALIDATION = 10, 15
_PATIENCE = 10_000  # draws before a split is taken to be empty
_REPEATS = 100  # prompts seen already, in a row, before the fresh ones are taken to have run out
_TRIED, _FEW = 200, 10  # draws that say whether a kind has so few prompts that they cannot be split


@dataclass(frozen=True)
class Problem:
    """One problem of a task, with its worked answer and a checker.

    Args:
        kind: Name of the task.
        prompt: Text of the problem.
        answer: Worked answer.
        difficulty: Difficulty (1, 2 or 3).
        key: Content that decides the split: template and numbers, without decoration.
        data: Values that the checker needs besides the text, such as the hidden tests of a program.
    """

    kind: str
    prompt: str
    answer: str
    difficulty: int
    key: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def check(self, text: str) -> bool:
        """Decide whether a text answers the problem.

        Args:
            text: Answer of a model; malformed answers are wrong.
        """
        if not isinstance(text, str):
            raise TaskError(f"Expected an answer as text, got {text!r}.")
        return TASKS[self.kind].check(self, before_markers(text))


@dataclass(frozen=True)
class Task:
    """Task: a supply of problems of one kind.

    Args:
        name: Name of the task.
        draw: Function that makes a problem from a random source (`Source`), a difficulty and the options.
        check: Function that decides whether a text answers a problem. It must accept any string and return False for
            malformed answers.
        options: Names of the options that `draw` takes.
    """

    name: str
    draw: Callable[..., Problem]
    check: Callable[[Problem, str], bool]
    options: frozenset[str] = frozenset()


TASKS: Registry[Task] = Registry("task", TaskError)


def register(task: Task, *, replace: bool = False) -> Task:
    """Register a task, so that studies and `problems` know its name.

    Args:
        task: Task to register.
        replace: Whether a task of the same name may be replaced.

    Returns:
        The same task.
    """
    return TASKS.add(task.name, task, replace=replace)


def before_markers(text: str) -> str:
    """The text before the first end or chat marker; a decoded canvas may still carry them behind the answer."""
    for marker in ("<|eot_id|>", "<|endoftext|>", "<|pad|>", "<|start_header_id|>"):
        text = text.partition(marker)[0]
    return text


def final(text: str) -> str | None:
    """What stands behind the first `####`, up to the line's end, without a closing full stop; None if no marker."""
    _, marker, rest = text.partition("####")
    if not marker:
        return None
    return rest.partition("\n")[0].strip().removesuffix(".").strip()


def same_final(problem: Problem, text: str) -> bool:
    """Check whether the text after the first `####`, up to the end of its line, equals `problem.data["final"]`.

    Args:
        problem: Problem with `final` in its data.
        text: Answer of a model.
    """
    return final(text) == str(problem.data["final"])


# ---- the supply, split into train, validation and test by content


def split_of(kind: str, key: str) -> str:
    """Return the split ("train", "validation" or "test") of a problem's content, the same on every machine.

    Args:
        kind: Name of the task.
        key: Content of the problem (`Problem.key`).
    """
    digest = hashlib.blake2b(f"{kind}\n{key}".encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % 100
    return "test" if bucket < _TEST else "validation" if bucket < _VALIDATION else "train"


def problems(
    kind: str,
    n: int | None = 100,
    split: str = "test",
    seed: int = 0,
    difficulty: int | None = None,
    **options: Any,
) -> Iterator[Problem]:
    """Generate problems of one task; equal arguments give equal problems.

    No prompt comes twice in "validation" and "test" until the task has no fresh ones. A task with fewer than ten
    prompts has all of them in every split.

    Args:
        kind: Name of the task.
        n: Number of problems; None for an endless supply.
        split: Split of the problems: "train", "validation" or "test".
        seed: Seed of the problems.
        difficulty: Difficulty (1, 2 or 3); None mixes the three evenly.
        **options: Options of the task, such as `length` of recall.

    Raises:
        TaskError: If the task or an option is unknown, or a value is malformed.
    """
    task = TASKS[kind]
    validate(FromZero | None, n, "the number of problems n", TaskError)
    validate(Literal["train", "validation", "test"], split, "split", TaskError)
    validate(Literal[1, 2, 3] | None, difficulty, "difficulty", TaskError)
    unknown = sorted(set(options) - task.options)
    if unknown:
        known = ", ".join(sorted(task.options)) or "none"
        raise TaskError(f"The task {kind!r} has no option {unknown[0]!r}; its options: {known}.")
    # Drawn here so that a bad value of an option is told now, and not at the first next().
    task.draw(random.Random(0), difficulty or DIFFICULTIES[0], **options)
    return itertools.islice(_supply(task, split, seed, difficulty, options), n)


def _is_fixed(task: Task, difficulty: int | None, options: dict[str, Any]) -> bool:
    """Whether a kind has a few fixed prompts, which then are in every split."""
    source = random.Random(0)
    drawn = (task.draw(source, difficulty or source.choice(DIFFICULTIES), **options) for _ in range(_TRIED))
    prompts: set[str] = set()
    for problem in drawn:
        prompts.add(problem.prompt)
        if len(prompts) >= _FEW:
            return False
    return True


def _supply(task: Task, split: str, seed: int, difficulty: int | None, options: dict[str, Any]) -> Iterator[Problem]:
    source = random.Random(f"{task.name}|{split}|{seed}|{difficulty}|{sorted(options.items())}")
    fixed = _is_fixed(task, difficulty, options)
    seen: dict[int, set[str]] = {level: set() for level in DIFFICULTIES}
    if fixed:  # whatever the difficulty, each of its prompts once before one comes again
        together: set[str] = set()
        seen = dict.fromkeys(DIFFICULTIES, together)
    while True:
        level = difficulty or source.choice(DIFFICULTIES)
        repeats = 0
        for _ in range(_PATIENCE):
            problem = task.draw(source, level, **options)
            if not fixed and split_of(task.name, problem.key) != split:
                continue
            repeats += problem.prompt in seen[level]
            if repeats > _REPEATS:
                seen[level].clear()  # a second round
            if problem.prompt not in seen[level]:
                break
        else:
            raise TaskError(f"The task {task.name!r} has no {split} problem of difficulty {level} with these options.")
        if split != "train" or fixed:
            seen[level].add(problem.prompt)
        yield problem


# ---- prompts of your own: a file of JSON lines


MOST = 64 * MB  # of a file


@dataclass(frozen=True)
class OwnPrompt(Problem):
    """A prompt of a file; judged by its answer or its check, and never right where it has neither."""

    def check(self, text: str) -> bool:
        """Whether the text holds what the check looks for, or gives the answer."""
        written = before_markers(text)
        pattern = self.data.get("check")
        if pattern is not None:
            return re.search(pattern, written) is not None
        return bool(self.answer) and gives_answer(written, self.answer)

    @property
    def is_judged(self) -> bool:
        """Whether anything says which texts are right."""
        return bool(self.answer) or "check" in self.data


def gives_answer(text: str, answer: str) -> bool:
    """Whether a text gives an answer: behind #### where it has that mark, else anywhere, as whole words."""
    said = final(text)
    if said is not None:
        return said == answer.strip()
    return re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w|[.,]\d)", text) is not None


def read_prompts(path: Path | str) -> list[OwnPrompt]:
    """The prompts of a file in its order: each line a JSON object with prompt, and answer or check; or a JSON text alone."""
    file = Path(path).expanduser()
    lines = read_text(file, TaskError, MOST).splitlines()
    found = [
        _read_line(line, f"{short(str(file))}, line {number}", number)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise TaskError(
            f'Expected prompts in {short(str(file))}, one JSON object a line such as {{"prompt": "…"}}, got none.'
        )
    return found


@settings(TaskError)
class PromptLine:
    """A line of a file of prompts."""

    prompt: Annotated[str, Field(strict=True, pattern=r"\S")]
    answer: Annotated[str, Field(strict=True)] = ""
    check: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        if self.answer and self.check:
            raise FieldError("must be left out beside a check", "answer")


def _read_line(line: str, where: str, number: int) -> OwnPrompt:
    with report_damage(where, TaskError, 'write a JSON object such as {"prompt": "…", "answer": "…"}'):
        value: Any = json.loads(line)
    found = validate(PromptLine, {"prompt": value} if isinstance(value, str) else value, where, TaskError)
    data = {"check": found.check.pattern} if found.check else {}
    return OwnPrompt("prompts", found.prompt, found.answer.strip(), 1, str(number), data)


def digest_prompts(path: Path | str) -> str:
    """Of a file's prompts, so that a run is not continued with others."""
    text = json.dumps([(one.prompt, one.answer, dict(one.data)) for one in read_prompts(path)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_name(path: Path | str, taken: set[str]) -> str:
    """What a file's prompts are called in results: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", Path(path).stem) or "prompts"
    return f"{name}-prompts" if name in taken else name
