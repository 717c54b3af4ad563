"""Word problems of one to three steps, every step written out: GSM8K in miniature.

The first number is below 10, later ones are at most 6, and every value stays within 0…20, so that a step is one
look-up in a small table. `stories` are of three steps that arithmetic's training never has: room between right and wrong for a
model trained on it. Difficulties 1 and 2 have its numbers, in stories of its test split: without a product, and with one
or more. Difficulty 3 has one number that it never has, a 7, in the last event.
"""

from sinkscope.tasks.problem import NAMES, THINGS, Problem, Source, Task, register, same_final, split_of

HIGHEST = 20
LARGEST = 6
# One sentence an event, as (operation, sentence). The sentence is part of the content that decides the split.
EVENTS = (
    ("+", " Then {name} finds {n}."),
    ("+", " A friend gives {n}."),
    ("+", " Then {name} buys {n}."),
    ("-", " Then {name} loses {n}."),
    ("-", " A friend takes {n}."),
    ("-", " Then {name} sells {n}."),
    ("*", " It becomes {n} times that."),
)
OPENINGS = ("{name} has {n} {thing}.", "There are {n} {thing}.")
QUESTION = "\nHow many {thing} are left?"


def draw(source: Source, difficulty: int) -> Problem:
    """A story with as many events as its difficulty."""
    story = Story(source.choice(NAMES), source.choice(THINGS), source.choice(OPENINGS), source.randint(1, 9))
    for _ in range(difficulty):
        while not story.goes_on(*source.choice(EVENTS), source.randint(1, LARGEST)):
            pass
    return story.problem("arithmetic", difficulty)


class Story:
    """A story that is being told: its text, the lines of its answer, and the content that decides the split."""

    def __init__(self, name: str, thing: str, opening: str, value: int) -> None:
        self.name, self.thing, self.value = name, thing, value
        self.prompt = opening.format(name=name, n=value, thing=thing)
        self.key, self.lines = [opening, str(value)], list[str]()

    def goes_on(self, operation: str, sentence: str, n: int) -> bool:
        """Tell one event, unless its numbers are none of this kind's."""
        result = {"+": self.value + n, "-": self.value - n, "*": self.value * n}[operation]
        if not 0 <= result <= HIGHEST or (operation == "*" and n not in (2, 3)):
            return False
        self.prompt += sentence.format(name=self.name, n=n)
        self.lines.append(f"{self.value} {operation} {n} = {result}.\n")
        self.key += [sentence, str(n)]
        self.value = result
        return True

    def problem(self, kind: str, difficulty: int) -> Problem:
        answer = "".join(self.lines) + f"#### {self.value}"
        prompt = self.prompt + QUESTION.format(thing=self.thing)
        return Problem(kind, prompt, answer, difficulty, "|".join(self.key), {"final": str(self.value)})


register(Task("arithmetic", draw, same_final))


# ---- stories ----

STEPS = 3
NEW = LARGEST + 1


def draw_stories(source: Source, difficulty: int) -> Problem:
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


register(Task("stories", draw_stories, same_final))
