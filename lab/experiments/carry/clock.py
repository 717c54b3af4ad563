"""Probes at sinks on masks against matched masks: is this position the next to be committed, how far has the canvas come?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lab.experiments.carry.probe import Probe, drawn_r2, probe
from lab.experiments.carry.reading import Array, Reading

if TYPE_CHECKING:
    from sinkscope.tracing import Trace

LABELS = {"next": "committed at this very step", "left": "masks left", "step": "denoising step"}


@dataclass
class Clock:
    """The strongest sink on a mask of every step, its matched mask, and what a probe may be asked about both."""

    states: list[Tensor] = field(default_factory=list)  # [2, layer, width] each
    labels: list[list[list[float]]] = field(default_factory=list)  # [2][label]
    places: list[list[float]] = field(default_factory=list)  # [2], from the start of the answer
    problems: list[int] = field(default_factory=list)

    def add(self, problem: int, trace: Trace, reading: Reading) -> None:
        seen: set[int] = set()
        for pair, states in zip(reading.pairs, reading.states, strict=True):
            if pair.state != "masked" or pair.step in seen:  # pairs of a step come with the strongest sink first
                continue
            seen.add(pair.step)
            both = (pair.sink, pair.other)
            masks = float(trace.canvas[pair.step].tolist().count(trace.mask_id))
            self.states.append(states)
            self.labels.append([[float(trace.committed_at[at] == pair.step), masks, float(pair.step)] for at in both])
            self.places.append([float(at - trace.prompt_length) for at in both])
            self.problems.append(problem)

    def table(self, seed: int = 0, shuffles: int = 20) -> list[dict[str, Any]]:
        """A row per label and layer: r2 at sinks and at matched masks, of shuffled labels, and of the place alone."""
        if len(set(self.problems)) < 5:  # folds
            return []
        states = torch.stack(self.states).double().numpy()  # [row, 2, layer, width]
        labels, groups = np.array(self.labels), np.array(self.problems, dtype=np.int64)  # [row, 2, label]
        where = np.array(self.places)  # [row, 2]
        made = []
        for index, name in enumerate(LABELS):
            asked = labels[:, :, index]
            if any(np.ptp(asked[:, who]) == 0 for who in (0, 1)):
                continue
            by_place = [
                probe(np.stack([where[:, who], where[:, who] ** 2], 1), asked[:, who], groups, shuffles=2, seed=seed).r2
                for who in (0, 1)
            ]
            for layer in range(states.shape[2]):
                found = [
                    probe(states[:, who, layer], asked[:, who], groups, shuffles=shuffles, seed=seed) for who in (0, 1)
                ]
                made.append({"label": name, "layer": layer, **_compared(found, asked, groups, by_place, seed)})
        return made


def _compared(found: list[Probe], asked: Array, groups: Any, by_place: list[float], seed: int) -> dict[str, Any]:
    drawn = [drawn_r2(asked[:, who], found[who].predicted, groups, seed=seed) for who in (0, 1)]
    low, high = np.nanquantile(drawn[0] - drawn[1], [0.025, 0.975])
    made: dict[str, Any] = {"rows": found[0].rows, "problems": found[0].groups}
    for who, name in enumerate(("sinks", "others")):
        ends = np.nanquantile(drawn[who], [0.025, 0.975])
        made |= {
            name: found[who].r2, f"{name}_low": float(ends[0]), f"{name}_high": float(ends[1]),
            f"{name}_accuracy": found[who].accuracy, f"{name}_shuffled": found[who].shuffled_r2,
            f"{name}_shuffled_high": found[who].shuffled_high, f"{name}_by_place": by_place[who],
        }  # fmt: skip
    return {**made, "difference": found[0].r2 - found[1].r2, "low": float(low), "high": float(high)}
