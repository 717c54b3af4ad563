"""Walk a 5 × 5 grid from a start to a goal, past a wall; every plan that arrives counts."""

import re

from sinkscope.tasks.problem import Problem, Source, Task, final, register

SIZE = 5
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}
# How one may say where things are; decoration, so that a test has many texts of the same few grids.
STANDS = ("is", "stands")
GOALS = ("The goal is", "Its home is")
WALKERS = ("robot", "cat", "dog", "fox")
# How many moves a way has at each difficulty; a wall stands on the grid at the last.
MOVES_TO_GOAL = {1: range(1, 4), 2: range(4, 7), 3: range(1, 6)}

Square = tuple[int, int]


def draw(source: Source, difficulty: int) -> Problem:
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


def check(problem: Problem, text: str) -> bool:
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


register(Task("planning", draw, check))
