"""What can be read at sinks, and when: the lens and the norms along a trace's steps, at sinks and at matched positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lab.experiments.carry.pairs import Pair, matched, sink_marks
from sinkscope.attention.call import Call, Tap
from sinkscope.attention.patch import patched
from sinkscope.errors import ReadingError
from sinkscope.tracing.states import hidden_states, read

if TYPE_CHECKING:
    from sinkscope.models.model import Model
    from sinkscope.sinks.rules import Rule
    from sinkscope.tracing import Trace

Array = npt.NDArray[np.float64]
# Whose final token is looked for: the position's own, its neighbours', and the answer's. Neighbours and answer count only
# while they are not written yet: what stands on the canvas needs no lens.
OFFSETS = {"own": 0, "left": -1, "right": 1}
TARGETS = (*OFFSETS, "answer")
MEASURES = (*(f"{what} {target}" for what in ("probability", "rank") for target in TARGETS), "hidden", "key", "value")
CHUNK = 256  # rows of logits at once: a vocabulary of 150,000 takes 150 MB


@dataclass(frozen=True)
class Reading:
    """Of one trace: its pairs, and every measure as [pair, (sink, other), layer]; NaN where it cannot be read.

    probability, rank (log10: 0 is the top) of a target's final token; norms of the hidden state behind each layer. Norms
    of keys and values are of the heads that make the position a sink, for the matched position too.
    """

    pairs: list[Pair]
    values: dict[str, Array]
    states: Tensor  # [pair, (sink, other), layer, width]: the hidden states themselves, for probes


@torch.inference_mode()
def read_trace(model: Model, trace: Trace, rule: Rule | None = None, answer: int | None = None) -> Reading:
    """Read a traced generation at its sinks and at matched positions, step by step; answer: the answer's position.

    The trace must be of an untouched run of this model: its canvases are computed once more.
    """
    if trace.interventions:
        raise ReadingError(
            "Expected a trace of the untouched model, since its states are computed again, got one of a changed model; "
            "trace it without interventions."
        )
    marks = sink_marks(trace, rule)
    pairs = matched(trace, marks)
    norms = _Norms()
    # Later tokens change nothing before them in a causal model: its last canvas holds the states of all steps.
    canvases = trace.canvas[-1:] if trace.causal else trace.canvas[:-1]
    with patched(model.module, norms):
        by_layer = hidden_states(model, canvases, None, range(trace.layers))
    states = torch.stack([by_layer[layer] for layer in range(trace.layers)])  # [layer, canvas, position, width]
    rows = torch.tensor([0 if trace.causal else pair.step for pair in pairs], dtype=torch.int64)[:, None]
    places = torch.tensor([[pair.sink, pair.other] for pair in pairs], dtype=torch.int64).reshape(-1, 2)
    found = states[:, rows, places].permute(1, 2, 0, 3)  # [pair, 2, layer, width]
    values = {"hidden": _array(found.float().norm(dim=-1)), **_in_their_heads(norms, marks, pairs, rows, places)}
    steps = [pair.step for pair in pairs]
    tokens = {target: _wanted(trace, steps, places, target, answer) for target in TARGETS}
    for target, (probability, rank) in _looked_up(model, found, tokens).items():
        values[f"probability {target}"], values[f"rank {target}"] = probability, rank
    return Reading(pairs, {name: values[name] for name in MEASURES}, found.float().cpu())


class _Norms(Tap):
    """Norms of keys and values, layer by layer, [canvas, head, position]."""

    def __init__(self) -> None:
        self.key: dict[int, Tensor] = {}
        self.value: dict[int, Tensor] = {}

    def done(self, call: Call) -> None:
        share = call.q.shape[1] // call.k.shape[1]
        for kept, states in ((self.key, call.k), (self.value, call.v)):
            kept[call.layer] = states.float().norm(dim=-1).repeat_interleave(share, dim=1).cpu()


def _in_their_heads(norms: _Norms, marks: Tensor, pairs: list[Pair], rows: Tensor, places: Tensor) -> dict[str, Array]:
    """Mean norms of both positions over the heads in which the first is a sink at that step; NaN where it is in none."""
    made = {}
    for name, kept in (("key", norms.key), ("value", norms.value)):
        layers = torch.stack([kept[layer] for layer in sorted(kept)], 1)  # [canvas, layer, head, position]
        here = layers[rows, :, :, places]  # [pair, 2, layer, head]
        steps, sinks = (
            torch.tensor([getattr(pair, what) for pair in pairs], dtype=torch.int64) for what in ("step", "sink")
        )
        weight = marks[steps, :, :, sinks].float()[:, None]  # [pair, 1, layer, head]
        made[name] = _array((here * weight).sum(-1) / weight.sum(-1))  # 0 / 0 is NaN: no such head
    return made


def _wanted(trace: Trace, steps: Sequence[int], places: Tensor, target: str, answer: int | None) -> Tensor:
    """[pair, 2]: the token that the target ends with; −1 where there is no target, or where it is written already."""
    step = torch.tensor(steps, dtype=torch.int64)[:, None]
    elsewhere = torch.full_like(places, -1 if answer is None else answer)
    at = elsewhere if target == "answer" else places + OFFSETS[target]
    there = (at >= 0) & (at < trace.positions)
    at = at.clamp(0, trace.positions - 1)
    is_open = trace.committed_at[at] >= step
    fits = there & (is_open if target != "own" else torch.ones_like(is_open))
    if target == "answer":
        fits &= at != places  # there it is the position's own token
    return trace.canvas[-1][at].masked_fill(~fits, -1)


def _looked_up(model: Model, states: Tensor, tokens: dict[str, Tensor]) -> dict[str, tuple[Array, Array]]:
    """Probability and log10 rank of each target's token, [pair, 2, layer] each."""
    count, _, layers, _ = states.shape
    found = {target: (np.full((count, 2, layers), np.nan), np.full((count, 2, layers), np.nan)) for target in tokens}
    for first in range(0, count, CHUNK):
        part = slice(first, first + CHUNK)
        for layer in range(layers):
            logs = read(model, states[part, :, layer], normed=layer == layers - 1).float().log_softmax(-1)
            for target, ids in tokens.items():
                wanted = ids[part].to(logs.device)
                own = logs.gather(-1, wanted.clamp(min=0)[..., None])  # [pair, 2, 1]
                rank = ((logs > own).sum(-1) + 1).double().log10()
                missing = wanted < 0
                found[target][0][part, :, layer] = _array(own[..., 0].exp().double().masked_fill(missing, torch.nan))
                found[target][1][part, :, layer] = _array(rank.masked_fill(missing, torch.nan))
    return found


def _array(values: Tensor) -> Array:
    found: Array = values.double().cpu().numpy()
    return found
