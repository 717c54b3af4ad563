"""Two kinds for training only: say a list of facts again in another order, once or many times over.

A recall problem asks for one fact of many, so one token in fifty teaches the look-up, and the models stay for thousands of
steps at naming any value of the list. Here every line of the answer is a look-up, and a drill has sixteen of them.
No test ever asks for either.
"""

from sinkscope.tasks.problem import Problem, Source, Task, register, registered
from sinkscope.tasks.words import COLOURS, NAMES, THINGS

NAME, DRILL = "recite", "drill"
LINES = 16


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


def draw_drill(source: Source, difficulty: int) -> Problem:
    """A recital whose facts are drawn again and again, sixteen lines in all: too long for a canvas, made for ARMs."""
    once = draw(source, difficulty)
    facts = sorted(once.data["facts"])
    lines = "\n".join(source.choice(facts) for _ in range(LINES))
    return Problem(DRILL, once.prompt, lines, difficulty, once.key, once.data)


def check_drill(problem: Problem, text: str) -> bool:
    """Nothing but facts of the list."""
    return all(line.strip() in problem.data["facts"] for line in text.strip().split("\n"))


for task in (Task(NAME, draw, check), Task(DRILL, draw_drill, check_drill)):
    if task.name not in registered():
        register(task)
