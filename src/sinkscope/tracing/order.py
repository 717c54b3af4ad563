"""In which order a generation was decoded, and where its main sink stood while commits went on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.tracing.record import Trace


@dataclass(frozen=True)
class DecodingOrder:
    """Order of one generation; None where nothing can be said: no choice, or a sink or a frontier that never moves."""

    commits: int
    leftmost: float | None  # share of commits among the leftmost open positions: 1 is left to right
    ties: float | None  # share of the choices that were made between equal confidences
    sink_to_leftmost: float | None  # mean of main sink − leftmost open position, in positions
    sink_to_rightmost: float | None  # … − rightmost open position
    follows_leftmost: float | None  # correlation over steps of the main sink's position and the leftmost open one
    follows_rightmost: float | None


def decoding_order(trace: Trace) -> DecodingOrder:
    """Ties, autoregressiveness and the main sink's distance from the frontier of commits.

    The main sink is the key that received most in a step, over all layers and heads of the trace
    (`trace.select(layers=…)` for some). Confidences are compared as the trace keeps them, in float32.
    """
    steps, width = trace.steps, trace.positions
    columns = torch.arange(width)
    committed = trace.committed_at.long()[None] == torch.arange(steps)[:, None]  # bool [step, position]
    still_open = trace.committed_at.long()[None] >= torch.arange(steps)[:, None]
    in_block = (columns >= trace.blocks[:, :1].long()) & (columns < trace.blocks[:, 1:].long())
    choices = still_open & in_block | committed
    left, tied = 0, []
    for now, options, sure in zip(committed, choices, trace.confidence, strict=True):
        picked = now.nonzero().squeeze(-1)
        first = options.nonzero().squeeze(-1)[: len(picked)]
        left += int(torch.isin(picked, first).sum())
        rest = sure[options & ~now]
        if len(picked) and len(rest):
            tied.append(bool(torch.isin(sure[picked], rest).any()))
    total = int(committed.sum())
    there = still_open.any(1)
    sink = trace.scores("all", "mean").mean((1, 2)).argmax(-1).double()[there]  # [step]
    leftmost = _first(still_open[there])
    rightmost = width - 1 - _first(still_open[there].flip(1))
    away = [float((sink - end).mean()) if len(sink) else None for end in (leftmost, rightmost)]
    return DecodingOrder(
        total,
        left / total if total else None,
        sum(tied) / len(tied) if tied else None,
        away[0],
        away[1],
        _correlation(sink, leftmost),
        _correlation(sink, rightmost),
    )


def _first(marks: Tensor) -> Tensor:
    """[step]: the first marked position."""
    return marks.to(torch.int8).argmax(1).double()


def _correlation(a: Tensor, b: Tensor) -> float | None:
    if len(a) < 3 or bool(a.std() == 0) or bool(b.std() == 0):
        return None
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
