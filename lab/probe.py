"""Where attention goes while a model learns: sink statistics on a fixed probe batch, taken during training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.build import forward_inputs
from lab.data import Coder, rng_of, rows_of
from lab.recipe import Recipe
from sinkscope.tasks import problems

EPSILON = 3.0  # in column sums, where uniform attention gives 1
RATIOS = (1.0, 0.6, 0.2)  # how much of the canvas is masked: early, middle and late in a generation


@torch.no_grad()
def sink_statistics(module: nn.Module, recipe: Recipe, coder: Coder, mask_id: int) -> dict[str, Any]:
    """Share of (sequence, layer, head) with a key above mean + 3 in column sums; the strongest score and its place.

    `begin` is the mean share of a head's attention that falls on position 0; `slot` what falls on the extra slot of
    off-by-one softmax or on the dedicated sink token.
    """
    with_sink = total = 0
    strongest, where, begin, slot, at_begin = 0.0, -1, 0.0, 0.0, 0
    for ids, prompt in _probes(recipe, coder, mask_id):
        shown, seen = forward_inputs(recipe, len(coder.tokenizer), ids)
        for weights, extra in attention_maps(module, shown, seen):  # [head, query, key], [head, query]
            first = 1 if recipe.variant == "sink_token" else 0
            own = weights[:, first:, first:]
            received = own.sum(-2)  # [head, key]
            length = received.shape[-1]
            mean_of_others = (received.sum(-1, keepdim=True) - received) / (length - 1)
            is_sink = received > mean_of_others + EPSILON
            with_sink += int(is_sink.any(-1).sum())
            total += received.shape[0]
            top, place = received.flatten().max(0)
            at_begin += int((is_sink.any(-1) & (received.argmax(-1) == 0)).sum())
            if float(top) > strongest:
                strongest, where = float(top), int(place) % length - prompt
            begin += float(own[:, :, 0].mean(-1).sum())
            slot += float(extra[:, first:].mean(-1).sum()) if recipe.variant != "plain" else 0.0
    found: dict[str, Any] = {
        "sink_share": round(with_sink / total, 4),
        "sinks_at_begin": round(at_begin / max(1, with_sink), 4),
        "strongest": round(strongest, 3),
        "strongest_after_prompt": where,
        "begin_mass": round(begin / total, 4),
    }
    if recipe.variant != "plain":
        found["slot_mass"] = round(slot / total, 4)
    return found


def _probes(recipe: Recipe, coder: Coder, mask_id: int) -> list[tuple[Tensor, int]]:
    """A few validation problems per kind, one sequence each; a DLM sees each at one of three mask ratios."""
    sequences: list[tuple[Tensor, int]] = []
    for kind in recipe.data.kinds:
        level = recipe.data.difficulty.get(kind)
        for number, problem in enumerate(problems(kind, n=3, split="validation", seed=7, difficulty=level)):
            rows = rows_of(coder, [problem], None if recipe.causal else max(recipe.data.canvas))
            ids, prompt = rows.ids.clone(), int(rows.prompt[0])
            if not recipe.causal:
                canvas = ids.shape[1] - prompt
                order = rng_of(0, number, 3).permutation(canvas)[: round(RATIOS[number] * canvas)]
                ids[0, prompt + torch.from_numpy(order)] = mask_id
            sequences.append((ids, prompt))
    return sequences


@torch.no_grad()
def attention_maps(module: nn.Module, ids: Tensor, seen: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Attention of every layer for one sequence, [head, query, key], and what went to an extra slot, [head, query].

    Small sequences only: the maps are held whole. Queries and keys are caught at scaled_dot_product_attention, so
    that the maps are those that the model really used, in every variant.
    """
    caught: list[tuple[Tensor, Tensor]] = []

    class Catch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is nn.functional.scaled_dot_product_attention:
                caught.append(_weights(args[0], args[1], ids.shape[1], **kwargs))
            return function(*args, **kwargs)

    with Catch():
        module(ids, attention_mask=seen, use_cache=False)
    return caught


def _weights(query: Tensor, key: Tensor, length: int, **words: Any) -> tuple[Tensor, Tensor]:
    scale = words.get("scale") or query.shape[-1] ** -0.5
    logits = query[0].float() @ key[0].float().mT * scale
    mask = words.get("attn_mask")
    if mask is not None:
        mask = mask[0] if mask.ndim == 4 else mask
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    elif words.get("is_causal"):
        logits = logits.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    weights = logits.softmax(-1)
    if key.shape[-2] > length:  # the extra slot of off-by-one softmax is the last key
        return weights[..., :length], weights[..., length]
    return weights, weights[..., 0]
