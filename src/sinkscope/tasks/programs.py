"""Complete a small Python function from its docstring, judged by hidden tests: HumanEval in miniature.

Each template says the same thing three times: in words for the docstring, in Python for the worked answer, and as a
function here. The expected results of the hidden tests come from that function. So a slip in one of them shows in the tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sinkscope.tasks.problem import Problem, Source, Task, register

FUNCTIONS = ("solve", "task", "work", "go", "f", "g", "h", "find", "make", "test")
SCALARS = ("a", "b", "n", "x", "y", "z")
LISTS = ("xs", "ys", "items", "values")
INDENT = "    "
SECONDS = 5.0


@dataclass(frozen=True)
class Operation:
    """One operation on two numbers: how one says it, how one writes it, and what it does."""

    words: str
    code: str
    apply: Callable[[int, int], int]
    least: int = 1  # the smallest constant that it is worth writing with

    def constant(self, source: Source) -> int:
        """A constant for its right side."""
        return source.randint(self.least, 9)


OPERATIONS = (
    Operation("plus", "{} + {}", lambda a, b: a + b),
    Operation("minus", "{} - {}", lambda a, b: a - b),
    Operation("times", "{} * {}", lambda a, b: a * b, least=2),
)
COMPARISONS: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
    ("above", ">", lambda a, b: a > b),
    ("below", "<", lambda a, b: a < b),
)
FOLDS: tuple[tuple[str, str, Callable[[list[int]], int]], ...] = (
    ("sum", "sum", sum),
    ("largest", "max", max),
    ("smallest", "min", min),
    ("length", "len", len),
)

EXTREMES: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (("larger", "max", max), ("smaller", "min", min))


@dataclass(frozen=True)
class Sketch:
    """A function before it is given a name: its arguments, docstring, body and meaning."""

    arguments: tuple[str, ...]
    words: str
    body: str
    meaning: Callable[..., Any]


def draw(source: Source, difficulty: int) -> Problem:
    """One operation; two operations; or a choice or a loop with an operation in it."""
    sketch = source.choice(_SKETCHES[difficulty])(source)
    key = f"({', '.join(sketch.arguments)}) {sketch.words}"
    name = source.choice(FUNCTIONS)
    prompt = f'def {name}({", ".join(sketch.arguments)}):\n{INDENT}"""Return {sketch.words}."""\n'
    tests = tuple((values, sketch.meaning(*values)) for values in _inputs(sketch.arguments, key))
    return Problem("programs", prompt, sketch.body, difficulty, key, {"name": name, "tests": tests})


def check(problem: Problem, text: str) -> bool:
    """Run the completed function against the hidden tests, in the sandbox."""
    body = _first_block(text)
    # The worked answer need not run again and again: that it passes its own tests is tested.
    if not body or body == problem.answer:
        return bool(body)
    calls = "".join(f"assert {problem.data['name']}(*{a!r}) == {b!r}\n" for a, b in problem.data["tests"])
    return _passes(problem.prompt + body + "\n", calls, problem.data["name"])


@lru_cache(maxsize=4096)
def _passes(code: str, tests: str, name: str) -> bool:
    """Whether all assertions hold; the same completion of the same problem runs once."""
    from sinkscope.sandbox import Limits
    from sinkscope.sandbox import check as run_tests

    return run_tests(code, tests, [name], limits=Limits(seconds=SECONDS)).ok


def _first_block(text: str) -> str:
    """The indented lines at the start of a completion; what follows them at the margin is no part of the answer."""
    lines = text.strip("\n").split("\n")
    # A decoder that strips its text takes the first line's indentation away.
    if lines[0].strip() and not lines[0].startswith(" "):
        lines[0] = INDENT + lines[0]
    kept = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        kept.append(line)
    return "\n".join(kept).rstrip()


def _inputs(arguments: tuple[str, ...], key: str) -> list[tuple[Any, ...]]:
    """The calls of the hidden tests: around every constant that occurs, so that a wrong one or a wrong sign shows.

    Drawn from the key, so that the same problem always has the same tests.
    """
    source = Source(key)
    near = range(-2, 13)
    if arguments[0] in LISTS:
        lists = [[source.randint(-9, 19) for _ in range(source.randint(3, 7))] for _ in range(5)]
        return [(source.sample(near, len(near)),), *((values,) for values in lists)]
    if len(arguments) == 1:
        return [(value,) for value in near]
    return [tuple(source.sample(near, len(arguments))) for _ in range(8)]


def _one_operation(source: Source) -> Sketch:
    operation, x = source.choice(OPERATIONS), source.choice(SCALARS)
    c = operation.constant(source)
    body = f"{INDENT}return {operation.code.format(x, c)}"
    return Sketch((x,), f"{x} {operation.words} {c}", body, lambda value: operation.apply(value, c))


def _two_arguments(source: Source) -> Sketch:
    operation, (x, y) = source.choice(OPERATIONS), source.sample(SCALARS, 2)
    body = f"{INDENT}return {operation.code.format(x, y)}"
    return Sketch((x, y), f"{x} {operation.words} {y}", body, operation.apply)


def _extreme(source: Source) -> Sketch:
    words, name, pick = source.choice(EXTREMES)
    x, other = source.sample((*SCALARS, *map(str, range(1, 10))), 2)
    if x.isdigit():
        x, other = source.choice(SCALARS), x
    body = f"{INDENT}return {name}({x}, {other})"
    if other.isdigit():
        return Sketch((x,), f"the {words} of {x} and {other}", body, lambda value: pick(value, int(other)))
    return Sketch((x, other), f"the {words} of {x} and {other}", body, pick)


def _fold(source: Source) -> Sketch:
    (words, name, fold), xs = source.choice(FOLDS), source.choice(LISTS)
    operation = source.choice(OPERATIONS)
    c = operation.constant(source)
    body = f"{INDENT}return {operation.code.format(f'{name}({xs})', c)}"
    words = f"the {words} of {xs} {operation.words} {c}"
    return Sketch((xs,), words, body, lambda values: operation.apply(fold(values), c))


def _two_steps(source: Source) -> Sketch:
    first, second, x = source.choice(OPERATIONS), source.choice(OPERATIONS), source.choice(SCALARS)
    c, d = first.constant(source), second.constant(source)
    body = f"{INDENT}{x} = {first.code.format(x, c)}\n{INDENT}return {second.code.format(x, d)}"
    words = f"{x} {first.words} {c}, then {second.words} {d}"
    return Sketch((x,), words, body, lambda value: second.apply(first.apply(value, c), d))


def _filter(source: Source) -> Sketch:
    (words, sign, compare), xs, x = source.choice(COMPARISONS), source.choice(LISTS), source.choice(SCALARS)
    c = source.randint(1, 9)
    body = f"{INDENT}return [{x} for {x} in {xs} if {x} {sign} {c}]"
    words = f"every {x} of {xs} {words} {c}"
    return Sketch((xs,), words, body, lambda values: [value for value in values if compare(value, c)])


def _each(source: Source) -> Sketch:
    operation, xs, x = source.choice(OPERATIONS), source.choice(LISTS), source.choice(SCALARS)
    c = operation.constant(source)
    body = f"{INDENT}return [{operation.code.format(x, c)} for {x} in {xs}]"
    words = f"{x} {operation.words} {c} for every {x} of {xs}"
    return Sketch((xs,), words, body, lambda values: [operation.apply(value, c) for value in values])


def _choice(source: Source) -> Sketch:
    (words, sign, compare), x = source.choice(COMPARISONS), source.choice(SCALARS)
    operation = source.choice(OPERATIONS)
    c, d = source.randint(1, 9), operation.constant(source)
    body = f"{INDENT}if {x} {sign} {c}:\n{INDENT * 2}return {operation.code.format(x, d)}\n{INDENT}return {x}"
    words = f"{x} {operation.words} {d} if {x} is {words} {c}, else {x}"
    return Sketch((x,), words, body, lambda value: operation.apply(value, d) if compare(value, c) else value)


_SKETCHES: dict[int, tuple[Callable[[Source], Sketch], ...]] = {
    1: (_one_operation, _two_arguments, _extreme),
    2: (_fold, _two_steps),
    3: (_filter, _each, _choice),
}
register(Task("programs", draw, check))
