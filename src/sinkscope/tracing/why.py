"""Why a key is a sink: its score against those of matched keys, by norm or angle, by content or place, and by what made it.

A score is q·k·scale = |q|·|k|·cos·scale. The step's canvas is computed once more with the model; a trace keeps `KEPT` only
of the heads whose maps it keeps. All figures are means over the queries of the step, in the score's own unit (nats before
the softmax).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, cast

import polars as pl
import torch
from torch import Tensor

from sinkscope.attention.call import Call, EachCall
from sinkscope.attention.patch import patched
from sinkscope.decoding.settings import Decode
from sinkscope.errors import TraceError
from sinkscope.interventions.hooks import hook, layers_of
from sinkscope.models.model import Model
from sinkscope.tracing.trace import Trace


@dataclass(frozen=True, eq=False)
class Why:
    """One key in one head at one step, beside the mean of its matched keys: of the same state, and no sinks there."""

    step: int
    layer: int
    head: int
    key: int
    token: str
    state: str
    received: float
    matched: tuple[int, ...]
    score: float
    matched_score: float
    by_norm: float  # of the difference between the two: from longer keys …
    by_angle: float  # … and from keys that lie nearer to the queries
    key_norm: float
    matched_key_norm: float
    cosine: float
    matched_cosine: float
    content: float  # the score with positions removed; the rest is the rotary embedding's
    matched_content: float
    value_norm: float
    matched_value_norm: float
    # source, score, matched: what each part below hands to the key, summing to it
    sources: pl.DataFrame = field(repr=False)

    def __str__(self) -> str:
        most = self.sources.with_columns(gain=self.sources["score"] - self.sources["matched"]).sort(
            "gain", descending=True
        )
        made = ", ".join(f"{row['source']} {row['gain']:+.2f}" for row in most.head(3).iter_rows(named=True))
        return (
            f"Key {self.key} ({self.token!r}, {self.state}) in head {self.layer}.{self.head} at step {self.step} scores "
            f"{self.score:.2f}, {len(self.matched)} matched keys {self.matched_score:.2f}: {self.by_angle:+.2f} by angle, "
            f"{self.by_norm:+.2f} by norm. Without positions it scores {self.content:.2f}, they {self.matched_content:.2f}. "
            f"Most of its lead comes from {made}. Value norm {self.value_norm:.2f} against {self.matched_value_norm:.2f}."
        )


KEPT = ("score", "key_norm", "content", "value_norm")


def measure(call: Call, head: int, counts: Tensor, rotary: Rotary | None) -> Tensor:
    """`KEPT` of a head's keys, [batch, 4, key]; counts: bool [batch, query], over which scores are means."""
    share = call.q.shape[1] // call.k.shape[1]
    q, k, v = (
        x[: len(counts), at].float() for x, at in ((call.q, head), (call.k, head // share), (call.v, head // share))
    )
    # A mean of scores is the score of the mean query.
    weights = counts.to(q) / counts.sum(-1, keepdim=True).clamp(min=1)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return (k @ (weights[:, None] @ q).mT)[..., 0] * call.scaling

    score = scores(q, k)
    plain = torch.full_like(score, torch.nan) if rotary is None else scores(rotary.off(q, call.start), rotary.off(k))
    return torch.stack([score, k.norm(dim=-1), plain, v.norm(dim=-1)], 1)


@torch.inference_mode()
def why(trace: Trace, model: Model, step: int, layer: int, head: int, key: int) -> Why:
    """See `Trace.why`."""
    _check(trace, model, {"step": (step, trace.steps), "layer": (layer, trace.layers), "head": (head, trace.heads_count),
                          "key": (key, trace.positions)})  # fmt: skip
    ids, queries = _canvas(trace, step)
    if key >= ids.shape[1]:
        raise TraceError(f"Expected a key that is there at step {step}, one of {ids.shape[1]}, got {key}.")
    matched = _matched(trace, step, layer, head, key, ids.shape[1])
    calls: list[Call] = []
    parts: dict[tuple[int, str], Tensor] = {}
    places = [f"layers.{layer}.resid_pre", "layers.0.resid_pre"]
    places += [f"layers.{below}.{place}" for below in range(layer) for place in ("attn_out", "mlp_out")]
    of_layer = EachCall(lambda call: calls.append(call) if call.layer == layer else None)
    with patched(model.module, of_layer), hook(model, places, lambda x, c: parts.__setitem__((c.layer, c.place), x)):
        model.logits(ids.to(model.device), block=trace.settings.block if trace.settings.block_causal else None)
    call = calls[-1]
    share, rotary = call.q.shape[1] // call.k.shape[1], Rotary(model, layer, ids.shape[1])
    counts = torch.zeros(1, ids.shape[1], dtype=torch.bool, device=call.q.device)
    counts[:, queries] = True
    kept = measure(call, head, counts, rotary)[0]
    scores, norms = kept[:2]
    q, k = call.q[0, head, queries].float(), call.k[0, head // share].float()  # [position, dim]
    cosines = torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1).mean(0)
    others, along = list(matched), scores / norms  # along: |q|·cos·scale
    by_norm = (norms[key] - norms[others]) * (along[key] + along[others]) / 2
    by_angle = (along[key] - along[others]) * (norms[key] + norms[others]) / 2
    names, made = _sources(model, layer, head // share, parts)  # [source, position, dim], before the rotary embedding
    given = (rotary.on(made) * q.mean(0)).sum(-1) * call.scaling  # [source, position]

    def both(values: Tensor) -> tuple[float, float]:
        return float(values[key]), float(values[others].mean())

    found = {name: both(values) for name, values in (*zip(KEPT, kept, strict=True), ("cosine", cosines))}
    sources = [both(row) for row in given]
    return Why(
        step, layer, head, key, trace.vocabulary[int(ids[0, key])][0], _state(trace, step, key),
        float(trace.scores()[step, layer, head, key]), matched, by_norm=float(by_norm.mean()), by_angle=float(by_angle.mean()),
        sources=pl.DataFrame({"source": names, "score": [one for one, _ in sources], "matched": [two for _, two in sources]}),
        **{name: one for name, (one, _) in found.items()}, **{f"matched_{name}": two for name, (_, two) in found.items()},
    )  # fmt: skip


def _check(trace: Trace, model: Any, asked: dict[str, tuple[Any, int]]) -> None:
    for name, (value, count) in asked.items():
        if type(value) is not int or not 0 <= value < count:
            raise TraceError(f"Expected {name} from 0 to {count - 1}, got {value!r}.")
    if not isinstance(model, Model) or model.fingerprint != trace.model.get("fingerprint"):
        raise TraceError(
            f"Expected model=… to be the loaded model of this trace, {trace.model.get('name')}, since its step is computed once "
            f"more, got {model!r}."
        )
    if trace.interventions or trace.settings.layout == "left" or trace.settings.cache not in (None, "exact"):
        raise TraceError(
            "Expected a trace whose step can be computed once more from its canvas, without interventions, approximate caches "
            "or padded blocks; trace it without them."
        )


def _canvas(trace: Trace, step: int) -> tuple[Tensor, slice]:
    """Token ids [1, position] of the forward, and which of its rows are queries that count."""
    if trace.causal:
        there = int((trace.committed_at < step).sum())
        return trace.canvas[step][None, :there], slice(there - 1, there)
    if not trace.settings.block_causal:
        return trace.canvas[step][None], slice(0, trace.positions)
    start, stop = trace.blocks[step].tolist()
    return trace.canvas[step][None, :stop], slice(start if trace.settings.cache == "exact" else 0, stop)


def _state(trace: Trace, step: int, key: int) -> str:
    if key < trace.prompt_length:
        return "prompt"
    return "masked" if int(trace.canvas[step, key]) == trace.mask_id else "committed"


def _matched(trace: Trace, step: int, layer: int, head: int, key: int, there: int) -> tuple[int, ...]:
    """Keys of the same state, of the same kind of token where there are any, that are no sinks of this head."""
    column = trace.scores()[step, layer, head, :there]
    sinks = trace.default_rule.marks(column, float(trace.queries[step].sum()))
    state = _state(trace, step, key)
    same = [one for one in range(there) if one != key and not sinks[one] and _state(trace, step, one) == state]
    kind = [trace.vocabulary[int(trace.canvas[step, one])][1] for one in range(there)]
    if not same:
        raise TraceError(
            f"Key {key} is the only one that is {state} and no sink at step {step}: there is none to compare it with."
        )
    return tuple([one for one in same if kind[one] == kind[key]] or same)


class Rotary:
    """The model's own rotary embedding, put on and taken off [any, position, dim]."""

    def __init__(self, model: Model, layer: int, positions: int) -> None:
        base: Any = model.module.base_model
        part = layers_of(model.module)[layer].self_attn
        self.apply = getattr(sys.modules[type(part).__module__], "apply_rotary_pos_emb", None)
        embedding = getattr(base, "rotary_emb", None)
        if self.apply is None or embedding is None:
            raise TraceError(
                f"Expected a model with a rotary embedding, and {model.name} has none; trace.why cannot read it."
            )
        cos, sin = embedding(torch.zeros(1, device=model.device), torch.arange(positions, device=model.device)[None])
        self.cos, self.sin = cos.float(), sin.float()

    def on(self, x: Tensor, sign: int = 1, first: int = 0) -> Tensor:
        """first: the column of the first position; only differences of columns count in scores, so padding does not."""
        cos, sin = (part[:, first : first + x.shape[-2]].to(x.device) for part in (self.cos, sign * self.sin))
        turned: Tensor = self.apply(x[None], x[None], cos, sin)[0][0]  # type: ignore[misc]
        return turned

    def off(self, x: Tensor, first: int = 0) -> Tensor:
        length = self.cos.square() + self.sin.square()  # above 1 where the embedding also scales; then off is 1/length²
        return self.on(x, -1, first) / (1 if torch.allclose(length, torch.ones_like(length)) else float(length.mean()))


def rotary_of(model: Model, layer: int, settings: Decode, positions: int) -> Rotary | None:
    """None where it cannot be taken off: models without one or with one per kind of layer, and padded blocks."""
    try:
        made, part = Rotary(model, layer, positions), cast(Any, layers_of(model.module)[layer].self_attn)
        made.off(torch.zeros(1, 1, part.head_dim, device=model.device))
    except (TraceError, AttributeError, TypeError, ValueError, RuntimeError):
        return None
    return None if settings.layout == "left" else made


def _sources(model: Model, layer: int, head: int, parts: dict[tuple[int, str], Tensor]) -> tuple[list[str], Tensor]:
    """What each part below hands to a layer's key head, [source, position, dim]: norms are held as they are, the rest is linear."""
    block: Any = layers_of(model.module)[layer]
    attention = block.self_attn
    x = parts[layer, "resid_pre"][0].float()
    names, below = ["embedding"], [parts[0, "resid_pre"][0].float()]
    for number in range(layer):
        for place, name in (("attn_out", "attention"), ("mlp_out", "mlp")):
            names.append(f"{name} {number}")
            below.append(parts[number, place][0].float())
    norm = getattr(block, "input_layernorm", None)
    factor = torch.ones_like(x) if norm is None else _factor(norm, x)
    dtype = model.dtype

    def key(states: Tensor) -> Tensor:
        return attention.k_proj(states.to(dtype)).float().unflatten(-1, (-1, attention.head_dim))  # type: ignore[no-any-return]

    bias = key(torch.zeros_like(x))
    made = torch.stack([*(key(part * factor) - bias for part in below), bias])  # [source, position, head, dim]
    normed = getattr(attention, "k_norm", None)
    if normed is not None:
        made = made * _factor(normed, made.sum(0))
    return [*names, "bias"], made[:, :, head]


def _factor(norm: Any, x: Tensor) -> Tensor:
    """What an RMS norm multiplies each number with, given what goes into it."""
    if "RMSNorm" not in type(norm).__name__:
        raise TraceError(f"Expected RMS norms, under which parts of a state add up, got {type(norm).__name__}.")
    out = norm(x.to(norm.weight.dtype)).float()
    return torch.where(x == 0, torch.zeros_like(x), out / torch.where(x == 0, torch.ones_like(x), x))
