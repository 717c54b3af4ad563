"""Batches from the generators: what is shown at a step depends on the seed and the step alone, so a run can resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lab import pictures  # noqa: F401 - a kind of problem of its own
from lab.errors import TrainingError
from lab.objectives import Rows
from lab.recipe import Recipe
from sinkscope.models.family import render_chat
from sinkscope.tasks import problems
from sinkscope.tasks.problem import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lab.adaptation import Adaptation

_SENTINEL = "sinkscope"


def rng_of(seed: int, step: int, purpose: int) -> np.random.Generator:
    """A random source that depends on nothing but these three numbers."""
    return np.random.default_rng([seed, step, purpose])


@dataclass(frozen=True)
class Coder:
    """Problems to ids: the chat template is rendered once and cut at the content, which is much faster."""

    tokenizer: PreTrainedTokenizerBase
    before: str
    after: str
    end: int  # end of turn
    fill: int  # end of text
    begin: bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, begin: bool = True) -> Coder:
        """Take the template of this tokenizer apart."""
        before, _, after = render_chat(tokenizer, [{"role": "user", "content": _SENTINEL}]).partition(_SENTINEL)
        if not begin:
            before = before.removeprefix(str(tokenizer.bos_token))
        end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
        fill = tokenizer.eos_token_id
        if not isinstance(end, int) or not isinstance(fill, int):
            raise TrainingError("the tokenizer must have <|eot_id|> and an end-of-text token; take the family's own.")
        return cls(tokenizer, before, after, end, fill, begin)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Chat prompts as ids, up to and with the assistant's header."""
        if not texts:
            return []
        full = [self.before + text + self.after for text in texts]
        ids: list[list[int]] = self.tokenizer(full, add_special_tokens=False)["input_ids"]
        return ids

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers as ids, each with its end of turn."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return [[*row, self.end] for row in ids]


def shares(kinds: dict[str, float], count: int, rng: np.random.Generator) -> dict[str, int]:
    """How many of `count` problems each kind gets: its share, with the remainder drawn by lot.

    Kinds go by name, since the order in which a YAML file lists them must not change a run.
    """
    total = sum(kinds.values())
    exact = {kind: count * kinds[kind] / total for kind in sorted(kinds)}
    counts = {kind: int(value) for kind, value in exact.items()}
    rest = count - sum(counts.values())
    if rest:
        names = list(counts)
        odds = np.array([exact[name] - counts[name] for name in names]) + 1e-9
        for name in rng.choice(names, size=rest, p=odds / odds.sum()):
            counts[str(name)] += 1
    return counts


def draw_problems(recipe: Recipe | Adaptation, step: int) -> list[Problem]:
    """The problems of one step."""
    rng = rng_of(recipe.seed, step, 0)
    drawn: list[Problem] = []
    for kind, count in shares(recipe.data.kinds, recipe.batch, rng).items():
        level = recipe.data.difficulty.get(kind)
        seed = int(rng.integers(2**62))
        drawn.extend(problems(kind, n=count, split="train", seed=seed, difficulty=level))
    return drawn


def rows_of(coder: Coder, drawn: Sequence[Problem], canvas: int | None) -> Rows:
    """One chunk of rows; with a canvas every prompt is followed by at least that many positions."""
    prompts, answers = coder.prompts([p.prompt for p in drawn]), coder.answers([p.answer for p in drawn])
    ends = [len(p) + len(a) for p, a in zip(prompts, answers, strict=True)]
    length = max(ends) if canvas is None else max(*ends, max(map(len, prompts)) + canvas)
    ids = torch.full((len(drawn), length), coder.fill, dtype=torch.int64)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : ends[row]] = torch.tensor(prompt + answer)
    return Rows(ids, torch.tensor([len(p) for p in prompts]), torch.tensor(ends))


def chunks_of(recipe: Recipe, coder: Coder, step: int) -> list[Rows]:
    """The rows of one step, cut into chunks of like length so that little is computed on filling."""
    drawn = draw_problems(recipe, step)
    key = (lambda p: len(p.prompt) + len(p.answer)) if recipe.causal else (lambda p: len(p.prompt))
    drawn.sort(key=key)
    rng = rng_of(recipe.seed, step, 1)
    size = recipe.batch // recipe.chunks
    canvases = [None if recipe.causal else int(rng.choice(recipe.data.canvas)) for _ in range(recipe.chunks)]
    return [rows_of(coder, drawn[i * size : (i + 1) * size], canvases[i]) for i in range(recipe.chunks)]
