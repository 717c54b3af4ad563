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
    """Received attention of the previous forward, by layer; it is forgotten when another generation begins.

    Args:
        layers: Received attention of each layer.
        steps: Number of forwards of this generation, by layer.
        run: Generation that the memory belongs to.
        kinds_of: Function from token ids [batch, position] to token categories; None without a tokenizer.
        own: Storage of interventions for this generation, under keys of their own.
        given: Storage of interventions for what `prepare` found in the model.
    """

    layers: dict[int, Layer] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    run: object = None
    kinds_of: Callable[[Tensor], Tensor] | None = None
    own: dict[object, Any] = field(default_factory=dict)
    given: dict[object, Any] = field(default_factory=dict)
    _whole: dict[Map, tuple[int, Tensor]] = field(default_factory=dict)  # sums over layers, and the step they are for

    def open(self, call: Call) -> None:
        """Forget what belongs to another generation, before a call is changed.

        Args:
            call: Attention call.
        """
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
        """Return the number of earlier forwards of this generation.

        Args:
            call: Attention call.
        """
        return self.steps.get(call.layer, 0)

    def scores(self, call: Call, rank: Rank, rows: Rows) -> Tensor | None:
        """Return the attention that each key received, [batch, head, key]; None at the first forward. New keys have 0.

        Args:
            call: Attention call.
            rank: "clean" for unmasked attention, "as_run" for the attention with masked keys.
            rows: "all" for the sum over the queries of the last forward (of a causal model: over all queries so far),
                "last" for the last query.
        """
        return self.scores_at(call.layer, call.keys, rank, rows)

    def scores_at(self, layer: int, keys: int, rank: Rank, rows: Rows) -> Tensor | None:
        known = self.layers.get(layer)
        return None if known is None else _longer(known.scores[rank, rows], keys)

    def alike(self, call: Call, rank: Rank, rows: Rows) -> list[int]:
        """Return this layer and other layers of the same shape that have not run in this forward, whose ranking is
        known already.

        Args:
            call: Attention call.
            rank: Attention, as in `scores`.
            rows: Queries, as in `scores`.
        """
        own = self.layers[call.layer].scores[rank, rows]
        most = max(TOGETHER // (own.shape[0] * own.shape[1] * call.keys), 1)
        found = [call.layer]
        for layer, known in self.layers.items():
            scores, later = known.scores.get((rank, rows)), self.steps.get(layer, 0) == self.step(call)
            if layer != call.layer and later and scores is not None:
                found += [layer] if scores.shape == own.shape and scores.device == own.device else []
        return found[:most]

    def whole(self, call: Call, rank: Rank, rows: Rows) -> Tensor | None:
        """Return the received attention summed over the heads of all layers, [batch, 1, key], as of the previous
        forward.

        Args:
            call: Attention call.
            rank: Attention, as in `scores`.
            rows: Queries, as in `scores`.
        """
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
        """Return the number of queries that `scores` with rows="all" sums over, [batch].

        Args:
            call: Attention call.
        """
        return self.layers[call.layer].queries

    def seen(self, call: Call) -> Tensor:
        """Return the number of those queries that may attend to each key, [batch, key].

        Args:
            call: Attention call.
        """
        known = self.layers[call.layer]
        return known.queries[:, None].expand(-1, call.keys) if known.seen is None else _longer(known.seen, call.keys)

    def kinds(self, call: Call) -> Tensor:
        """Return the token category of each key, [batch, key], as an index into `sinks.kinds.KINDS`.

        Args:
            call: Attention call.
        """
        forward, kinds_of = call.forward, self.kinds_of
        if forward is None or (ids := forward.ids) is None or kinds_of is None:
            raise InterventionError(
                "Expected a model with a tokenizer, and a decoder that says which tokens stand there, since their kinds are "
                "asked for; load it from a folder with tokenizer files, and generate with sk.decode, sk.trace or model.generate."
            )
        device = call.q.device
        return forward.once(("kinds of tokens", kinds_of), device, lambda: kinds_of(ids).to(device))[:, : call.keys]

    def keep(self, call: Call, outcome: CallResult, wanted: set[Map]) -> None:
        """Remember a call for the next forward.

        Args:
            call: Attention call.
            outcome: Result of the call.
            wanted: Received attention to remember, as pairs of rank and rows.
        """
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
