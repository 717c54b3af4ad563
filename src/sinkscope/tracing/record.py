"""`Trace`: received attention, canvas, confidence and commits of one generation, step by step."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from torch import Tensor

from sinkscope.attention.context import GROUPS
from sinkscope.errors import SinkscopeError, TraceError
from sinkscope.fields import shown
from sinkscope.settings.decode import Decode
from sinkscope.sinks import Classes, Rule, default_rule, find, head_dynamics, token_shares
from sinkscope.sinks.columns import CumulativeColumns, alive_keys, marks_by_layer
from sinkscope.sinks.tables import received as received_rows
from sinkscope.viewers import view

if TYPE_CHECKING:
    from sinkscope.models.base import Model
    from sinkscope.tracing.why import Why

Picked = slice | Sequence[int]
# Field → its dimensions; the same letter is the same size in all of them. Numbers are sizes that are known.
SHAPES: dict[str, tuple[str | int, ...]] = {
    "queries": ("step", len(GROUPS)),
    "canvas": ("step + 1", "key"),
    "confidence": ("step", "key"),
    "committed_at": ("key",),
    "edits": ("key",),
    "blocks": ("step", 2),
    "received": ("step", "layer", "head", len(GROUPS), "key"),
    "layer_mean": ("step", "layer", len(GROUPS), "key"),
    "top_keys": ("step", "layer", "head", len(GROUPS), "top"),
    "top_scores": ("step", "layer", "head", len(GROUPS), "top"),
    "value_norms": ("step", "layer", "kv head", "key"),
    "hidden_norms": ("step", "layer", "key"),
    "lens_tokens": ("step", "layer", "choice", "key"),
    "lens_probability": ("step", "layer", "choice", "key"),
    "channels": ("step", "layer", "channel"),
    "channel_values": ("step", "layer", "channel", "key"),
    "maps": ("map", "step", "key", "key"),
    "reasons": ("map", "step", 4, "key"),
}
WHOLE = ("queries", "canvas", "committed_at", "edits", "blocks", "top_keys", "lens_tokens", "channels")


@dataclass(frozen=True, eq=False)
class Trace:
    """One generation; an autoregressive one has the same shape: one step per token, 0 at keys that are not there yet."""

    received: Tensor | None  # [step, layer, head, group, key]: plain column sums; None in summary form
    queries: Tensor  # [step, group] int32: how many queries each group had
    canvas: Tensor  # [step + 1, position] int64: before each forward, and the last
    confidence: Tensor  # [step, position] fp32, NaN where no candidate was looked at
    committed_at: Tensor  # [position] int32: step of the last commit or edit, −1 for the prompt
    blocks: Tensor  # [step, 2] int32: first column of the active block, and the one after its last
    prompt_length: int
    settings: Decode
    model: dict[str, Any]  # Model.identity()
    backend: str
    vocabulary: dict[int, tuple[str, str]]  # id → text shown, kind
    mask_id: int | None
    causal: bool
    prompt: str
    text: str
    interventions: list[dict[str, Any]] = field(default_factory=list)
    layer_mean: Tensor | None = None  # summary form: [step, layer, group, key]
    top_keys: Tensor | None = None  # summary form: [step, layer, head, group, n] int32
    top_scores: Tensor | None = None
    value_norms: Tensor | None = None  # [step, layer, kv head, key], on request
    hidden_norms: Tensor | None = None  # [step, layer, key]: of the hidden state that enters each layer, on request
    maps: Tensor | None = None  # [n, step, query, key]: attention of the heads in map_heads, on request
    map_heads: tuple[tuple[int, int], ...] = ()
    reasons: Tensor | None = None  # [n, step, 4, key], with maps: score, key norm, score without positions, value norm
    lens_tokens: Tensor | None = None  # [step, layer, n, position] int32: what a layer would write there, on request
    lens_probability: Tensor | None = None  # … and how sure it is; 0 where the step computed no row for the position
    edits: Tensor | None = None  # [position] int32: how often a token that stood there was replaced; None: never
    channels: Tensor | None = None  # [step, layer, n] int32: the largest channels behind each layer, on request
    channel_values: Tensor | None = None  # [step, layer, n, position]: … their values; 0 where the step computed none

    def __repr__(self) -> str:
        size = f"{self.steps} steps × {self.layers} layers × {self.heads_count} heads × {self.positions} positions"
        changed = ", ".join(str(one.get("name")) for one in self.interventions)
        return f"Trace({self.model.get('name', 'model')}, {size}, {self.form}{f', {changed}' if changed else ''})"

    def _repr_html_(self) -> str:
        """A notebook's card: what was asked, what came, how large; `.show()` is the explorer."""
        rows = {
            "prompt": self.prompt.strip()[:300],
            "answer": self.text.strip()[:300] or "–",
            "changed by": ", ".join(str(one.get("name")) for one in self.interventions) or "nothing",
            "look at it": ".show() · .sinks() · .heads() · .tokens() · .to_frame()",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<p><b>{html.escape(repr(self))}</b></p><table>{cells}</table>"

    @property
    def form(self) -> str:
        return "summary" if self.received is None else "full"

    @property
    def steps(self) -> int:
        return self.queries.shape[0]

    @property
    def layers(self) -> int:
        return self._scored.shape[1]

    @property
    def heads_count(self) -> int:
        return self._scored.shape[2]

    @property
    def positions(self) -> int:
        return self.canvas.shape[1]

    @property
    def _scored(self) -> Tensor:
        scored = self.top_scores if self.received is None else self.received
        if scored is None:
            raise TraceError("Expected a trace with received attention, full or in summary form, got one without.")
        return scored

    def scores(self, group: str = "all", unit: str = "sum") -> Tensor:
        """What each key received from a group of queries, [step, layer, head, key] fp32.

        unit: "sum" column sums; "mean" divided by the number of queries; "percent" 100 × that. In summary form the top
        keys are exact and what is left of the attention is spread evenly over the others.
        """
        if group not in ("all", *GROUPS):
            raise TraceError(f"Expected a group of queries among all, {', '.join(GROUPS)}, got {group!r}.")
        if unit not in ("sum", "mean", "percent"):
            raise TraceError(f"Expected the unit sum, mean or percent, got {unit!r}.")
        index = range(len(GROUPS)) if group == "all" else [GROUPS.index(group)]
        scores = self._group(index[0]).clone()
        for other in index[1:]:
            scores += self._group(other)
        if unit == "sum":
            return scores
        queries = self.queries[:, list(index)].sum(1).clamp(min=1)[:, None, None, None]
        return scores / queries * (100 if unit == "percent" else 1)

    def _group(self, group: int) -> Tensor:
        if self.received is not None:
            return self.received[:, :, :, group].float()
        assert self.top_keys is not None and self.top_scores is not None
        keys, top = self.top_keys[:, :, :, group].long(), self.top_scores[:, :, :, group].float()
        alive = alive_keys(self)  # [step, key]
        total = self.queries[:, group].float()[:, None, None]
        rest = (total - top.sum(-1)).clamp(min=0) / (alive.sum(1) - top.shape[-1]).clamp(min=1)[:, None, None]
        return (rest.unsqueeze(-1) * alive[:, None, None]).scatter(-1, keys, top)

    def select(self, steps: slice | None = None, layers: Picked | None = None, heads: Picked | None = None) -> Trace:
        """A part of the trace; steps as a slice without stride, layers and heads in any choice (renumbered)."""
        steps = slice(None) if steps is None else steps
        try:
            first, last, stride = steps.indices(self.steps)
        except (AttributeError, TypeError):
            first, last, stride = 0, 0, 0
        if stride != 1 or last <= first:
            raise TraceError(f"Expected a slice of steps within 0 and {self.steps}, without stride, got {steps}.")
        cut: dict[str, Any] = {
            name: tensor[first:last] for name in BY_STEP if (tensor := getattr(self, name)) is not None
        }
        if layers is not None:
            some = picked("layers", layers, self.layers)
            cut |= {name: cut[name][:, some] for name in BY_LAYER if name in cut}
        if heads is not None:
            some = picked("heads", heads, self.heads_count)
            cut |= {name: cut[name][:, :, some] for name in BY_HEAD if name in cut}
            cut["value_norms"] = None  # kept by kv head, which query heads share
        return replace(
            self, **cut, canvas=self.canvas[first : last + 1], maps=None, map_heads=(), reasons=None,
            committed_at=(self.committed_at - first).clamp(min=-1),
        )  # fmt: skip

    def to_frame(self, group: str = "all", unit: str = "sum") -> pl.DataFrame:
        """What each key received, a row per step, layer, head and key that exists: position, id, token, kind, received.

        group, unit: as of `scores`. Rows are steps × layers × heads × positions; `select` first where that is too many.
        """
        return received_rows(self, group, unit)

    def sinks(self, rule: Rule | None = None) -> pl.DataFrame:
        """Every sink: step, layer, head, position, token, kind, score, unit."""
        return find(self, _rule(rule))

    def heads(self, rule: Rule | None = None, classes: Classes | None = None) -> pl.DataFrame:
        """One row per head: how its sinks behave over the steps, and what class that makes it."""
        return head_dynamics(self, _rule(rule), classes)

    def tokens(self, rule: Rule | None = None) -> pl.DataFrame:
        """Which tokens the sinks are, and how much oftener than such tokens occur."""
        return token_shares([self], _rule(rule))

    def outliers(self, rule: Rule | None = None) -> pl.DataFrame:
        """A row per layer and channel: in which share of steps it is among the largest, and its size at sinks and elsewhere.

        Of a trace that kept channels (`Keep(channels=8)`). Sizes are root mean squares over the steps in which it is kept. A
        position counts as a sink of a layer's output where it is one in any head of the next layer, whose keys are made of it
        (of the last layer: in its own heads). Of a causal trace the prompt is looked at, and a position that is a sink at any
        step.
        """
        if self.channels is None or self.channel_values is None:
            raise TraceError(
                "Expected a trace with channels, and this one kept none; record it with keep=sk.Keep(channels=8)."
            )
        seen: Any = CumulativeColumns(self) if self.causal else self
        found = marks_by_layer(seen, _rule(rule) or default_rule(self))
        marks = torch.cat([marks for _, _, marks, _ in found], 1).any(2)  # [step, layer, position]
        channels, all_values = self.channels, self.channel_values
        if self.causal:  # later steps compute one position each, and leave the prompt's states as they are
            channels, all_values, marks = channels[:1], all_values[:1], marks.any(0, keepdim=True)
        rows = []
        for layer in range(self.layers):
            at = marks[:, min(layer + 1, self.layers - 1)]  # [step, position]
            there = all_values[:, layer].abs().sum(1) > 0  # what the step computed
            for channel in channels[:, layer].unique().tolist():
                kept = channels[:, layer] == channel  # [step, n]
                values = all_values[:, layer][kept]  # [kept step, position]
                steps = kept.any(1)
                sizes = [_size(values[where[steps]]) for where in (at & there, ~at & there)]
                rows.append((layer, channel, float(steps.float().mean()), *sizes))
        figures = dict.fromkeys(("steps", "at_sinks", "elsewhere"), pl.Float64)
        made = pl.DataFrame(rows, schema={"layer": pl.Int64, "channel": pl.Int64, **figures}, orient="row")
        return made.sort("layer", pl.max_horizontal("at_sinks", "elsewhere"), descending=[False, True])

    def why(self, step: int, layer: int, head: int, key: int, model: Model) -> Why:
        """Why this key draws attention there: norm or angle, content or place, which layers made it; against matched keys.

        model: the one that made the trace; the step is computed once more with it.
        """
        from sinkscope.tracing.why import why

        return why(self, model, step, layer, head, key)

    def show(self) -> Any:
        """The explorer of this trace: in a notebook as a frame, elsewhere as a page in a temporary file."""
        return view("trace.show", self)

    def save(self, path: str | Path) -> Path:
        """Write the trace as one safetensors file (to a temporary name, then renamed)."""
        from sinkscope.tracing.files import save

        return save(self, _path(path))

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace; tensors are mapped from the file, so that only what is used is read."""
        from sinkscope.tracing.files import load

        return load(_path(path))


def picked(name: str, asked: Any, count: int, error: type[SinkscopeError] = TraceError) -> list[int]:
    """Numbers out of `count`, from a slice or a sequence; None is all of them, negative ones count from the end."""
    if asked is None:
        return list(range(count))
    several = (
        range(count)[asked] if isinstance(asked, slice) else asked.tolist() if isinstance(asked, Tensor) else asked
    )
    whole = isinstance(several, Sequence) and bool(several) and all(type(one) is int for one in several)
    if not whole or any(not -count <= one < count for one in several):
        raise error(f"Expected {name} from {-count} to {count - 1}, at least one, got {shown(asked, 60)}.")
    return [one % count for one in several]


def _size(values: Tensor) -> float | None:
    return float(values.double().square().mean().sqrt()) if values.numel() else None


def _rule(rule: Rule | None) -> Rule | None:
    if rule is not None and not isinstance(rule, Rule):
        raise TraceError(f'Expected a sink rule, such as sk.Threshold(3, unit="sum"), got {rule!r}.')
    return rule


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | Path):
        raise TraceError(f"Expected the path of a trace's file, got {path!r}.")
    return Path(path)


BY_STEP = [name for name, shape in SHAPES.items() if shape[0] == "step"]
BY_LAYER = [name for name in BY_STEP if "layer" in SHAPES[name]]
BY_HEAD = [name for name in BY_LAYER if "head" in SHAPES[name]]
TENSORS = tuple(item.name for item in fields(Trace) if item.type in ("Tensor", "Tensor | None"))
