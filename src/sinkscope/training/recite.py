"""A kind for training only: say a list of facts again in another order, which teaches to look facts up.

A recall problem asks for one fact of many, so one token in fifty teaches the look-up, and the models stay for thousands of
steps at naming any value of the list. Here every line of the answer is a look-up. No test ever asks for it.
"""

from sinkscope.tasks.problem import Problem, Source, Task, register, registered
from sinkscope.tasks.words import COLOURS, NAMES, THINGS

NAME = "recite"


def draw(source: Source, difficulty: int) -> Problem:
    """Two to four facts about people, or two or three about boxes, and the same ones in another order."""
    if source.random() < 0.5:
        subjects, verb, values = source.sample(NAMES, difficulty + 1), "likes", COLOURS
        question = "What does every friend like?"
    else:
        numbers = source.sample(range(100), min(3, difficulty + 1))
        subjects, verb, values = [f"Box {number}" for number in numbers], "has", THINGS
        question = "What is in every box?"
    facts = [f"{subject} {verb} {source.choice(values)}." for subject in subjects]
    prompt = f"{' '.join(facts)}\n{question}"
    source.shuffle(facts)
    return Problem(NAME, prompt, "\n".join(facts), difficulty, prompt, {"facts": frozenset(facts)})


def check(problem: Problem, text: str) -> bool:
    """The same facts, each once, in any order."""
    said = [line.strip() for line in text.strip().split("\n")]
    return len(said) == len(problem.data["facts"]) and set(said) == problem.data["facts"]


TASK = Task(NAME, draw, check)
if NAME not in registered():
    register(TASK)
