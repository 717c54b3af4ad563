"""Stories of three steps that arithmetic's training never has: room between right and wrong for a model trained on it.

As `arithmetic`, always with three events. Difficulties 1 and 2 have its numbers, in stories of its test split: without a product,
and with one or more. Difficulty 3 has one number that it never has, a 7, in the last event.
"""

from sinkscope.tasks.arithmetic import EVENTS, HIGHEST, LARGEST, OPENINGS, QUESTION, apply
from sinkscope.tasks.problem import Problem, Source, Task, register, same_final
from sinkscope.tasks.supply import split_of
from sinkscope.tasks.words import NAMES, THINGS

STEPS = 3
NEW = LARGEST + 1


def draw(source: Source, difficulty: int) -> Problem:
    """Three events, drawn until they are of that difficulty."""
    name, thing, opening = source.choice(NAMES), source.choice(THINGS), source.choice(OPENINGS)
    while True:
        value = source.randint(1, 9)
        prompt, lines, key = opening.format(name=name, n=value, thing=thing), [], [opening, str(value)]
        for place in range(STEPS):
            operation, sentence = source.choice(EVENTS)
            n = NEW if difficulty == STEPS and place == STEPS - 1 else source.randint(1, LARGEST)
            result = apply(value, operation, n)
            if not 0 <= result <= HIGHEST or (operation == "*" and n not in (2, 3)):
                break  # another story: to draw the event alone again would favour some numbers
            prompt += sentence.format(name=name, n=n)
            lines.append(f"{value} {operation} {n} = {result}.\n")
            key += [sentence, str(n)]
            value = result
        content = "|".join(key)
        if len(lines) < STEPS or (difficulty < STEPS and split_of("arithmetic", content) != "test"):
            continue
        if difficulty == STEPS or any(" * " in line for line in lines) == (difficulty == 2):
            answer = "".join(lines) + f"#### {value}"
            prompt += QUESTION.format(thing=thing)
            return Problem("stories", prompt, answer, difficulty, content, {"final": str(value)})


register(Task("stories", draw, same_final))
