"""The logit lens: final norm and head applied to the hidden state behind each layer, as if it were the last.

`lens` reads one forward; a recorder with Keep(lens=True) takes the `top_tokens` of every denoising step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import ReadingError
from sinkscope.interventions.hooks import hook
from sinkscope.models.model import Model, Prompt
from sinkscope.tracing.record import picked

TOP = 3  # tokens kept per step, layer and position
AT_A_TIME = 1 << 28  # logits that are made at a time


@torch.inference_mode()
def lens(
    model: Model,
    ids: Prompt | list[Any],
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """ids [batch, position] → logits [layer, batch, position, vocab]; the last layer's are the model's own.

    ids: or a prompt as text or chat messages, or a list of prompts, which are padded at the left.
    layers, positions: only these, in the order given; negative ones count from the end. As in `model.logits`, row i of a
    shifted family predicts token i + 1.
    """
    chosen = picked("layers", layers, layer_count(model), ReadingError)
    states = hidden_states(model, ids, attention_mask, chosen)
    places = picked("positions", positions, states[chosen[0]].shape[1], ReadingError)
    found = None
    for index, layer in enumerate(chosen):  # into the result in place: beside it there is one part's logits at most
        state = states[layer] if positions is None else states[layer][:, places]
        for span, part in _parts(model, state):
            logits = read(model, part, normed=layer == layer_count(model) - 1)
            if found is None:
                found = logits.new_empty(len(chosen), len(state), len(places), logits.shape[-1])
            found[index, :, span] = logits
            del logits  # before the next part's are made
    assert found is not None
    return found


@torch.inference_mode()
def hidden_states(
    model: Model, ids: Prompt | list[Any], attention_mask: Tensor | None, chosen: Sequence[int]
) -> dict[int, Tensor]:
    """What leaves the chosen layers, [batch, position, width] each, on its layer's device; the last behind the final norm."""
    rows, mask, _ = model.batch(ids, attention_mask)
    mask = None if mask is None or bool(mask.all()) else mask.to(model.device)
    base: Any = model.module.base_model
    found: dict[int, Tensor] = {}
    places = [f"layers.{layer}.resid_post" for layer in chosen]
    with hook(model, places, lambda state, context: found.__setitem__(context.layer, state)):
        output = base(
            rows.to(model.device),
            attention_mask=mask,
            position_ids=model.positions(mask),
            use_cache=False,
            **model.direction(),
        )
    if (last := len(base.layers) - 1) in found:
        found[last] = output.last_hidden_state
    return found


def _parts(model: Model, state: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """[batch, position, width] in parts over positions whose logits are AT_A_TIME at most, or one position."""
    size = max(AT_A_TIME // (model.vocabulary * len(state)), 1)
    for start in range(0, state.shape[1], size):
        span = slice(start, min(start + size, state.shape[1]))
        yield span, state[:, span]


def read(model: Model, state: Tensor, normed: bool) -> Tensor:
    """[batch, position, width] → [batch, position, vocab]; normed: the final norm is in it already."""
    module: Any = model.module
    return model.family.head(module, state if normed else module.base_model.norm(state))


def layer_count(model: Model) -> int:
    """The lens needs a stack of layers, a final norm and a head, under the names that transformers' decoders use."""
    if not isinstance(model, Model):
        raise ReadingError(
            f"Expected a model from sk.load, whose norm and head are known, got {type(model).__name__}; "
            "sk.wrap a model of transformers; of any other module sk.observe shows the attention."
        )
    base: Any = getattr(model.module, "base_model", None)
    if getattr(base, "layers", None) is None or getattr(base, "norm", None) is None:
        raise ReadingError(
            f"Expected a decoder with layers, a final norm and an output head, and {model.name} "
            f"({type(model.module).__name__}) has other parts; read its hidden states by hand."
        )
    return len(base.layers)


def top_tokens(model: Model, state: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of some positions at a time: which, and the likeliest tokens there with their probabilities, [batch, TOP, position]."""
    for span, part in _parts(model, state):
        best = read(model, part, normed=False).softmax(-1, dtype=torch.float32).topk(TOP)  # [batch, position, top]
        yield span, best.indices.mT, best.values.mT
