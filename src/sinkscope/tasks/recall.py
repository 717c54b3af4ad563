"""Find one fact on a card, or, with a `length` beyond the card's fields, in a list as long as wanted."""

from sinkscope.errors import TaskError
from sinkscope.fields import need, whole
from sinkscope.tasks.problem import COLOURS, NAMES, THINGS, Problem, Source, Task, register, same_final

LENGTHS = {1: 2, 2: 3, 3: 4}
NUMBERS = 100
LONGEST = NUMBERS * NUMBERS
FIELDS = {"name": NAMES, "colour": COLOURS, "thing": THINGS, "number": tuple(map(str, range(21)))}


def draw(source: Source, difficulty: int, length: int | None = None) -> Problem:
    """As many facts as `length` says, or 2, 3 or 4 by difficulty."""
    count = LENGTHS[difficulty] if length is None else length
    need("length, the number of facts,", count, whole(1, LONGEST), TaskError)
    if count <= len(FIELDS):
        facts = [(field, source.choice(FIELDS[field])) for field in source.sample(tuple(FIELDS), count)]
        asked, found = source.choice(facts)
        prompt = f"{_told('Card', facts)}\nWhat is the {asked}?"
        answer = f"The {asked} is {found}.\n#### {found}"
    else:
        # Where numbers run out, a box has two as its key.
        if count <= NUMBERS:
            keys = [str(number) for number in source.sample(range(NUMBERS), count)]
        else:
            keys = [f"{place // NUMBERS} {place % NUMBERS}" for place in source.sample(range(LONGEST), count)]
        facts = [(key, str(source.randrange(NUMBERS))) for key in keys]
        asked, found = source.choice(facts)
        prompt = f"{_told('Boxes', facts)}\nWhat is in box {asked}?"
        answer = f"{_told('Boxes', [(asked, found)])}\n#### {found}"
    return Problem("recall", prompt, answer, difficulty, prompt, {"final": found})


def _told(head: str, facts: list[tuple[str, str]]) -> str:
    return f"{head}: {', '.join(f'{key} {value}' for key, value in facts)}."


register(Task("recall", draw, same_final, frozenset({"length"})))
