"""Word problems of one to three steps, every step written out: GSM8K in miniature.

The first number is below 10, later ones are at most 6, and every value stays within 0…20, so that a step is one
look-up in a small table.
"""

from sinkscope.tasks.problem import Problem, Source, Task, register, same_final
from sinkscope.tasks.words import NAMES, THINGS

HIGHEST = 20
LARGEST = 6
# One sentence an event, as (operation, sentence). The sentence is part of the content that decides the split.
EVENTS = (
    ("+", " Then {name} finds {n}."),
    ("+", " A friend gives {n}."),
    ("+", " Then {name} buys {n}."),
    ("-", " Then {name} loses {n}."),
    ("-", " A friend takes {n}."),
    ("-", " Then {name} sells {n}."),
    ("*", " It becomes {n} times that."),
)
OPENINGS = ("{name} has {n} {thing}.", "There are {n} {thing}.")
QUESTION = "\nHow many {thing} are left?"


def draw(source: Source, difficulty: int) -> Problem:
    """A story with as many events as its difficulty."""
    name, thing = source.choice(NAMES), source.choice(THINGS)
    opening = source.choice(OPENINGS)
    value = source.randint(1, 9)
    prompt = opening.format(name=name, n=value, thing=thing)
    key, lines = [opening, str(value)], []
    for _ in range(difficulty):
        operation, sentence = source.choice(EVENTS)
        n = source.randint(1, LARGEST)
        while not 0 <= apply(value, operation, n) <= HIGHEST or (operation == "*" and n not in (2, 3)):
            operation, sentence = source.choice(EVENTS)
            n = source.randint(1, LARGEST)
        result = apply(value, operation, n)
        prompt += sentence.format(name=name, n=n)
        lines.append(f"{value} {operation} {n} = {result}.\n")
        key += [sentence, str(n)]
        value = result
    prompt += QUESTION.format(thing=thing)
    answer = "".join(lines) + f"#### {value}"
    return Problem("arithmetic", prompt, answer, difficulty, "|".join(key), {"final": str(value)})


def apply(value: int, operation: str, n: int) -> int:
    return {"+": value + n, "-": value - n, "*": value * n}[operation]


register(Task("arithmetic", draw, same_final))
