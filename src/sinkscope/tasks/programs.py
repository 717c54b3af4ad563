"""Complete a small Python function from its docstring, judged by hidden tests: HumanEval in miniature.

Each template says the same thing twice: in words for the docstring, and in Python for the worked answer, whose results are
what the hidden tests expect.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from sinkscope.tasks.problem import Problem, Source, Task, register

FUNCTIONS = ("solve", "task", "work", "go", "f", "g", "h", "find", "make", "test")
SCALARS = ("a", "b", "n", "x", "y", "z")
LISTS = ("xs", "ys", "items", "values")
INDENT = "    "
SECONDS = 5.0
# words, sign, and the smallest constant that it is worth writing with
OPERATIONS = (("plus", "+", 1), ("minus", "-", 1), ("times", "*", 2))
COMPARISONS = (("above", ">"), ("below", "<"))
FOLDS = (("sum", "sum"), ("largest", "max"), ("smallest", "min"), ("length", "len"))
EXTREMES = (("larger", "max"), ("smaller", "min"))


class Sketch(NamedTuple):
    """A function before it is given a name: its arguments, docstring and body."""

    arguments: tuple[str, ...]
    words: str
    body: str


def draw(source: Source, difficulty: int) -> Problem:
    """One operation; two operations; or a choice or a loop with an operation in it."""
    sketch = source.choice(_SKETCHES[difficulty])(source)
    key = f"({', '.join(sketch.arguments)}) {sketch.words}"
    name = source.choice(FUNCTIONS)
    prompt = f'def {name}({", ".join(sketch.arguments)}):\n{INDENT}"""Return {sketch.words}."""\n'
    space: dict[str, Any] = {}
    exec(prompt + sketch.body, space)  # our own text, not a model's
    tests = tuple((values, space[name](*values)) for values in _inputs(sketch.arguments, key))
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
    (words, sign, least), x = source.choice(OPERATIONS), source.choice(SCALARS)
    c = source.randint(least, 9)
    return Sketch((x,), f"{x} {words} {c}", f"{INDENT}return {x} {sign} {c}")


def _two_arguments(source: Source) -> Sketch:
    (words, sign, _), (x, y) = source.choice(OPERATIONS), source.sample(SCALARS, 2)
    return Sketch((x, y), f"{x} {words} {y}", f"{INDENT}return {x} {sign} {y}")


def _extreme(source: Source) -> Sketch:
    words, name = source.choice(EXTREMES)
    x, other = source.sample((*SCALARS, *map(str, range(1, 10))), 2)
    if x.isdigit():
        x, other = source.choice(SCALARS), x
    arguments = (x,) if other.isdigit() else (x, other)
    return Sketch(arguments, f"the {words} of {x} and {other}", f"{INDENT}return {name}({x}, {other})")


def _fold(source: Source) -> Sketch:
    (words, name), xs = source.choice(FOLDS), source.choice(LISTS)
    then, sign, least = source.choice(OPERATIONS)
    c = source.randint(least, 9)
    return Sketch((xs,), f"the {words} of {xs} {then} {c}", f"{INDENT}return {name}({xs}) {sign} {c}")


def _two_steps(source: Source) -> Sketch:
    first, second, x = source.choice(OPERATIONS), source.choice(OPERATIONS), source.choice(SCALARS)
    c, d = source.randint(first[2], 9), source.randint(second[2], 9)
    body = f"{INDENT}{x} = {x} {first[1]} {c}\n{INDENT}return {x} {second[1]} {d}"
    return Sketch((x,), f"{x} {first[0]} {c}, then {second[0]} {d}", body)


def _filter(source: Source) -> Sketch:
    (words, sign), xs, x = source.choice(COMPARISONS), source.choice(LISTS), source.choice(SCALARS)
    c = source.randint(1, 9)
    return Sketch((xs,), f"every {x} of {xs} {words} {c}", f"{INDENT}return [{x} for {x} in {xs} if {x} {sign} {c}]")


def _each(source: Source) -> Sketch:
    (words, sign, least), xs, x = source.choice(OPERATIONS), source.choice(LISTS), source.choice(SCALARS)
    c = source.randint(least, 9)
    body = f"{INDENT}return [{x} {sign} {c} for {x} in {xs}]"
    return Sketch((xs,), f"{x} {words} {c} for every {x} of {xs}", body)


def _choice(source: Source) -> Sketch:
    (words, sign), x = source.choice(COMPARISONS), source.choice(SCALARS)
    then, operator, least = source.choice(OPERATIONS)
    c, d = source.randint(1, 9), source.randint(least, 9)
    body = f"{INDENT}if {x} {sign} {c}:\n{INDENT * 2}return {x} {operator} {d}\n{INDENT}return {x}"
    return Sketch((x,), f"{x} {then} {d} if {x} is {words} {c}, else {x}", body)


_SKETCHES: dict[int, tuple[Callable[[Source], Sketch], ...]] = {
    1: (_one_operation, _two_arguments, _extreme),
    2: (_fold, _two_steps),
    3: (_filter, _each, _choice),
}
register(Task("programs", draw, check))
