"""Short chains of ordering facts: who is the tallest, oldest, fastest, or the least so."""

import itertools

from sinkscope.tasks.problem import NAMES, Problem, Source, Task, register, same_final

# comparative, the question for the first of the order, the question for the last
ORDERS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
)


def draw(source: Source, difficulty: int) -> Problem:
    """Two facts in order, two against it, or three in order or against it."""
    comparative, first, last = source.choice(ORDERS)
    people = source.sample(NAMES, 4 if difficulty == 3 else 3)
    pairs = list(itertools.pairwise(people))
    if difficulty == 2 or (difficulty == 3 and source.random() < 0.5):
        pairs.reverse()
    asked = source.choice((first, last))
    found = people[0] if asked == first else people[-1]
    facts = " ".join(f"{a} is {comparative} than {b}." for a, b in pairs)
    prompt = f"{facts}\nWho is the {asked}?"
    answer = f"So {', '.join(people)}.\n#### {found}"
    return Problem("logic", prompt, answer, difficulty, prompt, {"final": found})


register(Task("logic", draw, same_final))
