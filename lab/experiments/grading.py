"""What went wrong in a worked answer: its steps one by one, and the first of them that is not the expected one."""

import re
from typing import Literal, NamedTuple

from sinkscope.errors import TaskError
from sinkscope.tasks.problem import Problem, before_markers, final

Kind = Literal["right", "wrong operand", "wrong value", "one step too many", "cut short", "malformed"]
KINDS: tuple[Kind, ...] = ("right", "wrong operand", "wrong value", "one step too many", "cut short", "malformed")
GRADED = ("arithmetic", "stories")  # kinds of problem whose answers are steps such as `3 + 4 = 7.`
STEP = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)\.?")


class Grade(NamedTuple):
    """The first thing that went wrong, and how many steps before it are as expected."""

    kind: Kind
    right_steps: int
    steps: int  # of the worked answer


def grade(problem: Problem, text: str) -> Grade:
    """Compare the steps of an answer with those of the worked one.

    - right: the final line is (whatever the steps are).
    - wrong operand: the first step that differs takes other numbers or another sign.
    - wrong value: the same numbers, with another result; or all steps are right and the final line is not.
    - one step too many: every step is right, and more follows than the final line, be it well-formed or not.
    - cut short: what is there is right, and steps or the final line are missing.
    - malformed: the first line that differs is no step.
    """
    if problem.kind not in GRADED:
        raise TaskError(f"Expected a problem of {' or '.join(GRADED)}, whose steps can be graded, got {problem.kind}.")
    text = before_markers(text)
    expected = [STEP.fullmatch(line) for line in problem.answer.split("\n")[:-1]]
    body, marker, _ = text.partition("####")
    lines = [line.strip() for line in body.strip().split("\n") if line.strip()]
    given = [STEP.fullmatch(line) for line in lines]
    right = 0
    for one, other in zip(expected, given, strict=False):
        if one is None or other is None or one.groups() != other.groups():
            break
        right += 1

    def found(kind: Kind) -> Grade:
        return Grade(kind, right, len(expected))

    if final(text) == str(problem.data["final"]):
        return found("right")
    if right < min(len(expected), len(lines)):
        one, other = expected[right], given[right]
        if one is None or other is None:
            unfinished = not marker and right == len(lines) - 1  # the answer ended within this line
            return found("cut short" if unfinished else "malformed")
        return found("wrong value" if one.groups()[:3] == other.groups()[:3] else "wrong operand")
    last = final(text)
    if len(lines) > len(expected) or (right == len(expected) and "=" in (last or "")):
        return found("one step too many")
    return found("wrong value" if last and right == len(expected) else "cut short")
