"""Hidden states of a generation: the logit lens, activations for probes, outlier channels, drift against another model.

The lens applies final norm and head to the hidden state behind each layer, as if it were the last. `lens` reads one forward;
a recorder with Keep(lens=True) takes the `top_tokens` of every denoising step. `activations` writes vectors as safetensors
shards with step, place and token.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import polars as pl
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sinkscope.attention.observe import observe
from sinkscope.decoding import decode, resolve_settings
from sinkscope.errors import ReadingError, TraceError
from sinkscope.files import replace_file, write_file
from sinkscope.interventions.activations import At, positions
from sinkscope.interventions.base import Steps, StepsField, within
from sinkscope.interventions.hooks import HookContext, find_places, hook
from sinkscope.models.model import Model, Prompt, is_ids, is_messages
from sinkscope.sinks import Rule
from sinkscope.tracing.trace import Trace, resolve_indices
from sinkscope.validation import LARGEST, validate

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Decode

TOP = 3  # tokens kept per step, layer and position
AT_A_TIME = 1 << 28  # logits that are made at a time


@torch.inference_mode()
def lens(
    model: Model,
    ids: Prompt | list[Any],
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Compute the logits that each layer's hidden states give at the output head (logit lens).

    Args:
        model: Model from `load` or `wrap`.
        ids: Token ids [batch, position], or a prompt, or a list of prompts, which are padded at the left.
        layers: Layer indices in the order of the result; negative ones count from the end, None for all.
        positions: Positions in the order of the result; negative ones count from the end, None for all.
        attention_mask: Attention mask [batch, position], 0 at padding; None if nothing is padded.

    Returns:
        Logits [layer, batch, position, vocab]. The last layer's are the model's own. As in `Model.logits`, those of a
            shifted family at position i predict token i + 1.
    """
    chosen = resolve_indices("layers", layers, layer_count(model), ReadingError)
    states = hidden_states(model, ids, attention_mask, chosen)
    places = resolve_indices("positions", positions, states[chosen[0]].shape[1], ReadingError)
    found = None
    for index, layer in enumerate(chosen):  # into the result in place: beside it there is one part's logits at most
        state = states[layer] if positions is None else states[layer][:, places]
        for span, part in _parts(model, state):
            logits = read(model, part, normed=layer == layer_count(model) - 1)
            if found is None:
                found = logits.new_empty(len(chosen), len(state), len(places), logits.shape[-1])
            found[index, :, span] = logits
            del logits  # before the next part's are made
    assert found is not None
    return found


@torch.inference_mode()
def hidden_states(
    model: Model, ids: Prompt | list[Any], attention_mask: Tensor | None, chosen: Sequence[int]
) -> dict[int, Tensor]:
    """What leaves the chosen layers, [batch, position, width] each, on its layer's device; the last behind the final norm."""
    rows, mask, _ = model.batch(ids, attention_mask)
    mask = None if mask is None or bool(mask.all()) else mask.to(model.device)
    base: Any = model.module.base_model
    found: dict[int, Tensor] = {}
    places = [f"layers.{layer}.resid_post" for layer in chosen]
    with hook(model, places, lambda state, context: found.__setitem__(context.layer, state)):
        output = base(
            rows.to(model.device),
            attention_mask=mask,
            position_ids=model.positions(mask),
            use_cache=False,
            **model.direction(),
        )
    if (last := len(base.layers) - 1) in found:
        found[last] = output.last_hidden_state
    return found


def _parts(model: Model, state: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """[batch, position, width] in parts over positions whose logits are AT_A_TIME at most, or one position."""
    size = max(AT_A_TIME // (model.vocabulary * len(state)), 1)
    for start in range(0, state.shape[1], size):
        span = slice(start, min(start + size, state.shape[1]))
        yield span, state[:, span]


def read(model: Model, state: Tensor, normed: bool) -> Tensor:
    """[batch, position, width] → [batch, position, vocab]; normed: the final norm is in it already."""
    module: Any = model.module
    return model.family.head(module, state if normed else module.base_model.norm(state))


def layer_count(model: Model) -> int:
    """The lens needs a stack of layers, a final norm and a head, under the names that transformers' decoders use."""
    if not isinstance(model, Model):
        raise ReadingError(
            f"Expected a model from sk.load, whose norm and head are known, got {type(model).__name__}; "
            "sk.wrap a model of transformers; of any other module sk.observe shows the attention."
        )
    base: Any = getattr(model.module, "base_model", None)
    if getattr(base, "layers", None) is None or getattr(base, "norm", None) is None:
        raise ReadingError(
            f"Expected a decoder with layers, a final norm and an output head, and {model.name} "
            f"({type(model.module).__name__}) has other parts; read its hidden states by hand."
        )
    return len(base.layers)


def top_tokens(model: Model, state: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of some positions at a time: which, and the likeliest tokens there with their probabilities, [batch, TOP, position]."""
    for span, part in _parts(model, state):
        best = read(model, part, normed=False).softmax(-1, dtype=torch.float32).topk(TOP)  # [batch, position, top]
        yield span, best.indices.mT, best.values.mT


# ---- vectors for sparse autoencoders and probes

BESIDE = ("prompt", "step", "position", "state", "token")  # int32 [vector] each; state: 0 masked, 1 committed, 2 prompt
MANIFEST = "activations.json"


@dataclass(frozen=True)
class Activations:
    """A folder of shards; iterating reads one at a time: a dict of "layers.3.resid_post" [vector, width] and `BESIDE`."""

    folder: Path

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for shard in self.shards:
            yield load_file(shard)


def activations(
    model: Model,
    prompts: Prompt | Iterable[Prompt],
    layers: Sequence[int] | None = None,
    where: str = "resid_post",
    steps: Steps | None = None,
    *,
    out: str | Path = "activations",
    settings: Decode | None = None,
    at: At = "all",
    batch: int = 8,
    shard: int = 64 << 20,
    dtype: torch.dtype = torch.float16,
    **words: Any,
) -> Activations:
    """Generate from every prompt and write activations to a folder, shard by shard.

    Each vector is stored with the prompt's number, the step, the position, its group (0 masked, 1 committed, 2 prompt)
    and its token. Called again with the same arguments, the function continues where it was stopped.

    Args:
        model: Model from `load` or `wrap`.
        prompts: Prompt, or an iterable of prompts: text, chat messages or token ids.
        layers: Layer indices; None for all.
        where: Place in each layer, as in `hook`.
        steps: Steps that are recorded, as (from, to) without the end: whole numbers are forwards, floats are fractions
            of the generation; None for all.
        out: Folder of the shards.
        settings: Decode settings; the default is the model's `defaults`.
        at: Positions that are recorded: "all", "masked", "committed" or "prompt".
        batch: Number of prompts that are decoded together.
        shard: Size in bytes of the vectors that are held before they are written.
        dtype: Floating-point type of the stored vectors.
        **words: Single decode settings that replace those of `settings`.

    Returns:
        Folder of shards, to iterate over.
    """
    numbers = range(int(model.config.num_hidden_layers)) if layers is None else sorted(layers)
    places = [f"layers.{number}.{where}" for number in numbers]
    find_places(model.module, places)
    validate(Literal["all", "masked", "committed", "prompt"], at, "at", ReadingError)
    validate(StepsField | None, steps, "steps", ReadingError)
    for name, value in (("batch", batch), ("shard", shard)):
        validate(Annotated[int, Field(strict=True, ge=1, le=LARGEST)], value, name, ReadingError)
    folder = Path(out)
    asked = {
        "schema": 1, "model": model.identity(), "places": places, "steps": steps and list(steps), "at": at, "batch": batch,
        "shard": shard, "dtype": str(dtype).removeprefix("torch."), "settings": settings and settings.to_dict(), "words": words,
    }  # fmt: skip
    _claim(folder, json.loads(json.dumps(asked, default=str)))
    alone = isinstance(prompts, str) or is_messages(prompts) or is_ids(prompts)
    source, number = iter([prompts] if alone else prompts), 0
    while texts := list(islice(source, batch)):
        _batch(model, texts, number, places, folder, (settings, words, steps, at, shard, dtype))
        number += len(texts)
    return Activations(folder)


def _claim(folder: Path, asked: dict[str, Any]) -> None:
    path = folder / MANIFEST
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))
        if other := [name for name in asked if there.get(name) != asked[name]]:
            raise ReadingError(
                f"Expected {folder} to hold activations of these very settings, and {', '.join(other)} differ; name another folder."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(asked, indent=1) + "\n")


def _batch(model: Model, texts: list[Any], first: int, places: list[str], folder: Path, how: tuple[Any, ...]) -> None:
    settings, words, steps, at, most, dtype = how
    digest = hashlib.sha256(json.dumps(texts, default=lambda one: one.tolist()).encode()).hexdigest()  # a tensor of ids
    if _finished(folder, first, digest):
        return
    ids, mask, _ = model.batch(texts)
    assert mask is not None
    chosen = resolve_settings(settings or model.defaults, model, ids.shape[1], words)
    padding = (mask == 0).sum(1)
    held: dict[str, list[Tensor]] = defaultdict(list)  # what is not written yet: vectors by place, and all of `BESIDE`
    shards = count()

    def write(last: bool) -> None:
        tensors = {name: torch.cat(held[name] or [torch.zeros(0, dtype=torch.int32)]) for name in {*held, *BESIDE}}
        with replace_file(folder / f"{first:08d}-{next(shards):04d}.safetensors") as partial:
            save_file(tensors, str(partial), {"prompts": digest, "last": str(int(last))})
        held.clear()

    def take(activation: Tensor, context: HookContext) -> None:
        if context.kind != "denoise" or not within(steps, context.step or 0, context.share):
            return
        picked = positions(at, activation, context)
        assert picked is not None and context.groups is not None and context.canvas is not None
        picked, place = picked[: context.rows], f"layers.{context.layer}.{context.place}"
        if place == places[0]:
            # Only now: the last shard of a batch is never an empty one.
            if sum(part.nbytes for name in {*held} - {*BESIDE} for part in held[name]) >= most:
                write(last=False)
            rows, columns = (part.cpu() for part in picked.nonzero().unbind(1))
            at_column = columns + context.columns.start
            values = (
                rows + first, torch.full_like(rows, context.step or 0), at_column - padding[rows],
                context.groups[: context.rows][picked].cpu(), context.canvas.cpu()[rows, at_column],
            )  # fmt: skip
            for name, value in zip(BESIDE, values, strict=True):
                held[name].append(value.to(torch.int32))
        vectors = activation[: context.rows][picked].flatten(1).to("cpu", dtype)
        if not bool(torch.isfinite(vectors).all()):
            raise ReadingError(
                f"Activations at {place} are too large for {dtype}; pass dtype=torch.float32 and another folder."
            )
        held[place].append(vectors)

    with hook(model, places, take):
        decode(model, ids, chosen, attention_mask=mask, history=False)
    write(last=True)


def _finished(folder: Path, first: int, digest: str) -> bool:
    """Whether all shards of the batch that begins with this prompt are there; of other prompts is an error."""
    for path in sorted(folder.glob(f"{first:08d}-*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
        if about.get("prompts") != digest:
            raise ReadingError(f"{path} holds activations of other prompts; name another folder.")
        if about.get("last") == "1":
            return True
    return False


# ---- the channels that are far larger than others


def outlier_channels(trace: Trace, rule: Rule | None) -> pl.DataFrame:
    """See `Trace.outliers`."""
    if trace.channels is None or trace.channel_values is None:
        raise TraceError(
            "Expected a trace with channels, and this one kept none; record it with keep=sk.Keep(channels=8)."
        )
    judged = trace.cumulative() if trace.causal else trace
    parts = [marks for _, _, marks, _ in judged.marks_by_layer(rule or trace.default_rule)]
    marks = torch.cat(parts, 1).any(2)  # [step, layer, position]
    channels, all_values = trace.channels, trace.channel_values
    if trace.causal:  # later steps compute one position each, and leave the prompt's states as they are
        channels, all_values, marks = channels[:1], all_values[:1], marks.any(0, keepdim=True)
    rows = []
    for layer in range(trace.layers):
        at = marks[:, min(layer + 1, trace.layers - 1)]  # [step, position]
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


def _size(values: Tensor) -> float | None:
    return float(values.double().square().mean().sqrt()) if values.numel() else None


# ---- how far logits and received attention are from those of another model, such as the same one before it was quantised

# A key that fewer queries see is not judged: the last ones of a causal map are seen by themselves alone.
FEWEST_ROWS = 4


class Drift(NamedTuple):
    """Over all positions of one forward; attention over all layers and heads."""

    positions: int
    logit_mean: float  # |difference|
    logit_max: float
    kl: float  # KL(plain ‖ other) per position, in nats
    top1: float  # share of positions whose likeliest token is the same
    moved: float  # share of a head's received attention that stands on other keys, mean over heads …
    moved_max: float  # … and in the head where it is most
    sinks: int  # (layer, head, key) of the plain model that receive more than epsilon of what each query has to give
    sinks_kept: float | None  # share of them that still are sinks; None: there were none
    sinks_new: int


@torch.inference_mode()
def drift(plain: Model, other: Model, ids: Tensor, epsilon: float = 0.3) -> Drift:
    """Both models read ids [1, position]; epsilon: as in `HeadShare`."""
    (first, shares), (second, moved_to) = _read(plain, ids), _read(other, ids)
    if shares.shape != moved_to.shape or first.shape != second.shape:
        raise TraceError(f"Expected two models of one shape, got {plain.name} and {other.name}, whose sizes differ.")
    away = (first - second).abs()
    logs, others = first.log_softmax(-1), second.log_softmax(-1)
    normed = [one / one.sum(-1, keepdim=True).clamp(min=1e-12) for one in (shares, moved_to)]
    moved = (normed[0] - normed[1]).abs().sum(-1) / 2  # [layer, head]
    sinks, after = shares > epsilon, moved_to > epsilon
    count = int(sinks.sum())
    return Drift(
        positions=len(first),
        logit_mean=float(away.mean()),
        logit_max=float(away.max()),
        kl=float((logs.exp() * (logs - others)).sum(-1).mean()),
        top1=float((first.argmax(-1) == second.argmax(-1)).float().mean()),
        moved=float(moved.mean()),
        moved_max=float(moved.max()),
        sinks=count,
        sinks_kept=int((sinks & after).sum()) / count if count else None,
        sinks_new=int((after & ~sinks).sum()),
    )


def _read(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [position, vocab], and the mean attention of the queries that see a key, [layer, head, key]."""
    with observe(model) as seen:
        logits = model.logits(ids)[0].float().cpu()
    received = torch.stack([one.sum(2)[0].float().cpu() for one in seen.received])
    width = ids.shape[1]
    rows = torch.arange(width, 0, -1) if model.causal else torch.full((width,), width)
    return logits, (received / rows).masked_fill(rows < min(FEWEST_ROWS, width), 0.0)
