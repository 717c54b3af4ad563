"""Short chains of facts: who is the tallest, and what follows from a few if-then rules."""

import itertools

from sinkscope.tasks.problem import Problem, Source, Task, same_final
from sinkscope.tasks.words import NAMES

# comparative, the question for the first of the order, the question for the last
ORDERS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
)
PROPERTIES = ("red", "cold", "soft", "round", "heavy", "old", "wet", "sweet", "new", "loud")
SUBJECTS = ("box", "ball", "stone", "cup")


def draw(source: Source, difficulty: int) -> Problem:
    """An ordering or a chain of rules, evenly."""
    return source.choice((_ordering, _rules))(source, difficulty)


def _ordering(source: Source, difficulty: int) -> Problem:
    """Two facts in order, two against it, or three in any order."""
    comparative, first, last = source.choice(ORDERS)
    people = source.sample(NAMES, 4 if difficulty == 3 else 3)
    pairs = list(itertools.pairwise(people))
    if difficulty == 2:
        pairs.reverse()
    elif difficulty == 3:
        source.shuffle(pairs)
    asked = source.choice((first, last))
    found = people[0] if asked == first else people[-1]
    facts = " ".join(f"{a} is {comparative} than {b}." for a, b in pairs)
    prompt = f"{facts}\nWho is the {asked}?"
    answer = f"{', '.join(people)}.\n#### {found}"
    return Problem("logic", prompt, answer, difficulty, prompt, {"final": found})


def _rules(source: Source, difficulty: int) -> Problem:
    """As many rules to follow as the difficulty, and one more that leads astray; half of the answers are no."""
    words = source.sample(PROPERTIES, difficulty + 3)
    chain, (other, astray) = words[: difficulty + 1], words[difficulty + 1 :]
    rules = [*itertools.pairwise(chain), (other, astray)]
    source.shuffle(rules)
    yes = source.random() < 0.5
    asked = source.choice(chain[1:]) if yes else astray
    facts = " ".join(f"If {a}, then {b}." for a, b in rules)
    subject = source.choice(SUBJECTS)
    found = "yes" if yes else "no"
    prompt = f"{facts}\nThe {subject} is {chain[0]}. Is it {asked}?"
    answer = f"{', '.join(chain)}.\n#### {found}"
    # The thing that is red or cold is decoration: the split goes by the rules.
    return Problem("logic", prompt, answer, difficulty, f"{facts}|{chain[0]}|{asked}", {"final": found})


TASK = Task("logic", draw, same_final)
