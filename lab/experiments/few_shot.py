"""Sums behind worked examples, prompts of hundreds of tokens: `python -m lab.experiments.few_shot smol-llama -n 8`.

The examples are problems of arithmetic's training split with their answers, in one turn before the question. How many questions
does a model answer that was trained without examples?
"""

from __future__ import annotations

import argparse

import sinkscope as sk
from sinkscope.tasks import arithmetic, problems, register, split_of
from sinkscope.tasks.problem import DIFFICULTIES, Problem, Source, Task, same_final

KIND = "examples"
SHOTS = 6


def draw(source: Source, difficulty: int, shots: int = SHOTS) -> Problem:
    """A question of that difficulty behind `shots` worked examples of all difficulties."""
    asked = arithmetic.draw(source, difficulty)
    before = "".join(f"{one.prompt}\n{one.answer}\n\n" for one in (_example(source) for _ in range(shots)))
    return Problem(KIND, before + asked.prompt, asked.answer, difficulty, asked.key, asked.data)


def _example(source: Source) -> Problem:
    while True:
        found = arithmetic.draw(source, source.choice(DIFFICULTIES))
        if split_of("arithmetic", found.key) == "train":
            return found


def make_known() -> None:
    """Let studies and recipes ask for the task by name."""
    register(Task(KIND, draw, same_final, frozenset({"shots"})), replace=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=8, help="questions")
    parser.add_argument("--shots", type=int, default=SHOTS)
    given = parser.parse_args()
    make_known()
    model = sk.load(given.model, dtype="bfloat16")
    words = {"length": 40} if model.causal else {"stop": "eos"}
    asked = list(problems(KIND, given.n, shots=given.shots))
    right = sum(one.check(model.generate(one.prompt, **words)) for one in asked)
    sizes = [model.encode(one.prompt).shape[1] for one in asked]
    print(f"{given.model}: {right} of {given.n} right, prompts of {min(sizes)} to {max(sizes)} tokens")


if __name__ == "__main__":
    main()
