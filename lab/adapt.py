"""Adapters of a larger language model: its weights are frozen, and only small changes are trained."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lab import checkpoint
from lab.adaptation import Adaptation
from lab.adapter_export import export_adapter, trained_weights
from lab.data import Coder, draw_problems, rng_of, rows_of
from lab.directions import prefix_visible
from lab.errors import TrainingError
from lab.loop import Run, Step
from lab.lora import Trained, merge_all, wrap
from lab.objectives import Rows, Targets, even_ratios, masked, next_token
from lab.optimiser import Optimisation
from lab.progress import Progress
from sinkscope.models.adapters import is_adapter, read_adapter
from sinkscope.models.family import render_chat
from sinkscope.tasks.problem import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# For bases with these markers. Without the system prompt of SmolLM2: 21 tokens, half of a row, that say nothing.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Nothing before the user's own words.
BARE = (
    "{% for message in messages %}{{ message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ENDS = (". ", ": ", "\n", " - ", ", ")


@dataclass
class _Since:
    """What was seen since the last line of the curve."""

    loss: float = 0.0
    tokens: int = 0
    right: dict[str, list[float]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


class AdapterRun(Run):
    """`start` names the folder of the run whose adapter it starts from, where that is not beside `out`."""

    def __init__(self, recipe: Adaptation, out: Path, start: Path | None = None) -> None:
        from sinkscope.models.load import load

        super().__init__(recipe, out)
        base = load(recipe.base)
        self.base_fingerprint = base.fingerprint
        self.tokenizer = base.require_tokenizer()
        set_template(self.tokenizer, recipe.prefix)
        self.coder = coder_of(self.tokenizer)
        self.words = plain_words(self.tokenizer) if recipe.prefix == "varied" else []
        if recipe.prefix == "varied" and not self.words:
            raise TrainingError(f"prefix: varied needs words in the vocabulary of {recipe.base}, found none; use chat.")
        known = self.tokenizer.get_vocab()
        if recipe.mask_token is not None and recipe.mask_token not in known:
            raise TrainingError(f"mask_token {recipe.mask_token!r} is no token of {recipe.base}; fix the recipe.")
        self.mask_id = known[recipe.mask_token] if recipe.mask_token is not None else None
        self.module = base.module
        wrap(self.module, recipe.rank, recipe.alpha, self.mask_id, recipe.seed, getattr(torch, recipe.frozen))
        if self.is_fresh and recipe.start is not None:
            self._start_from(start or out.parent / recipe.start)
        self.optimisation = Optimisation(Trained(self.module), recipe.optimiser)
        self.counts = {"tokens": torch.tensor(0)}
        self._since = _Since()
        self.resume()

    def updated(self) -> None:
        merge_all(self.module)

    @torch.no_grad()
    def _start_from(self, run: Path) -> None:
        """Take over the running mean of an earlier run's adapter, or, where its state is gone, the adapter it wrote."""
        state = checkpoint.load_state(run)
        if state is not None:
            held = {name.removeprefix("mean."): tensor for name, tensor in state[2].items() if name.startswith("mean.")}
        elif is_adapter(run / "model"):
            held = trained_weights(read_adapter(run / "model"), Trained(self.module).own)
        else:
            raise TrainingError(f"{self.recipe.name} starts from {self.recipe.start}; train that one into {run} first.")
        for name, parameter in Trained(self.module).named_parameters():
            if name not in held or held[name].shape != parameter.shape:
                raise TrainingError(
                    f"the adapter in {run} has no {name} of this shape; start from a run of the same rank."
                )
            parameter.copy_(held[name])

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        recipe = self.recipe
        rng = rng_of(recipe.seed, self.step, 2)
        ratios = even_ratios(recipe.batch, rng, recipe.objective.t_min)
        for number, (rows, kinds) in enumerate(self.chunks()):
            targets = self._targets(rows, ratios[number * len(rows) : (number + 1) * len(rows)], rng)
            loss, hits = self._loss(targets, rows.prompt)
            self.counts["tokens"] += targets.ids.numel()
            for kind, hit in zip(kinds, hits.tolist(), strict=True):
                self._since.right.setdefault(kind, []).append(hit)
            yield loss / recipe.batch, targets.ids.numel()

    def chunks(self) -> list[tuple[Rows, list[str]]]:
        """The rows of this step, cut into chunks of like length, with the kind of each row."""
        recipe = self.recipe
        drawn = draw_problems(recipe, self.step)
        if self.words:
            varied = rng_of(recipe.seed, self.step, 3)
            drawn = [replace(p, prompt=random_prefix(varied, self.words) + p.prompt) for p in drawn]
        drawn.sort(key=lambda p: len(p.prompt) + 2 * len(p.answer))
        rng = rng_of(recipe.seed, self.step, 1)
        size = recipe.batch // recipe.chunks
        parts = [drawn[i * size : (i + 1) * size] for i in range(recipe.chunks)]
        return [(self._rows(part, int(rng.choice(recipe.data.canvas))), [p.kind for p in part]) for part in parts]

    def _rows(self, part: list[Problem], canvas: int) -> Rows:
        if self.recipe.causal:
            return rows_of(self.coder, part, None)
        block = self.recipe.objective.block
        longest = max(map(len, self.coder.answers([p.answer for p in part])))
        tight = -(-longest // block) * block
        return rows_of(self.coder, part, max(tight, -canvas) if canvas < 0 else tight + canvas)

    def _targets(self, rows: Rows, ratios: Any, rng: Any) -> Targets:
        if self.mask_id is None:
            return next_token(rows, self.recipe.objective)
        return masked(rows, ratios, self.recipe.objective, self.mask_id, rng)

    def _loss(self, targets: Targets, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted cross-entropy, summed, and each row's weighted share of right tokens; logits at i predict i + 1."""
        rows, positions = targets.weight.nonzero(as_tuple=True)
        words: dict[str, Any] = {} if self.recipe.causal or self.recipe.sees == "causal" else {"is_causal": False}
        if self.recipe.sees == "prefix":
            words = {"attention_mask": prefix_visible(prompt, targets.ids.shape[1])}
        hidden = self.module.model(targets.ids, use_cache=False, **words).last_hidden_state
        logits = self.module.lm_head(hidden[rows, positions - 1])
        labels, weight = targets.labels[rows, positions], targets.weight[rows, positions]
        entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        hits = (logits.detach().argmax(-1) == labels).float() * weight
        shares = torch.zeros(len(targets.ids)).index_add_(0, rows, hits)
        return (entropy * weight).sum(), shares / torch.zeros(len(targets.ids)).index_add_(0, rows, weight)

    def record(self, found: Step, progress: Progress) -> dict[str, Any]:
        """Every few steps the mean loss and the share of asked tokens that were right, kind by kind."""
        recipe, since = self.recipe, self._since
        since.loss, since.tokens = since.loss + found.loss, since.tokens + found.tokens
        if self.step in recipe.keep:
            self.keep()
        if self.step % recipe.log_every and self.step != recipe.steps:
            return {}
        self._since = _Since()
        return {
            "loss": round(since.loss / recipe.log_every, 4), "norm": round(found.norm, 3),
            "seconds": round(self.seconds, 1), "tokens": int(self.counts["tokens"]),
            "memory": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),  # GB at most
            "rate": round(since.tokens / (time.monotonic() - since.started), 1),
            "right": {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(since.right.items())},
        }  # fmt: skip

    def keep(self) -> None:
        """Put the adapter of this step aside."""
        folder = self.out / "kept"
        folder.mkdir(exist_ok=True)
        self.export(folder / f"step-{self.step:05d}")

    def export(self, folder: Path) -> Path:
        """Write the adapter as it is now, in PEFT's format."""
        return export_adapter(
            self.recipe,
            self.optimisation.mean_weights(),
            folder,
            self.base_fingerprint,
            self.mask_id,
            str(self.tokenizer.chat_template),
        )


def set_template(tokenizer: PreTrainedTokenizerBase, prefix: str = "chat") -> None:
    """Give a base that has the markers for it the template that adapters are trained with."""
    if "<|im_start|>" in tokenizer.get_vocab():
        tokenizer.chat_template = TEMPLATE if prefix == "chat" else BARE


def plain_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Lower-case words that are one token each, in the order of the alphabet."""
    found = (token[1:] for token in tokenizer.get_vocab() if token.startswith("\u0120"))
    return sorted(word for word in found if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())


def random_prefix(rng: np.random.Generator, words: list[str]) -> str:
    """Nothing half of the time, else one to eight random words and an end."""
    if rng.random() < 0.5:
        return ""
    drawn = rng.choice(words, size=int(rng.integers(1, 9)))
    return " ".join(map(str, drawn)) + ENDS[int(rng.integers(len(ENDS)))]


def coder_of(tokenizer: PreTrainedTokenizerBase) -> Coder:
    """The template of a base's tokenizer, taken apart, with its end of turn and end of text."""
    before, _, after = render_chat(tokenizer, [{"role": "user", "content": "sinkscope"}]).partition("sinkscope")
    known = tokenizer.get_vocab()
    ends = [known[token] for token in ("<|im_end|>", "<|eot_id|>") if token in known]
    if not ends or "<|endoftext|>" not in known:
        raise TrainingError("the base's tokenizer must have <|im_end|> or <|eot_id|>, and <|endoftext|>; take another.")
    return Coder(tokenizer, before, after, ends[0], known["<|endoftext|>"], True)
