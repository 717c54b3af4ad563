"""What interventions remember of a generation: the attention that each key of each head received so far.

A bidirectional model makes a whole map at every forward: the last one counts. A causal model with a key-value cache adds a
row per forward, so there the columns of all rows so far count. Rows that are computed again replace what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.attend import attend
from sinkscope.attention.call import Call, CallResult
from sinkscope.errors import InterventionError

Rank = Literal["clean", "as_run"]
Rows = Literal["all", "last"]
Map = tuple[Rank, Rows]
TOGETHER = 1 << 23  # scores that are ranked at a time


@dataclass
class Layer:
    """Column sums of one layer, and how many rows they are sums of."""

    scores: dict[Map, Tensor]  # [batch, head, key]
    queries: Tensor  # [batch]: how many queries were summed for rows="all"
    seen: Tensor | None = None  # [batch, key]: how many of them see the key; None: all of them
    window: tuple[int, int] = (0, 0)  # columns of the last forward's queries
    earlier: Layer | None = None  # the same without those: what a causal model does not compute again


@dataclass
class Memory:
    """Maps by layer; forgotten when another generation begins."""

    layers: dict[int, Layer] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # layer → forwards of this generation so far
    run: object = None
    kinds_of: Callable[[Tensor], Tensor] | None = None  # ids [batch, position] → kinds; None where nobody knows them
    # What interventions keep of this generation, by keys of their own; and of the model, found when the `with` was entered.
    own: dict[object, Any] = field(default_factory=dict)
    given: dict[object, Any] = field(default_factory=dict)
    _whole: dict[Map, tuple[int, Tensor]] = field(default_factory=dict)  # sums over layers, and the step they are for

    def open(self, call: Call) -> None:
        """Forget what belongs to another generation, before a call is changed."""
        if call.forward is not None:
            if call.forward.run is not self.run:
                self._forget(call.forward.run)
            return
        if self.run is not None:
            self._forget(None)
        known = self.layers.get(call.layer)
        # Outside our decoders a generation is over when the shapes no longer continue, or a causal model reads a new prompt.
        if known is not None:
            batch, heads, keys = next(iter(known.scores.values())).shape
            new_prompt = call.directed and call.queries == call.keys and call.queries > 1
            if (batch, heads) != (call.q.shape[0], call.q.shape[1]) or keys > call.keys or new_prompt:
                del self.layers[call.layer]
                self.steps[call.layer] = 0
                self._whole.clear()

    def _forget(self, run: object) -> None:
        self.layers, self.steps, self.own, self.run, self._whole = {}, {}, {}, run, {}

    def step(self, call: Call) -> int:
        return self.steps.get(call.layer, 0)

    def scores(self, call: Call, rank: Rank, rows: Rows) -> Tensor | None:
        """[batch, head, key] with 0 at keys that were not there yet; None at the first forward.

        rows="all": columns of the last forward, or of all rows so far for a causal model; rows="last": the last row alone.
        """
        return self.scores_at(call.layer, call.keys, rank, rows)

    def scores_at(self, layer: int, keys: int, rank: Rank, rows: Rows) -> Tensor | None:
        known = self.layers.get(layer)
        return None if known is None else _longer(known.scores[rank, rows], keys)

    def alike(self, call: Call, rank: Rank, rows: Rows) -> list[int]:
        """This layer, and others of the same shape that have not run in this forward: what they are ranked by is known."""
        own = self.layers[call.layer].scores[rank, rows]
        most = max(TOGETHER // (own.shape[0] * own.shape[1] * call.keys), 1)
        found = [call.layer]
        for layer, known in self.layers.items():
            scores, later = known.scores.get((rank, rows)), self.steps.get(layer, 0) == self.step(call)
            if layer != call.layer and later and scores is not None:
                found += [layer] if scores.shape == own.shape and scores.device == own.device else []
        return found[:most]

    def whole(self, call: Call, rank: Rank, rows: Rows) -> Tensor | None:
        """The scores summed over the heads of all layers, [batch, 1, key], as they were before this forward began."""
        step, known = self._whole.get((rank, rows), (-1, None))
        if step != self.step(call) or known is None:
            if call.layer not in self.layers:
                return None
            # This is the first layer that runs in this forward: all layers still have the maps of the last one.
            widest = max(layer.scores[rank, rows].shape[-1] for layer in self.layers.values())
            parts = [self.scores_at(layer, widest, rank, rows) for layer in self.layers]
            known = torch.stack(
                [part.sum(1, keepdim=True).to(call.q.device) for part in parts if part is not None]
            ).sum(0)
            self._whole[rank, rows] = self.step(call), known
        return _longer(known.to(call.q.device), call.keys)

    def queries(self, call: Call) -> Tensor:
        """[batch]: how many rows the scores of rows="all" are sums of."""
        return self.layers[call.layer].queries

    def seen(self, call: Call) -> Tensor:
        """[batch, key]: how many of those rows see each key; fewer for late keys of a causal model."""
        known = self.layers[call.layer]
        return known.queries[:, None].expand(-1, call.keys) if known.seen is None else _longer(known.seen, call.keys)

    def kinds(self, call: Call) -> Tensor:
        """[batch, key]: the kind of the token at every key, an index into sinks.kinds.KINDS."""
        forward, kinds_of = call.forward, self.kinds_of
        if forward is None or (ids := forward.ids) is None or kinds_of is None:
            raise InterventionError(
                "Expected a model with a tokenizer, and a decoder that says which tokens stand there, since their kinds are "
                "asked for; load it from a folder with tokenizer files, and generate with sk.decode, sk.trace or model.generate."
            )
        device = call.q.device
        return forward.once(("kinds of tokens", kinds_of), device, lambda: kinds_of(ids).to(device))[:, : call.keys]

    def keep(self, call: Call, outcome: CallResult, wanted: set[Map]) -> None:
        """Remember this call for the next forward."""
        scores: dict[Map, Tensor] = {}
        for rank, rows in wanted:
            if rows == "all":
                scores[rank, rows] = outcome.clean_by_all if rank == "clean" else outcome.received_by_all
            else:
                scores[rank, rows] = _last_row(call, outcome.drop if rank == "as_run" else None)
        window = (call.start, call.start + call.queries)
        earlier = self._earlier(call, window[0]) if call.directed else None
        queries = call.once("queries", lambda: (call.labels >= 0).sum(1))
        seen = call.seen.sum(1)
        if earlier is not None and earlier.seen is not None:
            queries, seen = earlier.queries + queries, _longer(earlier.seen, call.keys) + seen
            for rank, rows in wanted:
                if rows == "all":
                    scores[rank, rows] = _longer(earlier.scores[rank, rows], call.keys) + scores[rank, rows]
        self.layers[call.layer] = Layer(scores, queries, seen, window, earlier)

    def _earlier(self, call: Call, start: int) -> Layer | None:
        """The rows before `start`, of which this forward computes none."""
        known = self.layers.get(call.layer)
        if known is None or start == 0:
            return None
        if start < known.window[1]:  # the last forward's rows, or even earlier ones, are computed again
            return known.earlier if start >= known.window[0] else None
        return replace(known, earlier=None)

    def close(self, call: Call) -> None:
        self.steps[call.layer] = self.step(call) + 1


def _longer(scores: Tensor, keys: int) -> Tensor:
    return scores if scores.shape[-1] == keys else torch.nn.functional.pad(scores, (0, keys - scores.shape[-1]))


def _last_row(call: Call, drop: Tensor | None) -> Tensor:
    """Attention of the last query alone, [batch, head, key]."""
    mask = call.mask if call.mask is None or call.mask.shape[2] == 1 else call.mask[:, :, -1:]
    _, received = attend(call.q[:, :, -1:], call.k, call.v, mask=mask, scale=call.scale, drop_keys=drop)
    return received[:, :, 0]
