"""What a problem is, what a kind of problem is, and the register of kinds."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkscope import plugins
from sinkscope.errors import TaskError

Source = random.Random
DIFFICULTIES = (1, 2, 3)


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
        return find(self.kind).check(self, before_markers(text))


@dataclass(frozen=True)
class Task:
    """A kind of problem: `draw` makes one from a random source and a difficulty, `check` judges an answer to it.

    `options` names the further words that `draw` takes.
    """

    name: str
    draw: Callable[..., Problem]
    check: Callable[[Problem, str], bool]
    options: frozenset[str] = frozenset()


_tasks: dict[str, Task] = {}


def register(task: Task, *, replace: bool = False) -> Task:
    """Add a kind of problem, so that `problems(task.name, …)` knows it; from outside the package too."""
    if task.name in _tasks and not replace:
        raise TaskError(f"A task named {task.name!r} is registered already; take another name, or pass replace=True.")
    _tasks[task.name] = task
    return task


def find(kind: Any) -> Task:
    """The registered task of that name."""
    if not isinstance(kind, str) or (kind not in _tasks and kind not in registered()):
        raise TaskError(f"Expected a kind of problem out of {', '.join(_tasks)}, but got {kind!r}.")
    return _tasks[kind]


def registered() -> tuple[str, ...]:
    """The names of all kinds that `problems` knows, in the order in which they were registered."""
    plugins.load("tasks")
    return tuple(_tasks)


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
