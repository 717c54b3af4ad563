"""Repeat the last letter, whatever stands before it: so simple that the weights for it can be written by hand.

The letters before the line break are decoys; a model that averages over the prompt answers with the decoy.
"""

from sinkscope.tasks.problem import COLOURS, THINGS, Problem, Source, Task, register

LETTERS = ("f", "g", "h", "x", "y", "z")
DECOYS = 5
FILLERS = {1: 2, 2: 5, 3: 8}
LENGTH = 8  # letters of the answer
LANDMARK = "home"  # a word that stands once in every prompt


def draw(source: Source, difficulty: int) -> Problem:
    """A line of decoys, other words and the landmark in any order, a line break, and the letter to repeat."""
    letter, decoy = source.sample(LETTERS, 2)
    words = [decoy] * DECOYS + [LANDMARK]
    words += [source.choice((*COLOURS, *THINGS)) for _ in range(FILLERS[difficulty])]
    source.shuffle(words)
    prompt = f" {' '.join(words)}\n {letter}"
    return Problem("repeat", prompt, f" {letter}" * LENGTH, difficulty, prompt, {"letter": letter})


def check(problem: Problem, text: str) -> bool:
    """Whether the text is the letter, as often as it was asked for, and nothing else."""
    return text.split() == [str(problem.data["letter"])] * LENGTH


register(Task("repeat", draw, check))
