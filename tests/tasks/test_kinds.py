"""Each kind's own rules: what its answers say is true, and its checker judges by the result alone."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.pictures import OBJECTS
from sinkscope.tasks import KINDS, Problem, problems
from sinkscope.tasks.problem import NAMES
from sinkscope.tasks.programs import _first_block
from sinkscope.tasks.programs import check as check_program
from sinkscope.tasks.reasoning import MOVES, SIZE

FIXED = {kind: list(problems(kind, 6, "train", seed=11)) for kind in (*KINDS, "pictures")}


# Words of our own answers make nonsense that comes close; programs are left to the sandbox's own tests of hostility.
nonsense = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["#### ", "7", "yes", "\n", ".", ", ", "up", "Done", "walk", " ", "<|eot_id|>", "9" * 5000, "\0"]
        ),
        max_size=8,
    ).map("".join),
)


@pytest.mark.parametrize("kind", [kind for kind in FIXED if kind != "programs"])
@settings(max_examples=40, deadline=None)
@given(text=nonsense)
def test_nonsense_never_raises(kind: str, text: str) -> None:
    for problem in FIXED[kind]:
        assert problem.check(text) in (True, False)
        assert not problem.check("I do not know. " + text.replace("####", "").replace("Done", ""))


@pytest.mark.parametrize("kind", ["arithmetic", "logic", "recall", "pictures"])
def test_only_the_line_behind_the_first_marker_counts(kind: str) -> None:
    for problem in FIXED[kind]:
        final = problem.data["final"]
        assert problem.check(f"#### {final}")
        assert problem.check(f"Nonsense before.\n####{final}.\nNonsense after #### it")
        for wrong in (
            final,
            f"#### {final}1",
            f"#### {final} {final}",
            f"#### not {final}",
            f"#### -{final}",
            "####",
            "",
        ):
            assert not problem.check(wrong)
        assert not problem.check(f"#### wrong\n#### {final}")


def test_arithmetic_steps_are_true_and_small() -> None:
    for problem in problems("arithmetic", 1500, "train"):
        steps = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)\.\n", problem.answer)
        assert len(steps) == problem.difficulty
        value = int(re.findall(r"\d+", problem.prompt)[0])
        for a, sign, b, result in steps:
            assert int(a) == value
            assert 1 <= int(b) <= 9
            value = {"+": value + int(b), "-": value - int(b), "*": value * int(b)}[sign]
            assert value == int(result)
            assert 0 <= value <= 30
        assert problem.answer.endswith(f"#### {value}")
        assert [int(n) for n in re.findall(r"\d+", problem.prompt)][1:] == [int(step[2]) for step in steps]


def test_logic_answers_follow_from_the_facts() -> None:
    """Solved a second time from the prompt alone, by other means than the generator's."""
    answers = set()
    for problem in problems("logic", 1500, "train"):
        facts = re.findall(r"(\w+) is \w+er than (\w+)\.", problem.prompt)
        people = {name for fact in facts for name in fact}
        below = {name: sum(a == name for a, _ in facts) for name in people}
        first = next(name for name in people if all(b != name for _, b in facts))
        last = next(name for name in people if below[name] == 0)
        found = first if re.search(r"the (tallest|oldest|fastest)", problem.prompt) else last
        assert problem.data["final"] == found
        answers.add(found)
    assert set(NAMES) == answers


def test_any_plan_that_arrives_counts() -> None:
    problem = Problem("planning", "", "", 3, "", {"start": (1, 1), "goal": (3, 2), "wall": (2, 1)})
    for good in ("up, right, right", "up, right, up, right, down", "up right right", "up, up, down, right, right."):
        assert problem.check(f"Here.\n#### {good}\nMore text, left.")
    for bad in (
        "right, up, right",  # into the wall
        "up, right",  # too short
        "up, right, right, right",  # past the goal
        "left, up, right, right, right",  # off the grid
        "up, fly, right",
        "up, right, right, then stop",
        "UP, RIGHT, RIGHT",
        "",
        ", ,",
    ):
        assert not problem.check(f"#### {bad}")
    assert not problem.check("up, right, right")


def test_plans_are_shortest_and_say_their_counts() -> None:
    for problem in problems("planning", 1500, "train"):
        start, goal = problem.data["start"], problem.data["goal"]
        plan = problem.answer.partition("#### ")[2].split(", ")
        assert len(plan) == abs(start[0] - goal[0]) + abs(start[1] - goal[1])
        for move in MOVES:
            said = re.search(rf"(\d) {move}", problem.answer)
            assert plan.count(move) == (int(said[1]) if said else 0)
        assert (problem.data["wall"] is not None) == (problem.difficulty == 3)
        assert all(1 <= n <= SIZE for n in map(int, re.findall(r"\d", problem.prompt)))


def act(command: str) -> str:
    """What a command means, read word by word."""
    if " after you " in command:
        second, first = command.split(" after you ")
        return f"{act(first)} {act(second)}"
    lines = []
    for phrase in re.split(r", then | and |, ", command):
        verb, *rest = phrase.split()
        times = 3 if "thrice" in rest else 2 if "twice" in rest else 1
        turn = [word for word in rest if word in ("left", "right")]
        lines.append(" ".join([*turn, verb] * times) + ".")
    return " ".join(lines)


@pytest.mark.parametrize(
    ("command", "actions"),
    [
        ("walk and run twice", "walk. run run."),
        ("look left, then hop", "left look. hop."),
        ("swim after you jump right thrice", "right jump right jump right jump. swim."),
        ("hop, run left twice and walk", "hop. left run left run. walk."),
    ],
)
def test_the_reader_of_commands(command: str, actions: str) -> None:
    assert act(command) == actions


def test_composition_means_what_it_says() -> None:
    for problem in problems("composition", 1500, "train"):
        actions = act(re.sub(r"^(Now|Please|Can you) |[.?]$", "", problem.prompt))
        assert " ".join(problem.answer.split()) == f"{actions} Done."
        assert problem.check(f"{actions} Done. And then some.")
        for wrong in (actions, f"{actions} hop. Done.", f"{actions.upper()} Done.", f"hop {actions} Done.", "Done."):
            assert not problem.check(wrong)


@pytest.mark.parametrize("length", [1, 4, 5, 100, 101, 700])
def test_recall_has_as_many_facts_as_asked_for(length: int) -> None:
    for problem in problems("recall", 5, length=length):
        facts, _, question = problem.prompt.partition("\n")
        told = dict(re.findall(r" (\w[\w ]*?) (\w+)[,.]", facts))
        assert len(told) == length
        asked = re.search(r"(?:is the|in box) (.+)\?", question)
        assert asked
        assert told[asked[1]] == problem.data["final"]


def test_pictures_hold_what_is_told_of_them() -> None:
    for problem in problems("pictures", 500, "train"):
        codes = [int(code) for code in re.findall(r"<\|image_(\d+)\|>", problem.prompt)]
        assert len(codes) == 36
        said = re.findall(r"(\d) (\w+ \w+)s", problem.answer)
        assert said
        for count, thing in said:
            assert codes.count(OBJECTS.index(thing)) == int(count)
        if problem.answer[:4] == "####":
            assert len(said) == problem.difficulty == len(set(codes) - {0})


def run_here(problem: Problem, body: str) -> bool:
    """Run our own generator's code without a sandbox: it is no model's, and thousands must run."""
    scope: dict[str, object] = {}
    exec(problem.prompt + body, scope)
    function = scope[problem.data["name"]]
    return all(function(*arguments) == expected for arguments, expected in problem.data["tests"])  # type: ignore[operator]


def test_programs_pass_their_own_tests_and_a_changed_one_does_not() -> None:
    """The hidden tests tell every constant, sign and name of the body from its neighbours."""
    swaps = {"+": "-", "-": "+", "*": "+", "<": ">", ">": "<=", "max": "min", "min": "max", "len": "sum"}
    for problem in problems("programs", 1000, "train"):
        assert run_here(problem, problem.answer)
        for place in re.finditer(r"\b[1-9]\b|[-+*<>]|\b(?:max|min|len)\b", problem.answer):
            new = swaps.get(place[0]) or str(int(place[0]) % 9 + 1)
            assert not run_here(problem, problem.answer[: place.start()] + new + problem.answer[place.end() :])


SIGNS = {"plus": "+", "minus": "-", "times": "*", "above": ">", "below": "<"}
NAMED = {"sum": "sum", "largest": "max", "smallest": "min", "length": "len", "larger": "max", "smaller": "min"}
MEANINGS = (  # what a docstring says, as an expression; tried in this order
    (r"every (\w+) of (\w+) (above|below) (\d)", r"[\1 for \1 in \2 if \1 \3 \4]"),
    (r"(\w+ \w+ \d) for every (\w+) of (\w+)", r"[\1 for \2 in \3]"),
    (r"(\w+ \w+ \d) if (\w+) is (above|below) (\d), else \w+", r"\1 if \2 \3 \4 else \2"),
    (r"the (\w+) of (\w+) and (\w+)", r"\1(\2, \3)"),
    (r"the (\w+) of (\w+) (\w+ \d)", r"\1(\2) \3"),
    (r"(\w+ \w+ \d), then (\w+ \d)", r"(\1) \2"),
    (r"(\w+ \w+ \w+)", r"\1"),
)


def test_programs_do_what_their_docstrings_say() -> None:
    """Worked out a second time from the prompt's words, by other means than the generator's."""
    for problem in problems("programs", 1500, "train"):
        arguments, words = re.findall(r'\((.*?)\):\n    """Return (.*)\."""', problem.prompt)[0]
        code = next(re.sub(said, means, words) for said, means in MEANINGS if re.fullmatch(said, words))
        code = re.sub(r"[a-z]+", lambda word: (SIGNS | NAMED).get(word[0], word[0]), code)
        for values, expected in problem.data["tests"]:
            assert eval(f"(lambda {arguments}: {code})(*{values!r})") == expected, problem


def test_programs_are_judged_by_the_sandbox() -> None:
    problem = next(p for p in problems("programs", 100, difficulty=1) if " plus " in p.prompt and "," not in p.prompt)
    name = problem.answer.split()[1]
    constant = problem.answer.split()[-1]
    good = [
        f"    return {constant} + {name}",
        f"return {name} + {constant}",
        f"    total = {name}\n\n    total += {constant}\n    return total\n\nprint('what follows is not run')\n1/0",
    ]
    bad = [
        f"    return {name}",
        f"    return {name} + {constant} + ",
        "    import os\n    os._exit(0)",
        "    raise SystemExit(0)",
        "",
        "\n\n",
        "def other():\n    pass",
    ]
    assert all(problem.check(text) for text in good)
    assert not any(check_program(problem, text) for text in bad)


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=" \n\tabc:(\0é", max_size=40))
def test_a_block_is_indented_text_from_the_start(text: str) -> None:
    block = _first_block(text)
    assert all(line.startswith(" ") or not line.strip() for line in block.split("\n"))
