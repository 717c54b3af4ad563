"""Sinks and the positions that they are compared with: of the same step, state, kind of token and block.

A pair is a position that some head's queries make a sink, and the nearest position that no head does. On masks both hold the
mask token, so that they differ in nothing but the attention they draw (and a little in place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sinkscope.sinks.rules import Rule
    from sinkscope.tracing import Trace

State = Literal["masked", "committed", "prompt"]
STATES: tuple[State, ...] = ("masked", "committed", "prompt")
LIKE = 2  # steps by which the commits of two alike masks may differ


@dataclass(frozen=True)
class Pair:
    """Positions in one step of a trace."""

    step: int
    sink: int
    other: int
    state: State
    alike: bool  # both committed within LIKE steps of each other, and neither ends as an end token


def sink_marks(trace: Trace, rule: Rule | None = None) -> Tensor:
    """bool [step, layer, head, position]; an autoregressive trace is judged by its columns so far."""
    seen = trace.cumulative() if trace.causal else trace
    return torch.cat([marks for _, _, marks, _ in seen.marks_by_layer(rule or trace.default_rule)], 1)


def matched(trace: Trace, marks: Tensor) -> list[Pair]:
    """Each sink of each step with its nearest match, each position used once; strongest sinks first."""
    counts = marks.sum((1, 2))  # [step, position]: in how many heads
    there = (trace.cumulative() if trace.causal else trace).alive()
    return [pair for step in range(trace.steps) for pair in _of_step(trace, counts[step], there[step], step)]


def _of_step(trace: Trace, counts: Tensor, there: Tensor, step: int) -> list[Pair]:
    groups = [_group(trace, step, position) for position in range(trace.positions)]
    free = ((counts == 0) & there).nonzero()[:, 0].tolist()
    pairs = []
    for sink in counts.argsort(descending=True, stable=True).tolist():
        if counts[sink] == 0:
            break
        fitting = [position for position in free if groups[position] == groups[sink]]
        if not fitting:
            continue
        other = min(fitting, key=lambda position: (abs(position - sink), position))
        free.remove(other)
        pairs.append(Pair(step, sink, other, groups[sink][0], _alike(trace, sink, other)))
    return pairs


def _group(trace: Trace, step: int, position: int) -> tuple[State, str, bool]:
    """State, kind of the token, and whether the position is in the active block: both of a pair have the same."""
    token = int(trace.canvas[step, position])
    start, stop = trace.blocks[step].tolist()
    state: State = "prompt" if position < trace.prompt_length else "masked" if token == trace.mask_id else "committed"
    return state, trace.vocabulary[token][1] if token in trace.vocabulary else "unknown", start <= position < stop


def _alike(trace: Trace, sink: int, other: int) -> bool:
    steps = trace.committed_at[[sink, other]].tolist()
    kinds = [trace.vocabulary.get(int(trace.canvas[-1, position]), ("", "unknown"))[1] for position in (sink, other)]
    return abs(steps[0] - steps[1]) <= LIKE and "end" not in kinds
