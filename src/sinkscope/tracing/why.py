"""Why a key is a sink: its score against those of matched keys, by norm or angle, by content or place, and by what made it.

A score is q·k·scale = |q|·|k|·cos·scale. The step's canvas is computed once more with the model, so a trace keeps nothing for
it. All figures are means over the queries of the step, in the score's own unit (nats before the softmax).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, EachCall
from sinkscope.attention.capture import listening
from sinkscope.attention.places import layers_of
from sinkscope.errors import TraceError
from sinkscope.interventions.hooks import hook
from sinkscope.models.base import Model

if TYPE_CHECKING:
    import polars as pl

    from sinkscope.tracing.record import Trace


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


@torch.inference_mode()
def why(trace: Trace, model: Model, step: int, layer: int, head: int, key: int) -> Why:
    """See `Trace.why`."""
    import polars as pl

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
    with listening(model.module, of_layer), hook(model, places, lambda x, c: parts.__setitem__((c.layer, c.place), x)):
        model.logits(ids.to(model.device), block=trace.settings.block if trace.settings.block_causal else None)
    call = calls[-1]
    share = call.q.shape[1] // call.k.shape[1]
    q, k, v = (x[:1, at].float() for x, at in ((call.q, head), (call.k, head // share), (call.v, head // share)))
    rotary, scale = _Rotary(model, layer, ids.shape[1]), call.scaling
    plain_q, plain_k = (rotary(x[:, None], back=True)[0, 0] for x in (q, k))
    q, k, v = q[0, queries], k[0], v[0]  # [position, dim]
    names, made = _sources(model, layer, head // share, parts)  # [source, position, dim], before the rotary embedding
    norms, cosines = k.norm(dim=-1), torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
    lengths = q.norm(dim=-1)[:, None] * scale  # [query, 1]
    others = list(matched)
    by_norm = lengths * (norms[key] - norms[others]) * (cosines[:, [key]] + cosines[:, others]) / 2
    by_angle = lengths * (cosines[:, [key]] - cosines[:, others]) * (norms[key] + norms[others]) / 2
    scores = (q @ k.mT * scale).mean(0)
    content = (plain_q[queries] @ plain_k.mT * scale).mean(0)
    given = (rotary(made[None], back=False)[0] * q.mean(0)).sum(-1) * scale  # [source, position]

    def both(values: Tensor) -> tuple[float, float]:
        return float(values[key]), float(values[others].mean())

    pairs = {
        "score": scores,
        "key_norm": norms,
        "cosine": cosines.mean(0),
        "content": content,
        "value_norm": v.norm(dim=-1),
    }
    found = {name: both(values) for name, values in pairs.items()}
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
    from sinkscope.sinks.columns import default_rule

    rule = default_rule(trace)
    column = trace.scores()[step, layer, head, :there]
    sinks = rule.marks(column, float(trace.queries[step].sum()))
    state = _state(trace, step, key)
    same = [one for one in range(there) if one != key and not sinks[one] and _state(trace, step, one) == state]
    kind = [trace.vocabulary[int(trace.canvas[step, one])][1] for one in range(there)]
    if not same:
        raise TraceError(
            f"Key {key} is the only one that is {state} and no sink at step {step}: there is none to compare it with."
        )
    return tuple([one for one in same if kind[one] == kind[key]] or same)


class _Rotary:
    """The model's own rotary embedding, forwards and back, on [1, any, position, dim]."""

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

    def __call__(self, x: Tensor, back: bool) -> Tensor:
        turned: Tensor = self.apply(x, x, self.cos, -self.sin if back else self.sin)[0]  # type: ignore[misc]
        if not back:
            return turned
        length = self.cos.square() + self.sin.square()  # above 1 where the embedding scales too; then back is 1/length²
        return turned if bool(torch.isclose(length, torch.ones_like(length)).all()) else turned / float(length.mean())


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
