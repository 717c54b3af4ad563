"""An endless, seeded supply of problems, split into train, validation and test by their content."""

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

from sinkscope.errors import TaskError
from sinkscope.fields import among, maybe, need, whole
from sinkscope.tasks.problem import DIFFICULTIES, Problem, Task, find

SPLITS = ("train", "validation", "test")
# Of a hundred buckets of content: 10 are test, 5 validation, the rest train.
_TEST, _VALIDATION = 10, 15
_PATIENCE = 10_000  # draws before a split is taken to be empty
_REPEATS = 100  # prompts seen already, in a row, before the fresh ones are taken to have run out


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
    kind has fresh ones. Further options go to the kind, such as `length` of recall.
    """
    task = find(kind)
    need("n, the number of problems,", n, maybe(whole(0)), TaskError)
    need("split", split, among(SPLITS), TaskError)
    need("difficulty", difficulty, maybe(among(DIFFICULTIES)), TaskError)
    unknown = sorted(set(options) - task.options)
    if unknown:
        known = ", ".join(sorted(task.options)) or "none"
        raise TaskError(f"The task {kind!r} has no option {unknown[0]!r}; its options: {known}.")
    # Drawn here so that a bad value of an option is told now, and not at the first next().
    task.draw(random.Random(0), difficulty or DIFFICULTIES[0], **options)
    return itertools.islice(_supply(task, split, seed, difficulty, options), n)


def _supply(task: Task, split: str, seed: int, difficulty: int | None, options: dict[str, Any]) -> Iterator[Problem]:
    source = random.Random(f"{task.name}|{split}|{seed}|{difficulty}|{sorted(options.items())}")
    seen: dict[int, set[str]] = {level: set() for level in DIFFICULTIES}
    while True:
        level = difficulty or source.choice(DIFFICULTIES)
        repeats = 0
        for _ in range(_PATIENCE):
            problem = task.draw(source, level, **options)
            if split_of(task.name, problem.key) != split:
                continue
            repeats += problem.prompt in seen[level]
            if repeats > _REPEATS:
                seen[level].clear()  # a second round
            if problem.prompt not in seen[level]:
                break
        else:
            raise TaskError(f"The task {task.name!r} has no {split} problem of difficulty {level} with these options.")
        if split != "train":
            seen[level].add(problem.prompt)
        yield problem
