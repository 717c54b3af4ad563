"""The supply: deterministic, split by content, clear about bad input, open to kinds from outside."""

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lab import pictures  # noqa: F401 - registers a kind
from sinkscope import tasks
from sinkscope.errors import TaskError
from sinkscope.tasks import KINDS, SPLITS, Problem, Task, problems, register, split_of
from sinkscope.tasks.problem import DIFFICULTIES, TASKS, same_final

EVERY = (*KINDS, "pictures")


@pytest.mark.parametrize("kind", EVERY)
def test_worked_answers_pass_with_and_without_text_behind_them(kind: str) -> None:
    for problem in problems(kind, 150, "train", seed=3):
        assert problem.check(problem.answer)
        assert problem.check(problem.answer + "\nThat is all.")
        assert problem.check(problem.answer + "<|eot_id|><|endoftext|><|endoftext|>")


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != "programs"])
def test_answers_to_other_problems_fail(kind: str) -> None:
    """An answer passes only where the other problem truly has the same result."""
    some = list(problems(kind, 60, difficulty=2))
    right = {"planning": "goal", "composition": "actions"}.get(kind, "final")
    wrong = 0
    for a, b in itertools.pairwise(some):
        if kind == "planning" and (a.data["start"] != b.data["start"] or a.data["goal"] != b.data["goal"]):
            start, goal = a.data["start"], a.data["goal"]
            shift = tuple(b.data["goal"][i] - b.data["start"][i] for i in range(2))
            expected = tuple(start[i] + shift[i] for i in range(2)) == goal
            assert not a.check(b.answer) or expected
            wrong += not expected
        elif a.data[right] != b.data[right]:
            assert not a.check(b.answer)
            wrong += 1
    assert wrong > 20


@pytest.mark.parametrize("kind", EVERY)
def test_no_content_is_in_two_splits(kind: str) -> None:
    """Every split is drawn on its own, at every difficulty; what they share must be nothing."""
    size = {"train": 2000, "validation": 100, "test": 250}
    keys = {split: {p.key for d in DIFFICULTIES for p in problems(kind, size[split], split, 7, d)} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not keys[one] & keys[other]
    texts = {split: {p.prompt for p in problems(kind, size[split], split, 8)} for split in SPLITS}
    assert not texts["train"] & texts["test"]
    assert len(keys["train"]) > 500
    assert len(keys["test"]) > 100


@pytest.mark.parametrize("kind", EVERY)
def test_a_prompt_tells_its_content(kind: str) -> None:
    """The same prompt always has the same key and answer, so nothing leaks through a second reading of it."""
    known: dict[str, tuple[str, str]] = {}
    for problem in problems(kind, 4000, "train", difficulty=1):
        assert known.setdefault(problem.prompt, (problem.key, problem.answer)) == (problem.key, problem.answer)


def test_shares_of_the_splits() -> None:
    drawn = [split_of("arithmetic", f"{i}") for i in range(20_000)]
    assert 0.09 < drawn.count("test") / len(drawn) < 0.11
    assert 0.04 < drawn.count("validation") / len(drawn) < 0.06


@pytest.mark.parametrize("kind", EVERY)
def test_same_words_same_problems(kind: str) -> None:
    assert list(problems(kind, 40, "test", 5)) == list(problems(kind, 40, "test", 5))
    assert list(problems(kind, 20, "test", 5)) == list(problems(kind, 40, "test", 5))[:20]
    assert list(problems(kind, 40, "test", 5)) != list(problems(kind, 40, "test", 6))


def test_same_problems_in_another_process() -> None:
    """Python's own string hash differs from process to process; the split must not."""
    code = "from sinkscope.tasks import problems; print([p.prompt for p in problems('logic', 30)])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str([p.prompt for p in problems("logic", 30)])


@pytest.mark.parametrize("kind", EVERY)
def test_a_test_of_750_has_no_text_twice(kind: str) -> None:
    prompts = [problem.prompt for problem in problems(kind, 750)]
    assert len(set(prompts)) == 750


def test_supply_goes_on_after_the_last_fresh_text() -> None:
    few = Task("coin", lambda source, difficulty: Problem("coin", f"{source.randint(0, 30)}", "", 1, "k"), same_final)
    register(few)
    try:
        assert len(list(problems("coin", 200, split_of("coin", "k")))) == 200
        other = next(split for split in SPLITS if split != split_of("coin", "k"))
        with pytest.raises(TaskError, match=f"no {other} problem of difficulty 1"):
            next(problems("coin", 1, other, difficulty=1))
    finally:
        TASKS._things.pop("coin")


def test_without_end() -> None:
    assert len(list(itertools.islice(problems("recall", None, "train"), 300))) == 300


@pytest.mark.parametrize("kind", EVERY)
def test_difficulty_is_kept_and_mixed(kind: str) -> None:
    for difficulty in DIFFICULTIES:
        assert {p.difficulty for p in problems(kind, 20, difficulty=difficulty)} == {difficulty}
    assert {p.difficulty for p in problems(kind, 60)} == set(DIFFICULTIES)


@pytest.mark.parametrize("kind", EVERY)
def test_problems_travel_between_processes(kind: str) -> None:
    problem = next(problems(kind, 1))
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert len({problem, problem}) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kind": "chess"}, "task, got 'chess': known are arithmetic, stories"),
        ({"kind": "logic", "n": -1}, "number of problems"),
        ({"kind": "logic", "n": 2.5}, "number of problems"),
        ({"kind": "logic", "split": "dev"}, "split.*train"),
        ({"kind": "logic", "difficulty": 4}, "difficulty.*1, 2 or 3"),
        ({"kind": "logic", "difficulty": 0}, "difficulty.*1, 2 or 3"),
        ({"kind": "logic", "length": 4}, "no option 'length'; its options: none"),
        ({"kind": "recall", "size": 4}, "no option 'size'; its options: length"),
        ({"kind": "recall", "length": 0}, "length"),
        ({"kind": "recall", "length": "many"}, "length"),
    ],
)
def test_bad_input_is_one_clear_sentence_at_once(words: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        problems(**words)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_kind_from_outside() -> None:
    def draw(source: "tasks.problem.Source", difficulty: int) -> Problem:
        n = source.randint(0, 999)
        return Problem("echo", f"Say {n}.", f"#### {n}", difficulty, str(n), {"final": n})

    register(Task("echo", draw, same_final))
    try:
        assert "echo" in TASKS
        problem = next(problems("echo", 1))
        assert problem.check(problem.answer)
        assert not problem.check("#### 1000")
        with pytest.raises(TaskError, match="exists already"):
            register(Task("echo", draw, lambda problem, text: False))
        register(Task("echo", draw, same_final), replace=True)
    finally:
        TASKS._things.pop("echo")
    assert "echo" not in KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_page_shows_what_the_code_makes(kind: str) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "reference", "tasks.md").read_text()
    problem = next(problems(kind, 1, difficulty=2))
    assert f"```text\n{problem.prompt.rstrip()}\n---\n{problem.answer}\n```" in page
