"""Problems of a few steps: combinations of known commands, chains of facts, ways on a grid, and a letter to repeat."""

import itertools
import re
from collections.abc import Sequence

from sinkscope.tasks.problem import COLOURS, NAMES, THINGS, Problem, Source, Task, final, register, same_final

# ---- composition: commands made of known parts in combinations never seen in training, as in SCAN

VERBS = ("walk", "run", "jump", "look", "hop", "crawl", "dance", "swim")
TURNS = ("", " left", " right")
TIMES = {"": 1, " twice": 2, " thrice": 3}
MOST_ACTIONS = 12
END = "Done."

Phrase = tuple[str, str, str]  # verb, turn, times
say = "".join


def draw_composition(source: Source, difficulty: int) -> Problem:
    """Two phrases without turns; two with at least one; two that `after` swaps, or three."""
    while True:
        count = source.choice((2, 3)) if difficulty == 3 else 2
        phrases: list[Phrase] = [draw_phrase(source, difficulty) for _ in range(count)]
        said, done = [*map(say, phrases)], phrases
        if count == 3:
            command = f"{said[0]}, {said[1]} and {said[2]}"
        elif difficulty == 3:
            command, done = f"{said[0]} after you {said[1]}", phrases[::-1]
        else:
            command = said[0] + source.choice((" and ", ", then ")) + said[1]
        turns = any(turn for _, turn, _ in phrases)
        if sum(len(_list_actions(one)) for one in phrases) <= MOST_ACTIONS and (turns or difficulty != 2):
            break
    prompt = source.choice(("Now {}.", "Please {}.", "Can you {}?")).format(command)
    return make_composition("composition", prompt, done, difficulty)


def make_composition(kind: str, prompt: str, phrases: Sequence[Phrase], difficulty: int) -> Problem:
    """The problem of doing these, one after the other."""
    actions = [_list_actions(one) for one in phrases]
    answer = "".join(" ".join(line) + ".\n" for line in actions) + END
    # Which phrases stand together decides the split, in whatever order and however they are joined.
    key = "|".join(sorted(map(say, phrases)))
    return Problem(kind, prompt, answer, difficulty, key, {"actions": tuple(itertools.chain(*actions))})


def check_composition(problem: Problem, text: str) -> bool:
    """The words before the end sign must be exactly the actions, in order; points and line breaks do not count."""
    body, end, _ = text.partition(END.removesuffix("."))
    return bool(end) and tuple(re.split(r"[\s.,]+", body.strip(" \n.,"))) == problem.data["actions"]


def draw_phrase(source: Source, difficulty: int) -> Phrase:
    turn = source.choice(TURNS) if difficulty > 1 else ""
    return source.choice(VERBS), turn, source.choice(tuple(TIMES))


def _list_actions(one: Phrase) -> list[str]:
    verb, turn, times = one
    return [word for _ in range(TIMES[times]) for word in (turn.strip(), verb) if word]


register(Task("composition", draw_composition, check_composition))


# ---- logic: short chains of ordering facts: who is the tallest, oldest, fastest, or the least so

# comparative, the question for the first of the order, the question for the last
ORDERS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
)


def draw_logic(source: Source, difficulty: int) -> Problem:
    """Two facts in order, two against it, or three in order or against it."""
    comparative, first, last = source.choice(ORDERS)
    people = source.sample(NAMES, 4 if difficulty == 3 else 3)
    pairs = list(itertools.pairwise(people))
    if difficulty == 2 or (difficulty == 3 and source.random() < 0.5):
        pairs.reverse()
    asked = source.choice((first, last))
    found = people[0] if asked == first else people[-1]
    facts = " ".join(f"{a} is {comparative} than {b}." for a, b in pairs)
    prompt = f"{facts}\nWho is the {asked}?"
    answer = f"So {', '.join(people)}.\n#### {found}"
    return Problem("logic", prompt, answer, difficulty, prompt, {"final": found})


register(Task("logic", draw_logic, same_final))


# ---- planning: walk a 5 × 5 grid from a start to a goal, past a wall; every plan that arrives counts

SIZE = 5
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}
# How one may say where things are; decoration, so that a test has many texts of the same few grids.
STANDS = ("is", "stands")
GOALS = ("The goal is", "Its home is")
WALKERS = ("robot", "cat", "dog", "fox")
# How many moves a way has at each difficulty; a wall stands on the grid at the last.
MOVES_TO_GOAL = {1: range(1, 4), 2: range(4, 7), 3: range(1, 6)}

Square = tuple[int, int]


def draw_plan(source: Source, difficulty: int) -> Problem:
    """A start, a goal so far away, and at the highest difficulty a wall."""
    while True:
        start, goal, wall = _square(source), _square(source), _square(source) if difficulty == 3 else None
        distance = abs(start[0] - goal[0]) + abs(start[1] - goal[1])
        if distance not in MOVES_TO_GOAL[difficulty] or wall in (start, goal):
            continue
        plan = _plan(start, goal, wall)
        if plan is None:
            continue
        # A wall that is in nobody's way teaches little: every other such grid is drawn again.
        if wall is None or wall in _squares(start, _plan(start, goal, None) or []) or source.random() < 0.5:
            break
    walker = source.choice(WALKERS)
    stands, aim = source.choice(STANDS), source.choice(GOALS)
    prompt = f"The {walker} {stands} at {start[0]}, {start[1]}. {aim} at {goal[0]}, {goal[1]}."
    if wall is not None:
        prompt += f" A wall is at {wall[0]}, {wall[1]}."
    prompt += "\nWhich way does it go?"
    counts = ", ".join(f"{plan.count(move)} {move}" for move in dict.fromkeys(plan))
    answer = f"{counts}.\n#### {', '.join(plan)}"
    data = {"start": start, "goal": goal, "wall": wall}
    return Problem("planning", prompt, answer, difficulty, f"{start} {goal} {wall}", data)


def check_plan(problem: Problem, text: str) -> bool:
    """Walk the plan behind the marker: it must stay on the grid, keep off the wall, and end at the goal."""
    plan = final(text)
    if plan is None or not re.fullmatch(r"[a-z]+(?:[ ,]+[a-z]+)*", plan):
        return False
    steps = re.split(r"[ ,]+", plan)
    if not MOVES.keys() >= set(steps):
        return False
    way = _squares(problem.data["start"], steps)
    on_grid = all(1 <= x <= SIZE and 1 <= y <= SIZE for x, y in way)
    return on_grid and problem.data["wall"] not in way and way[-1] == tuple(problem.data["goal"])


def _square(source: Source) -> Square:
    return source.randint(1, SIZE), source.randint(1, SIZE)


def _squares(start: Square, plan: list[str]) -> list[Square]:
    way = [start]
    for step in plan:
        (x, y), (dx, dy) = way[-1], MOVES[step]
        way.append((x + dx, y + dy))
    return way


def _plan(start: Square, goal: Square, wall: Square | None) -> list[str] | None:
    """Across and then up or down; if the wall is in that way, the other order; None if it is in both."""
    dx, dy = goal[0] - start[0], goal[1] - start[1]
    across = ["right" if dx > 0 else "left"] * abs(dx)
    along = ["up" if dy > 0 else "down"] * abs(dy)
    return next((plan for plan in (across + along, along + across) if wall not in _squares(start, plan)), None)


register(Task("planning", draw_plan, check_plan))


# ---- repeat: the last letter, whatever stands before it: so simple that the weights for it can be written by hand
# The letters before the line break are decoys; a model that averages over the prompt answers with the decoy.

LETTERS = ("f", "g", "h", "x", "y", "z")
DECOYS = 5
WORDS = {1: 2, 2: 5, 3: 8}
LENGTH = 8  # letters of the answer
LANDMARK = "home"  # a word that stands once in every prompt


def draw_repeat(source: Source, difficulty: int) -> Problem:
    """A line of decoys, other words and the landmark in any order, a line break, and the letter to repeat."""
    letter, decoy = source.sample(LETTERS, 2)
    words = [decoy] * DECOYS + [LANDMARK]
    words += [source.choice((*COLOURS, *THINGS)) for _ in range(WORDS[difficulty])]
    source.shuffle(words)
    prompt = f" {' '.join(words)}\n {letter}"
    return Problem("repeat", prompt, f" {letter}" * LENGTH, difficulty, prompt, {"letter": letter})


def check_repeat(problem: Problem, text: str) -> bool:
    """Whether the text is the letter, as often as it was asked for, and nothing else."""
    return text.split() == [str(problem.data["letter"])] * LENGTH


register(Task("repeat", draw_repeat, check_repeat))
