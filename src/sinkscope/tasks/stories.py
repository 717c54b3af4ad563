"""Stories of three steps with one number that arithmetic never has: room between right and wrong for a model trained on it.

As `arithmetic`, and exactly one of the three events has a 7 or an 8, so that no story is one of arithmetic's. The earlier it
comes, the more steps depend on it: in the last event (difficulty 1), the second (2) or the first (3).
"""

from sinkscope.tasks.arithmetic import EVENTS, HIGHEST, LARGEST, OPENINGS, QUESTION, apply
from sinkscope.tasks.problem import Problem, Source, Task, register, same_final
from sinkscope.tasks.words import NAMES, THINGS

STEPS = 3
NEW = (LARGEST + 1, LARGEST + 2)


def draw(source: Source, difficulty: int) -> Problem:
    """Three events, the new number in the one that the difficulty says."""
    name, thing, opening = source.choice(NAMES), source.choice(THINGS), source.choice(OPENINGS)
    while True:
        value = source.randint(1, 9)
        prompt, lines, key = opening.format(name=name, n=value, thing=thing), [], [opening, str(value)]
        for place in range(STEPS):
            operation, sentence = source.choice(EVENTS)
            n = source.choice(NEW) if place == STEPS - difficulty else source.randint(1, LARGEST)
            result = apply(value, operation, n)
            if not 0 <= result <= HIGHEST or (operation == "*" and n not in (2, 3)):
                break  # another story: to draw the event alone again would favour large numbers
            prompt += sentence.format(name=name, n=n)
            lines.append(f"{value} {operation} {n} = {result}.\n")
            key += [sentence, str(n)]
            value = result
        else:
            answer = "".join(lines) + f"#### {value}"
            prompt += QUESTION.format(thing=thing)
            return Problem("stories", prompt, answer, difficulty, "|".join(key), {"final": str(value)})


register(Task("stories", draw, same_final))
