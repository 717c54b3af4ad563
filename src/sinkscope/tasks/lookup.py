"""Find facts: on a card, in a list as long as wanted, or far apart among lines that do not matter.

`needle` is recall among distractors: a card somewhere between other lines that hold values of the same sorts.
`errands` is composition over distant lines: two commands in different places, to be carried out one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from sinkscope.errors import TaskError
from sinkscope.tasks.problem import COLOURS, NAMES, THINGS, Problem, Source, Task, register, same_final
from sinkscope.tasks.reasoning import check_composition, draw_phrase, make_composition, say
from sinkscope.validation import validate

FACTS = {1: 2, 2: 3, 3: 4}
NUMBERS = 100
LONGEST = NUMBERS * NUMBERS
FIELDS = {"name": NAMES, "colour": COLOURS, "thing": THINGS, "number": tuple(map(str, range(21)))}


def draw_recall(source: Source, difficulty: int, length: int | None = None) -> Problem:
    """As many facts as `length` says, or 2, 3 or 4 by difficulty."""
    count = FACTS[difficulty] if length is None else length
    validate(Annotated[int, Field(strict=True, ge=1, le=LONGEST)], count, "the number of facts length", TaskError)
    if count <= len(FIELDS):
        facts = [(field, source.choice(FIELDS[field])) for field in source.sample(tuple(FIELDS), count)]
        asked, found = source.choice(facts)
        prompt = f"{_write_facts('Card', facts)}\nWhat is the {asked}?"
        answer = f"The {asked} is {found}.\n#### {found}"
    else:
        # Where numbers run out, a box has two as its key.
        if count <= NUMBERS:
            keys = [str(number) for number in source.sample(range(NUMBERS), count)]
        else:
            keys = [f"{place // NUMBERS} {place % NUMBERS}" for place in source.sample(range(LONGEST), count)]
        facts = [(key, str(source.randrange(NUMBERS))) for key in keys]
        asked, found = source.choice(facts)
        prompt = f"{_write_facts('Boxes', facts)}\nWhat is in box {asked}?"
        answer = f"{_write_facts('Boxes', [(asked, found)])}\n#### {found}"
    return Problem("recall", prompt, answer, difficulty, prompt, {"final": found})


def _write_facts(head: str, facts: list[tuple[str, str]]) -> str:
    return f"{head}: {', '.join(f'{key} {value}' for key, value in facts)}."


register(Task("recall", draw_recall, same_final, frozenset({"length"})))


# ---- facts among other lines

LINES = {1: 4, 2: 20, 3: 58}  # lines that do not matter; 58 of them fill 512 positions with a canvas of 24
MOST_LINES = 1000
BODIES = ("ball", "box", "cat", "cup", "dog", "fox", "robot")
COMPARATIVES = ("taller", "older", "faster")
QUESTION = "Can you?"
Filler = Callable[[Source], str]
FILLERS: tuple[Filler, ...] = (
    lambda source: f"{source.choice(NAMES)} has {source.randrange(21)} {source.choice(THINGS)}.",
    lambda source: f"The {source.choice(BODIES)} is {source.choice(COLOURS)}.",
    lambda source: f"The {source.choice(BODIES)} stands at {source.randrange(21)}, {source.randrange(21)}.",
    lambda source: "{0[0]} is {1} than {0[1]}.".format(source.sample(NAMES, 2), source.choice(COMPARATIVES)),
)


def draw_needle(source: Source, difficulty: int, lines: int | None = None) -> Problem:
    """A card among other lines, and a question about one of its fields."""
    about = draw_recall(source, difficulty, length=len(FIELDS))
    card, question = about.prompt.split("\n")
    prompt = f"{_among(source, [card], difficulty, lines, (*FILLERS, _command))}\n{question}"
    return Problem("needle", prompt, about.answer, difficulty, prompt, about.data)


def draw_errands(source: Source, difficulty: int, lines: int | None = None) -> Problem:
    """Two commands among other lines: what stands first is done first."""
    phrases = [draw_phrase(source, difficulty) for _ in range(2)]
    first, second = map(say, phrases)
    told = _among(source, [f"Now {first}.", f"Please {second}."], difficulty, lines, FILLERS)
    return make_composition("errands", f"{told}\n{QUESTION}", phrases, difficulty)


def _among(source: Source, kept: Sequence[str], difficulty: int, lines: int | None, fillers: Sequence[Filler]) -> str:
    """The kept lines, in their order, at random places among others."""
    limit = Annotated[int | None, Field(strict=True, ge=0, le=MOST_LINES)]
    validate(limit, lines, "the number of other lines", TaskError)
    count = len(kept) + (LINES[difficulty] if lines is None else lines)
    places, rest = set(source.sample(range(count), len(kept))), iter(kept)
    return "\n".join(next(rest) if place in places else source.choice(fillers)(source) for place in range(count))


def _command(source: Source) -> str:
    return f"Please {say(draw_phrase(source, 2))}."


register(Task("needle", draw_needle, same_final, frozenset({"lines"})))
register(Task("errands", draw_errands, check_composition, frozenset({"lines"})))
