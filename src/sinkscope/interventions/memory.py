"""What interventions remember of the last forward: the attention that each key of each head received there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sinkscope.attention.attend import attend
from sinkscope.attention.calls import Call, Outcome

Rank = Literal["clean", "as_run"]
Rows = Literal["all", "last"]
Map = tuple[Rank, Rows]


@dataclass
class Layer:
    """One layer at the last forward."""

    scores: dict[Map, Tensor]  # [batch, head, key]
    queries: Tensor  # [batch]: how many queries were summed for rows="all"


@dataclass
class Memory:
    """Maps of the last forward, by layer; forgotten when another generation begins."""

    layers: dict[int, Layer] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # layer → forwards of this generation so far
    run: object = None

    def open(self, call: Call) -> None:
        """Forget what belongs to another generation, before a call is changed."""
        if call.forward is not None:
            if call.forward.run is not self.run:
                self.layers, self.steps, self.run = {}, {}, call.forward.run
            return
        if self.run is not None:
            self.layers, self.steps, self.run = {}, {}, None
        known = self.layers.get(call.layer)
        # Outside our decoders a generation is over when the shapes no longer continue, or a causal model reads a new prompt.
        if known is not None:
            batch, heads, keys = next(iter(known.scores.values())).shape
            new_prompt = call.directed and call.queries == call.keys and call.queries > 1
            if (batch, heads) != (call.q.shape[0], call.q.shape[1]) or keys > call.keys or new_prompt:
                del self.layers[call.layer]
                self.steps[call.layer] = 0

    def step(self, call: Call) -> int:
        return self.steps.get(call.layer, 0)

    def scores(self, call: Call, rank: Rank, rows: Rows) -> Tensor | None:
        """[batch, head, key] of the last forward, with 0 at keys that were not there yet; None at the first forward."""
        known = self.layers.get(call.layer)
        if known is None:
            return None
        scores = known.scores[rank, rows]
        return torch.nn.functional.pad(scores, (0, call.keys - scores.shape[-1]))

    def queries(self, call: Call) -> Tensor:
        return self.layers[call.layer].queries

    def keep(self, call: Call, outcome: Outcome, wanted: set[Map]) -> None:
        """Remember this call for the next forward."""
        scores: dict[Map, Tensor] = {}
        for rank, rows in wanted:
            if rows == "all":
                scores[rank, rows] = (outcome.clean if rank == "clean" else outcome.received).sum(2)
            else:
                scores[rank, rows] = _last_row(call, outcome.drop if rank == "as_run" else None)
        self.layers[call.layer] = Layer(scores, (call.labels >= 0).sum(1))

    def close(self, call: Call) -> None:
        self.steps[call.layer] = self.step(call) + 1


def received_now(call: Call) -> Tensor:
    """What every key would receive in this very call if nothing were changed, [batch, head, key]."""
    _, received = attend(
        call.q, call.k, call.v, mask=call.mask, causal=call.causal, groups=call.labels, scale=call.scale,
        group_count=call.group_count,
    )  # fmt: skip
    return received.sum(2)


def _last_row(call: Call, drop: Tensor | None) -> Tensor:
    """Attention of the last query alone, [batch, head, key]."""
    mask = call.mask if call.mask is None or call.mask.shape[2] == 1 else call.mask[:, :, -1:]
    _, received = attend(call.q[:, :, -1:], call.k, call.v, mask=mask, scale=call.scale, drop_keys=drop)
    return received[:, :, 0]
