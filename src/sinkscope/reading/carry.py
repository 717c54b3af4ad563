"""What can be read at sinks, and when: the lens along a trace's steps, at sinks and at matched keys that are none.

A pair is a masked position that some head's queries make a sink, and the nearest masked position of the same step that no
head does. Both still hold the mask token, so they differ in nothing but the attention they draw (and a little in place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sinkscope.errors import ReadingError
from sinkscope.reading.lens import hidden_states, read
from sinkscope.sinks.columns import default_rule, marks_by_layer

if TYPE_CHECKING:
    from sinkscope.models.base import Model
    from sinkscope.sinks.rules import Rule
    from sinkscope.tracing import Trace

TARGETS = {"own": 0, "left": -1, "right": 1}  # whose final token is looked for, as an offset from the position
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """Of one trace: a row per pair, [pair, layer]; sinks and their matched positions in the same order."""

    step: npt.NDArray[np.int64]  # [pair]
    sink: npt.NDArray[np.int64]  # [pair] position
    other: npt.NDArray[np.int64]
    probability: dict[str, tuple[Array, Array]]  # target → of sinks, of others
    rank: dict[str, tuple[Array, Array]]  # log10 of the rank of the target token: 0 is the top
    norm: tuple[Array, Array]  # of the hidden state behind each layer


@torch.inference_mode()
def read_trace(model: Model, trace: Trace, rule: Rule | None = None) -> Reading:
    """Read the states of a traced generation at its sinks on masks and at matched masks, step by step."""
    if trace.causal or trace.mask_id is None:
        raise ReadingError(
            "Expected a trace of a diffusion model, whose future positions are masks; this one is causal."
        )
    sinks = masked_sinks(trace, rule)  # [step, position]
    pairs = [(step, sink, other) for step in range(trace.steps) for sink, other in _matched(trace, sinks, step)]
    found: dict[str, list[tuple[Array, Array]]] = {
        name: [] for name in ("norm", *(f"{w} {t}" for w in "pr" for t in TARGETS))
    }
    for step in sorted({step for step, _, _ in pairs}):
        places = [(sink, other) for at, sink, other in pairs if at == step]
        states = hidden_states(model, trace.canvas[step][None])[:, 0]  # [layer, position, width]
        logits = _logits(model, states)
        for sink, other in places:
            found["norm"].append((_array(states[:, sink].norm(dim=-1)), _array(states[:, other].norm(dim=-1))))
            for target, offset in TARGETS.items():
                both = [_looked_up(logits, trace, place, place + offset, model.shift) for place in (sink, other)]
                found[f"p {target}"].append((both[0][0], both[1][0]))
                found[f"r {target}"].append((both[0][1], both[1][1]))

    def stacked(name: str) -> tuple[Array, Array]:
        rows = found[name]
        empty = np.zeros((0, trace.layers))
        return (np.array([a for a, _ in rows]), np.array([b for _, b in rows])) if rows else (empty, empty)

    numbers = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    return Reading(
        numbers[:, 0], numbers[:, 1], numbers[:, 2],
        {target: stacked(f"p {target}") for target in TARGETS}, {target: stacked(f"r {target}") for target in TARGETS},
        stacked("norm"),
    )  # fmt: skip


def masked_sinks(trace: Trace, rule: Rule | None = None) -> Tensor:
    """[step, position]: in how many heads a masked position is a sink; 0 at positions that are not masked."""
    count = torch.zeros(trace.steps, trace.positions)
    for _, _, _, marks in marks_by_layer(trace, rule or default_rule(trace)):
        count += marks.sum((1, 2))
    return count * (trace.canvas[:-1] == trace.mask_id)


def _matched(trace: Trace, sinks: Tensor, step: int) -> list[tuple[int, int]]:
    """Each sink of a step with the nearest masked position that is none; each used once, strongest sinks first."""
    masked = trace.canvas[step] == trace.mask_id
    free = (masked & (sinks[step] == 0)).nonzero()[:, 0].tolist()
    pairs = []
    for sink in sinks[step].argsort(descending=True, stable=True).tolist():
        if sinks[step, sink] == 0 or not free:
            break
        other = min(free, key=lambda place: (abs(place - sink), place))
        free.remove(other)
        pairs.append((sink, other))
    return pairs


def _logits(model: Model, states: Tensor) -> Tensor:
    """[layer, position, width] → log-probabilities [layer, position, vocab]."""
    last = len(states) - 1
    rows = [read(model, state[None], normed=layer == last)[0] for layer, state in enumerate(states)]
    return torch.stack(rows).float().log_softmax(-1)


def _looked_up(logs: Tensor, trace: Trace, place: int, target: int, shift: bool) -> tuple[Array, Array]:
    """Probability and log10 rank, [layer], of the token that position `target` ends with, read at `place`.

    Of a shifted family the row before a position is the one that speaks for it.
    """
    row = place - int(shift)
    if not 0 <= target < trace.positions or row < 0:
        nothing = np.full(len(logs), np.nan)
        return nothing, nothing
    token = int(trace.canvas[-1, target])
    own = logs[:, row, token]
    rank = (logs[:, row] > own[:, None]).sum(-1) + 1
    return _array(own.exp()), _array(rank.double().log10())


def _array(values: Tensor) -> Array:
    found: Array = values.double().cpu().numpy()
    return found
