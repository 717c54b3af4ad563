"""Commands made of known parts in combinations never seen in training, as in SCAN: `jump twice, then walk left`."""

import itertools
import re
from collections.abc import Sequence

from sinkscope.tasks.problem import Problem, Source, Task, register

VERBS = ("walk", "run", "jump", "look", "hop", "crawl", "dance", "swim")
TURNS = ("", " left", " right")
TIMES = {"": 1, " twice": 2, " thrice": 3}
MOST_ACTIONS = 12
END = "Done."

Phrase = tuple[str, str, str]  # verb, turn, times
say = "".join


def draw(source: Source, difficulty: int) -> Problem:
    """Two phrases without turns; two with at least one; two that `after` swaps, or three."""
    while True:
        count = source.choice((2, 3)) if difficulty == 3 else 2
        phrases: list[Phrase] = [phrase(source, difficulty) for _ in range(count)]
        said, done = [*map(say, phrases)], phrases
        if count == 3:
            command = f"{said[0]}, {said[1]} and {said[2]}"
        elif difficulty == 3:
            command, done = f"{said[0]} after you {said[1]}", phrases[::-1]
        else:
            command = said[0] + source.choice((" and ", ", then ")) + said[1]
        turns = any(turn for _, turn, _ in phrases)
        if sum(len(_act(one)) for one in phrases) <= MOST_ACTIONS and (turns or difficulty != 2):
            break
    prompt = source.choice(("Now {}.", "Please {}.", "Can you {}?")).format(command)
    return carried_out("composition", prompt, done, difficulty)


def carried_out(kind: str, prompt: str, phrases: Sequence[Phrase], difficulty: int) -> Problem:
    """The problem of doing these, one after the other."""
    actions = [_act(one) for one in phrases]
    answer = "".join(" ".join(line) + ".\n" for line in actions) + END
    # Which phrases stand together decides the split, in whatever order and however they are joined.
    key = "|".join(sorted(map(say, phrases)))
    return Problem(kind, prompt, answer, difficulty, key, {"actions": tuple(itertools.chain(*actions))})


def check(problem: Problem, text: str) -> bool:
    """The words before the end sign must be exactly the actions, in order; points and line breaks do not count."""
    body, end, _ = text.partition(END.removesuffix("."))
    return bool(end) and tuple(re.split(r"[\s.,]+", body.strip(" \n.,"))) == problem.data["actions"]


def phrase(source: Source, difficulty: int) -> Phrase:
    turn = source.choice(TURNS) if difficulty > 1 else ""
    return source.choice(VERBS), turn, source.choice(tuple(TIMES))


def _act(one: Phrase) -> list[str]:
    verb, turn, times = one
    return [word for _ in range(TIMES[times]) for word in (turn.strip(), verb) if word]


register(Task("composition", draw, check))
