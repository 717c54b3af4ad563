"""Stories of three steps that arithmetic's training never has: room between right and wrong for a model trained on it.

As `arithmetic`, always with three events. Difficulties 1 and 2 have its numbers, in stories of its test split: without a product,
and with one or more. Difficulty 3 has one number that it never has, a 7, in the last event.
"""

from sinkscope.tasks.arithmetic import EVENTS, LARGEST, OPENINGS, Story
from sinkscope.tasks.problem import Problem, Source, Task, register, same_final, split_of
from sinkscope.tasks.words import NAMES, THINGS

STEPS = 3
NEW = LARGEST + 1


def draw(source: Source, difficulty: int) -> Problem:
    """Three events, drawn until they are of that difficulty."""
    about = source.choice(NAMES), source.choice(THINGS), source.choice(OPENINGS)
    while True:
        story = Story(*about, source.randint(1, 9))
        for place in range(STEPS):
            event = source.choice(EVENTS)
            n = NEW if difficulty == STEPS and place == STEPS - 1 else source.randint(1, LARGEST)
            if not story.goes_on(*event, n):
                break  # another story: to draw the event alone again would favour some numbers
        multiplies = any(" * " in line for line in story.lines)
        known = difficulty < STEPS and split_of("arithmetic", "|".join(story.key)) != "test"
        if len(story.lines) == STEPS and not known and (difficulty == STEPS or multiplies == (difficulty == 2)):
            return story.problem("stories", difficulty)


register(Task("stories", draw, same_final))
