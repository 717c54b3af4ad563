"""Two kinds whose facts stand far apart among lines that do not matter, for models with a long context.

`needle` is recall among distractors: a card somewhere between other lines that hold values of the same sorts.
`errands` is composition over distant lines: two commands in different places, to be carried out one after the other.
"""

from collections.abc import Callable, Sequence

from sinkscope.errors import TaskError
from sinkscope.fields import maybe, need, whole
from sinkscope.tasks import composition, recall
from sinkscope.tasks.problem import COLOURS, NAMES, THINGS, Problem, Source, Task, register, same_final

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
    about = recall.draw(source, difficulty, length=len(recall.FIELDS))
    card, question = about.prompt.split("\n")
    prompt = f"{_among(source, [card], difficulty, lines, (*FILLERS, _command))}\n{question}"
    return Problem("needle", prompt, about.answer, difficulty, prompt, about.data)


def draw_errands(source: Source, difficulty: int, lines: int | None = None) -> Problem:
    """Two commands among other lines: what stands first is done first."""
    phrases = [composition.phrase(source, difficulty) for _ in range(2)]
    first, second = map(composition.say, phrases)
    told = _among(source, [f"Now {first}.", f"Please {second}."], difficulty, lines, FILLERS)
    return composition.carried_out("errands", f"{told}\n{QUESTION}", phrases, difficulty)


def _among(source: Source, kept: Sequence[str], difficulty: int, lines: int | None, fillers: Sequence[Filler]) -> str:
    """The kept lines, in their order, at random places among others."""
    need("lines, the number of others,", lines, maybe(whole(0, MOST_LINES)), TaskError)
    count = len(kept) + (LINES[difficulty] if lines is None else lines)
    places, rest = set(source.sample(range(count), len(kept))), iter(kept)
    return "\n".join(next(rest) if place in places else source.choice(fillers)(source) for place in range(count))


def _command(source: Source) -> str:
    return f"Please {composition.say(composition.phrase(source, 2))}."


register(Task("needle", draw_needle, same_final, frozenset({"lines"})))
register(Task("errands", draw_errands, composition.check, frozenset({"lines"})))
