"""How much sinks draw, what they carry, and whether layers agree on them. Tensors in, `[layer, head]` out."""

import torch
from torch import Tensor

from sinkscope.sinks.dynamics import mean_where


def strength(score: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Score of the largest key `[step, layer, head]`: its mean over the steps that count (`there [step]`), its peak."""
    counts = there[:, None, None].expand_as(score)
    peak = score.masked_fill(~counts, -torch.inf).amax(0)
    return mean_where(score, counts), peak.masked_fill(peak.isinf(), torch.nan)


def absorption(received: Tensor, marks: Tensor, there: Tensor) -> Tensor:
    """Share of all attention that goes to sinks, averaged over the steps that count."""
    share = received.masked_fill(~marks, 0).sum(-1) / received.sum(-1)
    return mean_where(share, there[:, None, None].expand_as(share))


def entropy(received: Tensor, alive: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of received attention over the keys, in nats and as a share of the most possible (1 = even).

    received: [step, layer, head, key]; alive: [step, key]; averaged over the steps that count.
    """
    values = torch.special.entr(received / received.sum(-1, keepdim=True)).sum(-1)
    keys = alive.sum(-1).float()[:, None, None]
    counts = there[:, None, None].expand_as(values)
    # With a single key there is nothing to be uneven about.
    return mean_where(values, counts), mean_where(values / keys.log(), counts & (keys > 1))


def value_ratio(norms: Tensor, marks: Tensor, alive: Tensor) -> Tensor:
    """Mean ‖v‖ of the sinks over mean ‖v‖ of the other keys, over the steps that have both; below 1 they are drains.

    norms: [step, layer, kv head, key]; query heads share kv heads in the order of grouped-query attention.
    """
    norms = norms.float().repeat_interleave(marks.shape[2] // norms.shape[2], dim=2)
    others = alive[:, None, None, :] & ~marks
    at_sinks = norms.masked_fill(~marks, 0).sum(-1) / marks.sum(-1)
    elsewhere = norms.masked_fill(~others, 0).sum(-1) / others.sum(-1)
    return mean_where(at_sinks / elsewhere, marks.any(-1) & others.any(-1))


def agreement(main: Tensor, present: Tensor, layer_main: Tensor) -> Tensor:
    """Share of the *other* layers whose most attended key is this head's largest sink, over the steps with a sink.

    main, present: [step, layer, head]; layer_main: [step, layer], the largest key of the layer's mean over heads.
    """
    layers = main.shape[1]
    if layers == 1:
        return torch.full(main.shape[1:], torch.nan)
    same = main[..., None] == layer_main[:, None, None, :]  # [step, layer, head, other layer]
    others = ~torch.eye(layers, dtype=torch.bool)[:, None, :]
    return mean_where((same & others).sum(-1) / (layers - 1), present)
