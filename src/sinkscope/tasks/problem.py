"""What a problem is, what a kind of problem is, the register of kinds, and their endless, seeded supply."""

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sinkscope.errors import TaskError
from sinkscope.registry import Registry
from sinkscope.validation import FromZero, validate

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
    """One question, its worked answer, and a checker that says whether some text answers it.

    `key` is the content that decides the split: template and numbers, without what is only decoration.
    `data` is what the checker needs beyond the text (the goal of a plan, the hidden tests of a program).
    """

    kind: str
    prompt: str
    answer: str
    difficulty: int
    key: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def check(self, text: str) -> bool:
        """Whether `text` answers the problem; any text may come, and nonsense is simply wrong."""
        if not isinstance(text, str):
            raise TaskError(f"Expected an answer as text, got {text!r}.")
        return TASKS[self.kind].check(self, before_markers(text))


@dataclass(frozen=True)
class Task:
    """A kind of problem: `draw` makes one from a random source and a difficulty, `check` judges an answer to it.

    `options` names the further words that `draw` takes.
    """

    name: str
    draw: Callable[..., Problem]
    check: Callable[[Problem, str], bool]
    options: frozenset[str] = frozenset()


TASKS: Registry[Task] = Registry("task", TaskError)


def register(task: Task, *, replace: bool = False) -> Task:
    """Add a kind of problem, so that `problems(task.name, …)` knows it; from outside the package too."""
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
    """Whether the line behind the marker is exactly the expected one, `data["final"]`."""
    return final(text) == str(problem.data["final"])


# ---- the supply, split into train, validation and test by content


def split_of(kind: str, key: str) -> str:
    """The split that a problem's content belongs to, always the same one on every machine."""
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
    """`n` problems of one kind (None: without end), the same ones for the same words.

    `difficulty` is 1, 2 or 3; None mixes all three evenly. Outside of training no prompt comes twice, as long as the
    kind has fresh ones. A kind of fewer than ten prompts has them all in every split.
    Further options go to the kind, such as `length` of recall.
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
