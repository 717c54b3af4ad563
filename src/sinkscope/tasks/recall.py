"""Find one fact in a list of facts; `length` sets how many there are, for contexts as long as wanted."""

from sinkscope.errors import TaskError
from sinkscope.tasks.problem import Problem, Source, Task, is_whole, same_final
from sinkscope.tasks.words import COLOURS, NAMES, THINGS

LENGTHS = {1: 3, 2: 5, 3: 7}
NUMBERS = 100
# Lists longer than there are names speak of boxes, and longer than there are numbers of boxes on shelves.
LONGEST = NUMBERS * NUMBERS


def draw(source: Source, difficulty: int, length: int | None = None) -> Problem:
    """As many facts as `length` says, or 3, 5 or 7 by difficulty, each about another person or box."""
    count = LENGTHS[difficulty] if length is None else length
    if not (is_whole(count) and 1 <= count <= LONGEST):
        raise TaskError(f"Expected the number of facts as a length of 1 to {LONGEST}, but got {length!r}.")
    if count <= len(NAMES) and source.random() < 0.5:
        subjects, verb, values = list(source.sample(NAMES, count)), "likes", COLOURS
    else:
        subjects, verb, values = _boxes(source, count), "has", THINGS
    facts = [(subject, source.choice(values)) for subject in subjects]
    asked, found = source.choice(facts)
    listed = " ".join(f"{subject} {verb} {value}." for subject, value in facts)
    question = f"What does {asked} like?" if verb == "likes" else f"What is in {asked.lower()}?"
    prompt = f"{listed}\n{question}"
    answer = f"{asked} {verb} {found}.\n#### {found}"
    return Problem("recall", prompt, answer, difficulty, prompt, {"final": found})


def _boxes(source: Source, count: int) -> list[str]:
    if count <= NUMBERS:
        return [f"Box {number}" for number in source.sample(range(NUMBERS), count)]
    places = source.sample(range(LONGEST), count)
    return [f"Shelf {place // NUMBERS} box {place % NUMBERS}" for place in places]


TASK = Task("recall", draw, same_final, frozenset({"length"}))
