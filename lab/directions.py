"""Direction of attention apart from objective, as two families that `make_known` gives to `sk.load`.

One is a denoiser that reads causally. The other predicts next tokens behind a prompt that is read in both directions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.models import register
from sinkscope.models.families.causal import Llama
from sinkscope.models.families.qwen import Dream
from sinkscope.models.family import render_chat
from sinkscope.models.model import Model

TURNS = ("<|im_start|>", "<|start_header_id|>")  # with which the header of a turn begins


def causal_visible(size: int) -> Tensor:
    """bool [1, 1, query, key]: every row sees itself and what is before it."""
    return torch.ones(size, size, dtype=torch.bool).tril()[None, None]


def prefix_visible(prompt: Tensor, size: int) -> Tensor:
    """bool [row, 1, query, key] for prompts of these lengths [row]: all rows see the prompt, and else what is before them."""
    in_prompt = torch.arange(size) < prompt[:, None]
    return causal_visible(size) | in_prompt[:, None, None, :]


def _real(visible: Tensor, real: Tensor | None) -> Tensor:
    """Without padded keys; a padded row sees itself, because a row that sees nothing has no softmax."""
    if real is None:
        return visible
    return (visible & real[:, None, None, :]) | torch.eye(visible.shape[-1], dtype=torch.bool)


class CausalDream(Dream):
    """A denoiser whose tokens see only what is before them."""

    name = "causal-dream"
    sees_later = False

    def matches(self, config: dict[str, Any], folder: Path) -> bool:
        return False  # only adapters name it

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor:
        return _real(causal_visible(ids.shape[1]), real).expand(len(ids), -1, -1, -1)


class PrefixLlama(Llama):
    """An autoregressive model whose prompt, up to the end of the assistant's header, is read in both directions.

    Ids without such a header, whole and in order, are read causally.
    """

    name = "prefix-llama"

    def matches(self, config: dict[str, Any], folder: Path) -> bool:
        return False

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor:
        tokenizer = model.require_tokenizer()
        known = tokenizer.get_vocab()
        marker = next(known[turn] for turn in TURNS if turn in known)
        written = render_chat(tokenizer, [{"role": "user", "content": "sinkscope"}])
        whole = tokenizer(written, add_special_tokens=False)["input_ids"]
        size = whole[::-1].index(marker) + 1
        if ids.shape[1] < size:
            return _real(causal_visible(ids.shape[1]), real).expand(len(ids), -1, -1, -1)
        header = (ids.unfold(1, size, 1) == torch.tensor(whole[-size:])).all(-1)  # [row, place where it may begin]
        last = torch.where(header, torch.arange(header.shape[1]), -size).max(1).values
        return _real(prefix_visible(last + size, ids.shape[1]), real)


def make_known() -> None:
    """Let `sk.load` read adapters of both families."""
    register(CausalDream())
    register(PrefixLlama())
