"""Forwards under a cache policy: of the whole canvas, of its window, or of single columns, against what was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.call import EachCall
from sinkscope.attention.forward import SparseKeys
from sinkscope.attention.observe import observe
from sinkscope.attention.patch import patched
from sinkscope.decoding.caches.evicting import by_kv_head, nearness
from sinkscope.decoding.caches.policy import CachePolicy, CacheStep, Span
from sinkscope.decoding.caches.store import StoredLayer
from sinkscope.decoding.canvas import CacheUse, Canvas, Step
from sinkscope.decoding.forwards import Forwards
from sinkscope.errors import DecodeError
from sinkscope.models.model import Model
from sinkscope.sinks.rules import Threshold, rule_from_dict

FORCED = 1e8  # above every score: a sink that must stay, or must go
NEAREST = 1e9  # above that: the nearest columns that `recent` keeps


class PolicyForwards(Forwards):
    """Hidden states of what the policy has computed, and the keys and values that it keeps."""

    def __init__(self, model: Model, policy: CachePolicy, shift: bool) -> None:
        super().__init__(model, shift)
        self.policy = policy
        self.step = CacheStep(shift)
        self.canvas: Canvas | None = None  # the decoder hands it on: tokens change in place
        self.layers = [StoredLayer(self.evict) for _ in range(int(model.config.num_hidden_layers))]
        self.cache = DynamicCache()
        self.cache.layers = cast("list[Any]", self.layers)
        self.received: dict[int, Tensor] = {}  # by layer, [batch, head, column], at the last look
        self.mask: Tensor | None = None  # bool [batch, kept]: which of the kept columns are real; None: all
        self.planned = False
        self.looking = True
        self.columns: Tensor | None = None  # [batch, n]: single columns that the next forward computes; None: a span
        self.due = torch.empty(0)  # bool [batch, column]: where `columns` comes from; a row without any waits
        self.span: Span = (0, 0)
        self.keeps_maps = False
        self.computed_maps: list[Tensor] = []
        self.kept_maps: list[list[Tensor]] = []
        self.most: int | None = None  # columns that every head of every layer keeps at this look
        self.arrived = self.evicted = 0  # layers whose keys came in this look, and that were laid out
        self.computed_share: list[float] = []  # of the canvas, by forward
        self.peak_bytes = self.kept_bytes = 0

    # ---- what the next forward computes

    def window(self, span: Span, columns: int) -> Span:
        """The columns of the next forward; all of them where it computes single ones."""
        if not self.planned:
            self.plan(span, columns)
        return (0, columns) if self.columns is not None else self.span

    def plan(self, block: Span, columns: int) -> None:
        """Ask the policy, once per forward."""
        step, canvas = self.step, self.begin(block)
        due = self.policy.due(canvas, step)
        forgotten = step.moved and not self.policy.lives_on  # what this block needs may have been freed
        self.looking = step.forward == 0 or forgotten or due is True
        if self.looking:
            self.span = (0, columns)
        elif isinstance(due, Tensor):
            inside = torch.ones_like(due)
            if self.policy.evicts:  # what is computed must have a place among the kept keys
                start, stop = self.policy.window(canvas, step)
                inside[:, :start], inside[:, stop:] = False, False
            self.due = due & inside
            self.columns = step.memory["columns"] = positions_of(self.due, inside)
        elif step.moved:
            # The block before once more: its last tokens were written after it was last computed.
            self.span = step.span((step.before or block)[0], block[1])
        else:
            self.span = self.policy.window(canvas, step)

    def begin(self, block: Span) -> Canvas:
        """A forward of this block is planned."""
        step, canvas = self.step, self.require_canvas()
        step.before, step.block = (step.block if step.forward else None), block
        step.index = 0 if step.moved else step.index
        if step.forward == 0:  # asked once: on a GPU the host would wait
            step.real = None if bool(canvas.real.all()) else canvas.real
        self.planned, self.columns = True, None
        return canvas

    def end(self, share: float, computed: Callable[[], Tensor]) -> None:
        """A forward is over that computed this share of the canvas; computed: bool [layer, batch, column]."""
        self.computed_share.append(share)
        if self.keeps_maps:
            self.computed_maps.append(computed().cpu())
        step = self.step
        step.since, step.index, step.forward = step.since + 1, step.index + 1, step.forward + 1
        self.planned = False
        self.kept_bytes = max(self.kept_bytes, self.held())
        self.peak_bytes = max(self.peak_bytes, self.kept_bytes)

    def require_canvas(self) -> Canvas:
        if self.canvas is None:
            raise DecodeError("A cache policy works inside a decoder, which has a canvas; call sk.decode.")
        return self.canvas

    def computed(self) -> Tensor:
        """bool [batch, column]: what the next forward computes."""
        canvas = self.require_canvas()
        if self.columns is not None:
            return self.due
        inside = torch.zeros_like(canvas.real)
        inside[:, slice(*self.span)] = True
        return inside

    def predicted(self) -> Tensor:
        """bool [batch, column]: whose tokens the last forward predicts."""
        computed = self.computed()
        if not self.shift:
            return computed
        return torch.cat([computed[:, :1], computed[:, :-1]], 1)

    def wanted(self, positions: Tensor) -> Tensor:
        return self.policy.candidates(positions, self.require_canvas(), self.step) & self.predicted()

    def draws(self, rows: Tensor, columns: Tensor, width: int) -> tuple[int, Tensor]:
        if not self.policy.draws_computed:
            return width, columns
        computed = self.computed()
        place = computed.cumsum(1) - 1
        return int(computed.sum(1).max()), place[rows, columns]

    # ---- a forward

    def visible(self, tokens: Tensor, real: Tensor | None, span: Span, keep: bool = False) -> Tensor | None:
        return None

    def __call__(self, tokens: Tensor, real: Tensor | None, span: Span, keep: bool = False) -> Tensor:
        """tokens [batch, position] → hidden [batch, window, width], of the whole canvas where single columns are computed."""
        width = tokens.shape[1]
        self.window(span, width)
        positions = self._positions(tokens, real)
        computed = self.span[1] - self.span[0] if self.columns is None else self.columns.shape[1]
        with self.watched():
            if self.looking:
                hidden = self.look(tokens, real, positions)
            elif self.columns is not None:
                hidden = self.run_columns(tokens, positions, real)
            else:
                hidden = self.run_span(tokens, positions)
        self.end(computed / width, lambda: self.computed().expand(len(self.layers), -1, -1))
        return hidden

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The policy sees the attention calls, where it overrides `watch`."""
        with ExitStack() as stack:
            if type(self.policy).watch is not CachePolicy.watch:
                stack.enter_context(patched(self.model.module, EachCall(self.show)))
            if self.looking and self.policy.needs_received:
                self.received = {}
                stack.enter_context(observe(self.model, keep=self.take_received))
            yield

    def show(self, call: Any) -> None:
        self.step.layer = call.layer
        self.policy.watch(call, self.require_canvas(), self.step)

    def take_received(self, layer: int, received: Tensor) -> Tensor:
        self.received[layer] = received.sum(2)
        return self.received[layer]

    def _positions(self, canvas: Tensor, real: Tensor | None) -> Tensor:
        return super()._positions(canvas, None if self.policy.counts_padding else real)

    def look(self, canvas: Tensor, real: Tensor | None, positions: Tensor) -> Tensor:
        """A forward over the whole canvas; as soon as a layer is over, what the policy does not keep of it is freed."""
        step = self.step
        step.since, step.served, step.drift = 0, 1, 0.0
        step.looks += 1
        self.arrived, self.evicted, self.most = 0, 0, None
        self.kept_maps.append([])
        for layer in self.layers:
            layer.clear()
        hidden = self._run(canvas, real, positions, self.cache)
        self.lay_out(len(self.layers))
        return hidden

    def run_span(self, canvas: Tensor, positions: Tensor) -> Tensor:
        start, stop = self.span
        moved = self.step.moved
        if moved:
            self.lay_out_again(self.span)
            self.step.served += 1
        hidden = self._run(canvas[:, start:stop], self.mask, positions[:, start:stop], self.cache)
        if moved:
            self.lay_out_again(self.policy.window(self.require_canvas(), self.step))
        self.step.drift = self.value_drift()
        return hidden

    def run_columns(self, canvas: Tensor, positions: Tensor, real: Tensor | None) -> Tensor:
        columns = self.columns
        assert columns is not None
        waiting = ~self.due.any(1)
        for layer in self.layers:
            layer.computed = columns.to(layer.keys.device)
            layer.frozen = waiting.to(layer.keys.device) if bool(waiting.any()) else None
        positions = positions.expand(len(canvas), -1).gather(1, columns)
        computed = self._run(canvas.gather(1, columns), self.mask, positions, self.cache)
        for layer in self.layers:
            layer.computed = layer.frozen = None
        hidden = computed.new_zeros(*canvas.shape, computed.shape[-1])
        return hidden.scatter_(1, columns[..., None].to(computed.device).expand_as(computed), computed)

    # ---- what is kept

    def held(self) -> int:
        """Bytes of keys and values that are held now."""
        return sum(layer.bytes for layer in self.layers)

    def evict(self) -> None:
        """A layer's keys have arrived: the one before is over, and can be laid out."""
        self.arrived += 1
        self.peak_bytes = max(self.peak_bytes, self.held())
        if self.policy.per != "model":
            self.lay_out(self.arrived - 1)

    def lay_out(self, until: int) -> None:
        """Lay out the layers of a look up to this one, by what the look saw."""
        window = self.policy.window(self.require_canvas(), self.step)
        pooled = self.pooled_scores(window) if self.policy.per == "model" else None
        while self.evicted < until:
            self.lay_out_layer(self.evicted, window, pooled)
            self.layers[self.evicted].looking = False
            self.evicted += 1

    def lay_out_again(self, window: Span) -> None:
        """Another window after the same look."""
        self.most = None
        pooled = self.pooled_scores(window) if self.policy.per == "model" else None
        for number in range(len(self.layers)):
            self.lay_out_layer(number, window, pooled)

    def lay_out_layer(self, number: int, window: Span, pooled: Tensor | None) -> None:
        """Choose what is kept of a layer around a window of columns."""
        layer, policy, canvas = self.layers[number], self.policy, self.require_canvas()
        received = self.received.get(number)
        watched = received if policy.drift is not None else None
        if not policy.evicts:
            layer.lay_out(None, window, policy.lives_on, None)
            self.mask = self.step.real
            self.note_kept(canvas.real)
            return
        real = canvas.real.to(layer.keys.device)
        inside = torch.zeros_like(real)
        inside[:, slice(*window)] = True
        outside = real & ~inside
        budget = policy.budget(outside.sum(1))
        if self.most is None:  # every head of every layer keeps as many, so the host asks for the number once
            self.most = int(((real & inside).sum(1) + budget).max())
        scores = self.scores(number, window) if pooled is None else pooled.to(layer.keys.device)
        index = chosen_columns(scores, real, inside, budget, self.most)
        layer.lay_out(index, window, policy.lives_on, watched)
        self.note_kept(index)
        # The same in every layer and head: padded columns come first.
        self.mask = None if self.step.real is None else real.gather(1, index[:, 0])

    def note_kept(self, index: Tensor) -> None:
        """What a layer keeps after a look: columns [batch, kv head, kept], or bool [batch, column]."""
        if not self.keeps_maps:
            return
        canvas, heads = self.require_canvas(), self.layers[0].keys.shape[1]
        kept = torch.zeros(canvas.batch, heads, canvas.width, dtype=torch.bool, device=index.device)
        kept = index[:, None].expand_as(kept) if index.dtype == torch.bool else kept.scatter(2, index, True)
        self.kept_maps[-1].append(kept.cpu())

    def use(self) -> CacheUse:
        computed = torch.stack(self.computed_maps) if self.computed_maps else None
        looks = [torch.stack(layers) for layers in self.kept_maps if len(layers) == len(self.layers)]
        return CacheUse(
            self.policy.name, sum(self.computed_share) / max(len(self.computed_share), 1), self.step.looks,
            self.kept_bytes, self.peak_bytes, 1024 * getrusage(RUSAGE_SELF).ru_maxrss, computed,
            torch.stack(looks) if looks else None,
        )  # fmt: skip

    def pooled_scores(self, window: Span) -> Tensor:
        """Scores of all layers and heads together, [batch, kv head, column]."""
        device = self.layers[-1].keys.device
        per_layer = [self.scores(number, window).sum(1, keepdim=True).to(device) for number in range(len(self.layers))]
        return torch.stack(per_layer).sum(0).expand(-1, self.layers[-1].keys.shape[1], -1)

    def scores(self, number: int, window: Span) -> Tensor:
        """[batch, kv head, column] of one layer: the policy's, with the nearest and the sinks where they are forced."""
        layer, policy, canvas = self.layers[number], self.policy, self.require_canvas()
        received, self.step.layer = self.received.get(number), number
        keys, values = layer.whole or (layer.keys, layer.values)
        shape = keys.shape[:3]
        scores = policy.score(keys, values, received, canvas, self.step).double()
        alike = policy.per != "head"
        if alike:
            scores = scores.sum(1, keepdim=True).expand(shape)
        near = nearness(shape, window, keys)
        forced = policy.forced
        if forced is not None and received is not None:
            strength = by_kv_head(received, shape[1])
            marks = self.sinks(received, canvas.real.to(keys.device)).unflatten(1, (shape[1], -1)).any(2)
            if alike:
                strength = strength.sum(1, keepdim=True).expand(shape)
                marks = marks.any(1, keepdim=True).expand(shape)
            # The strongest sinks are the first to be kept, or the first to go.
            scores = torch.where(marks, (1.0 if forced == "keep" else -1.0) * (FORCED + strength), scores)
        if policy.recent:
            outside = canvas.real.to(keys.device).clone()
            outside[:, slice(*window)] = False
            order = near.masked_fill(~outside[:, None], -torch.inf).argsort(dim=-1, descending=True, stable=True)
            scores = scores + (order.argsort(-1) < policy.recent) * NEAREST
        return scores

    def sinks(self, received: Tensor, real: Tensor) -> Tensor:
        """bool [batch, head, column], by the policy's rule."""
        words = self.policy.rule
        rule = Threshold(3.0, unit="sum") if words is None else rule_from_dict(dict(words))
        return rule.marks(received, real.sum(1), real[:, None].expand_as(received))

    def cached_columns(self, layer: int) -> SparseKeys | None:
        """What a layer's attention is given of the canvas; None where the forward sees all of it."""
        return self.layers[layer].sparse_keys()

    def value_drift(self) -> float:
        """Mean over layers of how far the most attended value has turned; 0 where the policy does not ask."""
        if self.policy.drift is None:
            return 0.0
        drifts = [layer.value_drift().to(self.model.device) for layer in self.layers]
        return float(torch.stack(drifts).mean())

    def note(self, step: Step) -> None:
        self.policy.note(step, self.require_canvas(), self.step)

    def attach(self, canvas: Canvas, keep: bool) -> None:
        self.canvas, self.keeps_maps = canvas, keep


def positions_of(due: Tensor, inside: Tensor | None = None) -> Tensor:
    """bool [batch, column] → columns [batch, n] in ascending order; rows with fewer take others too, first those inside."""
    most = max(int(due.sum(1).max()), 1)
    order = (~due).to(torch.uint8)
    if inside is not None:
        order = order + (~inside).to(torch.uint8)
    return order.argsort(dim=1, stable=True)[:, :most].sort(dim=1).values


def chosen_columns(scores: Tensor, real: Tensor, inside: Tensor, budget: Tensor, most: int) -> Tensor:
    """[batch, kv head, kept]: columns in ascending order; rows with fewer real keys are filled with padded columns.

    scores: [batch, kv head, column]; real, inside (the window): bool [batch, column]; budget: [batch], outside the window.
    """
    columns = scores.shape[-1]
    outside = real & ~inside
    order = scores.masked_fill(~outside[:, None], -torch.inf).argsort(dim=-1, descending=True, stable=True)
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(columns, device=order.device).expand_as(order))
    chosen = (place < budget[:, None, None]) & outside[:, None]
    seen = chosen | (inside & real)[:, None]
    # Padded columns stand at the left: taking the last ones fills short rows without breaking the order.
    padded = (~real).long().cumsum(1)
    missing = most - seen.sum(-1)  # [batch, kv head]
    fill = (~real)[:, None] & (padded[:, None] > padded[:, -1:, None] - missing[..., None])
    # What is kept comes first, in its order: nonzero would make the host wait.
    return (~(seen | fill)).to(torch.uint8).argsort(dim=-1, stable=True)[..., :most]
