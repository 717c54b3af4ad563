"""Answers graded step by step, by their first error."""

from __future__ import annotations

import pytest

from lab.experiments.grading import KINDS, grade
from sinkscope.errors import TaskError
from sinkscope.tasks import problems, split_of
from sinkscope.tasks.problem import Problem

ANSWER = "3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n#### 9"
STORY = Problem("arithmetic", "…", ANSWER, 3, "", {"final": "9"})


@pytest.mark.parametrize(
    ("text", "kind", "right"),
    [
        (ANSWER, "right", 3),
        (ANSWER + "<|endoftext|> 7", "right", 3),
        ("#### 9", "right", 0),
        ("3 + 5 = 8.\n8 * 2 = 16.\n16 - 5 = 11.\n#### 11", "wrong operand", 0),
        ("3 + 4 = 7.\n7 + 2 = 9.\n#### 14", "wrong operand", 1),
        ("3 + 4 = 7.\n7 * 2 = 12.\n12 - 5 = 7.\n#### 7", "wrong value", 1),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n#### 8", "wrong value", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n9 - 5 = 4.\n#### 4", "one step too many", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n9 - 5", "one step too many", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n9 -5 = 4.\n#### 4", "one step too many", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n#### - 5 = 4.\n#### 4", "one step too many", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n#### ", "cut short", 3),
        ("3 + 4 = 7.\n7 * 2 = 14.\n#### 14", "cut short", 2),
        ("3 + 4 = 7.\n7 * 2", "cut short", 1),
        ("3 + 4 = 7.\n7 * 2 = 14.\n14 - 5 = 9.", "cut short", 3),
        ("", "cut short", 0),
        ("3 + 4 = 7.\nthen 14\n#### 14", "malformed", 1),
        ("3 + = 7.\n7 * 2 = 14.\n14 - 5 = 9.\n#### 8", "malformed", 0),
    ],
)
def test_the_first_error(text: str, kind: str, right: int) -> None:
    found = grade(STORY, text)
    assert (found.kind, found.right_steps, found.steps) == (kind, right, 3)
    assert found.kind in KINDS


def test_right_is_what_the_checker_says_and_other_kinds_are_refused() -> None:
    for kind in ("arithmetic", "stories"):
        for problem in problems(kind, n=30):
            assert grade(problem, problem.answer).kind == "right" and problem.check(problem.answer)
            assert grade(problem, problem.answer.replace("####", "#### 1")).kind == "wrong value"
    with pytest.raises(TaskError):
        grade(next(problems("logic", n=1)), "yes")


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_a_story_is_new_to_who_learned_arithmetic(difficulty: int) -> None:
    for problem in problems("stories", n=40, difficulty=difficulty):
        steps = [line.split() for line in problem.answer.split("\n")[:-1]]
        assert len(steps) == 3
        large = [place for place, step in enumerate(steps) if int(step[2]) > 6]
        assert large == ([2] if difficulty == 3 else []) and all(int(steps[place][2]) == 7 for place in large)
        assert difficulty == 3 or (split_of("arithmetic", problem.key), "*" in problem.answer) == (
            "test",
            difficulty == 2,
        )
        value = int(steps[0][0])
        for first, sign, second, _, result in steps:
            assert int(first) == value
            value = {"+": value + int(second), "-": value - int(second), "*": value * int(second)}[sign]
            assert f"{value}." == result and 0 <= value <= 20
            assert f" {second}." in problem.prompt or f"{second} times" in problem.prompt
        assert problem.answer.endswith(f"#### {value}")
