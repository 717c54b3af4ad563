"""How far logits and received attention of a model are from those of another, such as the same one before it was quantised."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sinkscope.attention.capture import observe
from sinkscope.errors import TraceError
from sinkscope.models.model import Model

# A key that fewer queries see is not judged: the last ones of a causal map are seen by themselves alone.
FEWEST_ROWS = 4


class Drift(NamedTuple):
    """Over all positions of one forward; attention over all layers and heads."""

    positions: int
    logit_mean: float  # |difference|
    logit_max: float
    kl: float  # KL(plain ‖ other) per position, in nats
    top1: float  # share of positions whose likeliest token is the same
    moved: float  # share of a head's received attention that stands on other keys, mean over heads …
    moved_max: float  # … and in the head where it is most
    sinks: int  # (layer, head, key) of the plain model that receive more than epsilon of what each query has to give
    sinks_kept: float | None  # share of them that still are sinks; None: there were none
    sinks_new: int


@torch.inference_mode()
def drift(plain: Model, other: Model, ids: Tensor, epsilon: float = 0.3) -> Drift:
    """Both models read ids [1, position]; epsilon: as in `HeadShare`."""
    (first, shares), (second, moved_to) = _read(plain, ids), _read(other, ids)
    if shares.shape != moved_to.shape or first.shape != second.shape:
        raise TraceError(f"Expected two models of one shape, got {plain.name} and {other.name}, whose sizes differ.")
    away = (first - second).abs()
    logs, others = first.log_softmax(-1), second.log_softmax(-1)
    normed = [one / one.sum(-1, keepdim=True).clamp(min=1e-12) for one in (shares, moved_to)]
    moved = (normed[0] - normed[1]).abs().sum(-1) / 2  # [layer, head]
    sinks, after = shares > epsilon, moved_to > epsilon
    count = int(sinks.sum())
    return Drift(
        positions=len(first),
        logit_mean=float(away.mean()),
        logit_max=float(away.max()),
        kl=float((logs.exp() * (logs - others)).sum(-1).mean()),
        top1=float((first.argmax(-1) == second.argmax(-1)).float().mean()),
        moved=float(moved.mean()),
        moved_max=float(moved.max()),
        sinks=count,
        sinks_kept=int((sinks & after).sum()) / count if count else None,
        sinks_new=int((after & ~sinks).sum()),
    )


def _read(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [position, vocab], and the mean attention of the queries that see a key, [layer, head, key]."""
    with observe(model) as seen:
        logits = model.logits(ids)[0].float().cpu()
    received = torch.stack([one.sum(2)[0].float().cpu() for one in seen.received])
    width = ids.shape[1]
    rows = torch.arange(width, 0, -1) if model.causal else torch.full((width,), width)
    return logits, (received / rows).masked_fill(rows < min(FEWEST_ROWS, width), 0.0)
