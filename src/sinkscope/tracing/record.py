"""`Trace`: received attention, canvas, confidence and commits of one generation, step by step; and in which order it decoded."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import polars as pl
import torch
from torch import Tensor

from sinkscope.attention.forward import GROUPS
from sinkscope.decoding.settings import Decode
from sinkscope.errors import SinkscopeError, TraceError
from sinkscope.fields import shown
from sinkscope.sinks import Classes, Rule, default_rule, find, head_dynamics, token_shares
from sinkscope.sinks.columns import TraceColumns, cumulative_columns, marks_by_layer
from sinkscope.sinks.tables import received as received_rows
from sinkscope.viewers import view

if TYPE_CHECKING:
    from sinkscope.models.model import Model
    from sinkscope.tracing.why import Why

Picked = slice | Sequence[int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace(TraceColumns):
    """One generation; an autoregressive one has the same shape: one step per token, 0 at keys that are not there yet."""

    settings: Decode
    confidence: Annotated[Tensor, "step key"]  # fp32, NaN where no candidate was looked at
    model: dict[str, Any]  # Model.identity()
    backend: str
    prompt: str
    text: str
    interventions: list[dict[str, Any]] = field(default_factory=list)
    layer_mean: Annotated[Tensor | None, "step layer group key"] = None  # summary form
    # On request: norms of the hidden state that enters each layer, and attention of the heads in map_heads, with each key's
    # score, norm, score without positions and value norm.
    hidden_norms: Annotated[Tensor | None, "step layer key"] = None
    maps: Annotated[Tensor | None, "map step key key"] = None
    map_heads: tuple[tuple[int, int], ...] = ()
    reasons: Annotated[Tensor | None, "map step 4 key"] = None
    # On request: what a layer would write there, and how sure it is; 0 where the step computed no row for the position.
    lens_tokens: Annotated[Tensor | None, "step layer choice key", torch.int32] = None
    lens_probability: Annotated[Tensor | None, "step layer choice key"] = None
    edits: Annotated[Tensor | None, "key", torch.int32] = None  # how often a token was replaced; None: never
    # On request: the largest channels behind each layer, and their values; 0 where the step computed none.
    channels: Annotated[Tensor | None, "step layer channel", torch.int32] = None
    channel_values: Annotated[Tensor | None, "step layer channel key"] = None

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
        seen = cumulative_columns(self) if self.causal else self
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


# Tensor of a trace → its dimensions; the same word is the same size in all of them. Numbers are sizes that are known.
# WHOLE: those of whole numbers.
HINTS = get_type_hints(Trace, include_extras=True)
_TENSORS = {name: hint.__metadata__ for name, hint in HINTS.items() if get_origin(hint) is Annotated}
_KNOWN = {"group": len(GROUPS), "2": 2, "4": 4}
SHAPES = {name: tuple(_KNOWN.get(word, word) for word in words.split()) for name, (words, *_) in _TENSORS.items()}
WHOLE: dict[str, torch.dtype] = {name: dtype for name, (_, *dtypes) in _TENSORS.items() for dtype in dtypes}
BY_STEP = [name for name, shape in SHAPES.items() if shape[0] == "step"]
BY_LAYER = [name for name in BY_STEP if "layer" in SHAPES[name]]
BY_HEAD = [name for name in BY_LAYER if "head" in SHAPES[name]]


# ---- in which order a generation was decoded, and where its main sink stood while commits went on ----


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
