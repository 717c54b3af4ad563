"""How likely natural solutions are to a model that was trained on small problems: `python -m lab.experiments.solutions`.

Reads lines of {"question", "answer"} (GSM8K's form). Log-likelihood of the answer behind the question, per token: exact for an
autoregressive model, the bound over random orders for a diffusion model. Compare each with what it was before, not the two with
each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.errors import TrainingError
from sinkscope.decoding.likelihood import chain_likelihoods, masked_likelihood
from sinkscope.errors import SinkscopeError
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.statistics import bootstrap


@dataclass(frozen=True)
class Solutions:
    """Mean log-likelihood per token over so many solutions, with its 95 % interval over them."""

    model: str
    n: int
    tokens: int
    exact: bool
    value: float
    low: float
    high: float


def read(path: Path, n: int) -> list[tuple[str, str]]:
    """The first `n` pairs of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:n]
        pairs = [(row["question"], row["answer"]) for row in map(json.loads, lines)]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path.name} must hold lines of question and answer, as GSM8K's; {type(error).__name__}."
        ) from None
    if len(pairs) < max(n, 2) or not all(isinstance(text, str) and text for pair in pairs for text in pair):
        raise TrainingError(
            f"{path.name} must hold at least {max(n, 2)} lines of question and answer; take fewer with -n."
        )
    return pairs


def solutions(model: Model, name: str, pairs: Sequence[tuple[str, str]], samples: int = 8) -> Solutions:
    """Score every answer behind its question, as plain text with a line break between."""
    values, tokens = [], 0
    for question, answer in pairs:
        context = model.encode(question + "\n", chat=False)[0].tolist()
        scored = model.require_tokenizer()(answer, add_special_tokens=False)["input_ids"]
        if model.causal:
            found = chain_likelihoods(model, [(context, scored)])[0]
        else:
            found = masked_likelihood(model, context, scored, samples=samples, batch_size=4, greedy=False)
        values.append(found.value / found.tokens)
        tokens += found.tokens
    low, high = bootstrap(values, 2000, 0)
    return Solutions(name, len(values), tokens, model.causal, sum(values) / len(values), low, high)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: a line per model, and JSON with --out."""
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.solutions", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="zoo name or folder")
    parser.add_argument("--file", type=Path, required=True, help="lines of question and answer")
    parser.add_argument("-n", type=int, default=24, help="solutions that are read")
    parser.add_argument("--samples", type=int, default=8, help="maskings per solution, of a diffusion model")
    parser.add_argument("--out", type=Path, default=None, help="also write JSON")
    given = parser.parse_args(arguments)
    try:
        pairs = read(given.file, given.n)
        found = []
        for name in given.models:
            one = solutions(load(name), name, pairs, given.samples)
            found.append(asdict(one))
            kind = "exact" if one.exact else f"bound, {given.samples} maskings"
            print(f"{name}: {one.value:.3f} [{one.low:.3f}, {one.high:.3f}] nats per token "
                  f"({one.n} solutions, {one.tokens} tokens, {kind})", flush=True)  # fmt: skip
        if given.out is not None:
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
