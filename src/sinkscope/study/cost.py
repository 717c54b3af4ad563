"""Arithmetic of a plan: operations, bytes and forwards of units, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.models.base import Model
from sinkscope.settings.decode import Decode
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit

GROUPS = 3  # of queries, that received attention is kept for
PASSES = {"mechanism": 3}  # times that a unit of this kind goes over its canvas; all others once
ALONE = ("trace", "likelihood", "forced")  # kinds whose problems are run one at a time
LIKELY_ANSWER = 24  # tokens of a true answer to a small problem
TILE = 128  # queries that attention works on at once
LIKELY_PROMPT = 40  # tokens of a small problem
# One core of a processor of today, to weigh units of models against each other before any of them was timed.
CORE_FLOPS, CALL = 6e10, 2e-3  # operations per second; seconds that a layer takes however little there is to compute


@dataclass(frozen=True)
class Size:
    """Numbers of a model. active: parameters that a token meets in the layers; head: those of the output."""

    parameters: int
    active: int
    head: int
    layers: int
    heads: int
    width: int
    inner: int
    vocabulary: int
    dim: int


def size_of(model: Model) -> Size:
    """From the shapes of a model that may have no weights; of experts, only those that a token goes to are active."""
    config = model.config
    total = sum(parameter.numel() for parameter in model.module.parameters())
    head = model.vocabulary * int(config.hidden_size)
    outside = head * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    experts = sum(part.numel() for name, part in model.module.named_parameters() if ".experts." in name)
    count = getattr(config, "n_routed_experts", None) or getattr(config, "num_experts", None) or 1
    used = min(int(getattr(config, "num_experts_per_tok", None) or count), int(count)) / int(count)
    heads = int(config.num_attention_heads)
    return Size(
        total, round(total - outside - experts * (1 - used)), head, int(config.num_hidden_layers), heads,
        int(config.hidden_size), int(config.intermediate_size or 0), model.vocabulary,
        int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads),
    )  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What one forward works on: rows of a batch, positions computed anew, keys seen, positions that need logits."""

    rows: int
    positions: int
    keys: int
    logits: int


def flops(size: Size, shape: Shape) -> float:
    """Multiplications and additions of one forward: two for every active weight and token, and the attention."""
    tokens = shape.rows * shape.positions
    attention = 4 * size.layers * tokens * shape.keys * size.heads * size.dim
    return 2.0 * size.active * tokens + attention + 2.0 * size.head * shape.rows * shape.logits


def moved(size: Size, itemsize: int) -> float:
    """Bytes of weights that one forward reads at least."""
    return float(size.active + size.head) * itemsize


def forwards(study: Study, unit: Unit) -> int:
    """Forwards over one batch (for each problem, where problems are run one at a time)."""
    if unit.kind == "likelihood":
        return study.likelihood.scored + 1
    if unit.kind == "forced":
        return 2
    settings = Decode.from_dict(dict(unit.decode))
    return settings.most_steps * (2 if settings.guidance else 1) * PASSES.get(unit.kind, 1)


def shape_of(study: Study, unit: Unit, prompt: int, causal: bool) -> Shape:
    """The forward of a unit in the middle of its way; a causal model computes one position and remembers the rest."""
    rows = 1 if unit.kind in ALONE else unit.last - unit.first
    if unit.kind == "likelihood":
        return Shape(rows, 1, study.likelihood.read + study.likelihood.scored // 2, 1)
    if unit.kind == "forced":  # a causal model reads the prompt, then the answer; a diffusion model the whole twice
        answer = LIKELY_ANSWER
        if causal:
            return Shape(1, (prompt + answer) // 2, prompt + answer, answer // 2)
        return Shape(len(study.forced.levels), prompt + answer, prompt + answer, answer // 2)
    settings = Decode.from_dict(dict(unit.decode))
    if causal:
        return Shape(rows, 1, prompt + settings.length // 2, 1)
    canvas, block = prompt + settings.length, settings.block or settings.length
    computed = block if settings.cache == "exact" else canvas  # over an exact cache a step computes its block alone
    return Shape(rows, computed, canvas, max(block // 2, 1))


def batches(unit: Unit) -> int:
    """How often the forwards of a unit are repeated: traced problems and texts are run one at a time."""
    return unit.last - unit.first if unit.kind in ALONE else 1


def rough_seconds(study: Study, unit: Unit, fact: ModelInfo) -> float:
    """About how long a unit takes on one core: good for weighing units, not for promising anything."""
    shape = shape_of(study, unit, LIKELY_PROMPT, fact.causal)
    work = 2.0 * int(fact.identity["parameters"]) * shape.rows * shape.positions
    return batches(unit) * forwards(study, unit) * (CALL * int(fact.identity["layers"]) + work / CORE_FLOPS)


def trace_bytes(size: Size, steps: int, canvas: int) -> int:
    """Of one saved trace: what every key received, in float16, for each step, layer, head and group."""
    return steps * size.layers * size.heads * GROUPS * canvas * 2


def activation_bytes(size: Size, shape: Shape, itemsize: int) -> int:
    """The most that is alive at once: one layer's hidden states, one tile of attention, and logits in three copies."""
    tokens = shape.rows * shape.positions
    hidden = tokens * (6 * size.width + 3 * size.inner) * itemsize
    attention = shape.rows * size.heads * min(shape.positions, TILE) * shape.keys * 4 * 3
    maps = size.layers * shape.rows * size.heads * shape.keys * 4 * 2  # of the last forward, by which sinks are ranked
    return hidden + attention + maps + shape.rows * shape.logits * size.vocabulary * 4 * 3
