"""How many unseen problems a checkpoint solves, greedily, with 95 % intervals: `python -m lab.evaluate`.

Goes through the package's own loaders and decoders, so what is measured are the stored, rounded weights.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import TrainingError
from sinkscope.errors import SinkscopeError

if TYPE_CHECKING:
    from sinkscope.models.model import Model
    from sinkscope.tasks.problem import Problem


@dataclass(frozen=True)
class Score:
    """One kind's result: solved out of n, with the Wilson interval."""

    model: str
    kind: str
    n: int
    correct: int
    accuracy: float
    low: float
    high: float
    seconds: float
    asked: str = ""  # what the command was told beside model, kinds and n


def wilson(correct: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a share, 95 % by default."""
    if n == 0:
        return 0.0, 1.0
    share = correct / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def solve(model: Model, asked: Sequence[Problem], batch: int = 50, **words: Any) -> list[bool]:
    """Which problems the model's answers solve; prompts of like length go together."""
    right = [False] * len(asked)
    order = sorted(range(len(asked)), key=lambda i: len(asked[i].prompt))
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        for number, text in zip(numbers, model.generate([asked[i].prompt for i in numbers], **words), strict=True):
            right[number] = asked[number].check(text)
    return right


def evaluate(
    name: str | Path,
    n: int = 500,
    kinds: Sequence[str] | None = None,
    split: str = "test",
    seed: int = 0,
    batch: int = 50,
    difficulty: int | None = None,
    dtype: str | None = None,
    mode: str | None = None,
    **words: Any,
) -> list[Score]:
    """Scores of one model on `n` problems of each kind; `words` change its decode settings."""
    from lab import pictures  # noqa: F401 - a kind of problem of its own
    from sinkscope.models.load import load
    from sinkscope.tasks import KINDS, problems

    model = load(str(name), dtype=dtype, mode=mode)
    wanted = list(kinds or (*KINDS, *(("pictures",) if model.family.name == "mmada" else ())))
    scores = []
    for kind in wanted:
        asked = list(problems(kind, n=n, split=split, seed=seed, difficulty=difficulty))
        started = time.monotonic()
        correct = sum(solve(model, asked, batch, **words))
        low, high = wilson(correct, n)
        took = round(time.monotonic() - started, 1)
        scores.append(Score(str(name), kind, n, correct, correct / n, low, high, took, _words(dtype, mode, words)))
    return scores


def _words(dtype: str | None, mode: str | None, settings: dict[str, Any]) -> str:
    """How these are written in the command."""
    told = [f"--{name} {value}" for name, value in (("dtype", dtype), ("mode", mode)) if value]
    changed = " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()
    )
    return " ".join([*told, *([f"--set {changed}"] if changed else [])])


def markdown(scores: Sequence[Score]) -> str:
    """A table with one row per kind and one column per model: percent solved, and the interval."""
    models = list(dict.fromkeys(score.model for score in scores))
    found = {(score.model, score.kind): score for score in scores}
    lines = [f"| kind | {' | '.join(Path(m).name for m in models)} |", "|---|" + "---|" * len(models)]
    for kind in dict.fromkeys(score.kind for score in scores):
        cells = []
        for model in models:
            score = found.get((model, kind))
            cells.append(f"{100 * score.accuracy:.1f} ({100 * score.low:.1f}–{100 * score.high:.1f})" if score else "–")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: scores of each model named, as a table, or as JSON lines into a file with --out."""
    parser = argparse.ArgumentParser(prog="python -m lab.evaluate", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="zoo name or checkpoint folder")
    parser.add_argument("-n", type=int, default=500, help="problems per kind")
    parser.add_argument("--kinds", nargs="+", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="test")
    parser.add_argument("--difficulty", type=int, default=None)
    parser.add_argument(
        "--dtype", default=None, help="e.g. bfloat16; the checkpoint's own, or float32 on a CPU, if left out"
    )
    parser.add_argument("--mode", default=None, help="of a checkpoint that decodes in several ways")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--out", type=Path, default=None, help="also write the scores as JSON")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="decode settings to change")
    given = parser.parse_args(arguments)
    try:
        words = dict(_setting(text) for text in given.set)
        scores: list[Score] = []
        for model in given.models:
            scores += evaluate(
                model,
                given.n,
                given.kinds,
                given.split,
                given.seed,
                given.batch,
                given.difficulty,
                given.dtype,
                given.mode,
                **words,
            )
            print(markdown([score for score in scores if score.model == model]), flush=True)
        if len(given.models) > 1:
            print(markdown(scores))
        if given.out is not None:
            given.out.write_text(json.dumps([asdict(score) for score in scores], indent=1) + "\n", encoding="utf-8")
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise TrainingError(f"a decode setting is written as name=value, not {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
