"""The tap that fills traces while a decoder runs, within a memory budget that is known before it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.forward import GROUPS
from sinkscope.attention.observe import HostCopies
from sinkscope.attention.patch import Shape
from sinkscope.attention.reference import attended_scores, softmax
from sinkscope.decoding.canvas import Step, build_canvas
from sinkscope.decoding.settings import Decode
from sinkscope.errors import BudgetError, TraceError
from sinkscope.interventions.activations import Heads, largest
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.models.model import Model
from sinkscope.tracing import states
from sinkscope.tracing.trace import SHAPES, WHOLE
from sinkscope.tracing.why import measure, rotary_of
from sinkscope.validation import FromZero, Truth, Whole, settings

logger = logging.getLogger(__name__)
MB = 1 << 20
Form = Literal["auto", "full", "summary"]
TOP = 16  # keys kept per head and group in summary form
FORMS = {"full": ("received",), "summary": ("layer_mean", "top_keys", "top_scores")}
EXTRAS = {  # tensor of a trace → what asks for it in `Keep`
    "value_norms": "value_norms", "hidden_norms": "hidden_norms", "maps": "maps", "mean_scores": "maps", "reasons": "maps",
    "lens_tokens": "lens", "lens_probability": "lens", "channels": "channels", "channel_values": "channels",
}  # fmt: skip


def _half_or_single(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float16, torch.float32):
        raise ValueError("must be torch.float16 or torch.float32")
    return dtype


@settings(TraceError)
class Keep:
    """Settings of a trace: what is recorded, and within which memory.

    Args:
        form: "full" for the received attention of every key, "summary" for the mean of each layer and the most-attended
            keys of each head; "auto" is full if it fits the budget. A full trace needs 4 bytes per step, layer, head,
            group of queries (three) and key.
        dtype: Floating-point type of received attention and maps. float16 needs half the memory and keeps three digits,
            so keys close to a rule's threshold may change sides.
        budget: Largest size of the recorded tensors in bytes, all prompts together.
        value_norms: Whether norms of values are recorded.
        hidden_norms: Whether norms of hidden states are recorded.
        maps: Pairs of layer and head, or "all", whose whole attention map is recorded at every step, with 4 bytes per
            pair of positions.
        lens: Whether the likeliest tokens of each layer (logit lens) are recorded.
        channels: Number of largest channels recorded after each layer, with their values.
    """

    form: Form = "auto"
    dtype: Annotated[torch.dtype, AfterValidator(_half_or_single)] = torch.float32
    budget: Whole = 2 << 30
    value_norms: Truth = False
    hidden_norms: Truth = False
    maps: Heads | Literal["all"] = ()
    lens: Truth = False
    channels: FromZero = 0

    def of_model(self, model: Model) -> Keep:
        """Return a copy in which "all" maps are pairs of layer and head.

        Args:
            model: Model to be traced.
        """
        if self.maps != "all":
            return self
        layers, heads = int(model.config.num_hidden_layers), int(model.config.num_attention_heads)
        return replace(self, maps=tuple((layer, head) for layer in range(layers) for head in range(heads)))

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """Pairs of layer and head whose map is recorded."""
        return () if self.maps == "all" else self.maps


def buffer_shapes(model: Model, batch: int, positions: int, settings: Decode, keep: Keep) -> dict[str, tuple[int, ...]]:
    """Tensor of a trace → its buffer's shape, [batch, …] as `SHAPES` has it."""
    steps, config = settings.most_steps, model.config
    sizes = {
        "step": steps, "step+1": steps + 1, "layer": config.num_hidden_layers, "head": config.num_attention_heads,
        "kv_head": _kv_heads(model), "key": positions, "top": min(TOP, positions), "map": len(keep.heads), "choice": states.TOP,
        "channel": keep.channels,
    }  # fmt: skip
    return {
        name: (batch, *(letter if isinstance(letter, int) else int(sizes[letter]) for letter in shape))
        for name, shape in SHAPES.items()
    }


def dtype_of(name: str, keep: Keep) -> torch.dtype:
    if name in WHOLE:
        return WHOLE[name]
    if name in ("received", "layer_mean", "top_scores", "maps"):
        return keep.dtype
    return torch.float16 if name == "lens_probability" else torch.float32


def planned_form(model: Model, batch: int, positions: int, settings: Decode, keep: Keep) -> tuple[str, int]:
    """The form that fits the budget, and its bytes; stated before anything runs."""
    keep = keep.of_model(model)
    shapes = buffer_shapes(model, batch, positions, settings, keep)

    def needs(names: Iterable[str]) -> int:
        return sum(prod(shapes[name]) * dtype_of(name, keep).itemsize for name in names)

    extra = needs(name for name, asked in EXTRAS.items() if getattr(keep, asked))
    extra += needs(["built_in"]) if model.family.built_in_key else 0
    full, summary = needs(FORMS["full"]) + extra, needs(FORMS["summary"]) + extra
    if keep.form != "summary" and full <= keep.budget:
        return "full", full
    if keep.form != "full" and summary <= keep.budget:
        return "summary", summary
    needed = full if keep.form == "full" else summary
    advice = "form='summary' (layer means and top keys)" if keep.form == "full" else "fewer prompts, steps or maps"
    whole = needs(("maps", "mean_scores", "reasons")) if keep.maps else 0
    maps = f" ({whole / MB:,.0f} MB of it for {len(keep.heads)} maps)" if whole else ""
    _, steps, layers, heads, *_ = shapes["received"]
    raise BudgetError(
        f"Recording {steps} steps of {layers} layers × {heads} heads × {positions} keys for {batch} "
        f"prompts needs {needed / MB:,.0f} MB{maps}, more than the budget of {keep.budget / MB:,.0f} MB; use {advice}, or "
        "raise budget=…"
    )


class Recorder(Tap):
    """Buffers for a batch of traces; rows are cut out of it when the run is over."""

    def __init__(self, model: Model, ids: Tensor, settings: Decode, keep: Keep, mask: Tensor | None = None) -> None:
        keep = keep.of_model(model)
        self.model, self.settings, self.keep = model, settings, keep
        # What the model does not have: its maps or channels would be of nothing.
        if keep.channels and keep.channels > (width := int(model.config.hidden_size)):
            raise TraceError(f"Expected channels of at most {width}, the width of {model.name}, got {keep.channels}.")
        if keep.lens:
            states.layer_count(model)
        Shape.of(model.module).check([layer for layer, _ in keep.heads], [head for _, head in keep.heads], TraceError)
        first, self.real, self.answers = laid_out(model, ids, settings, mask)
        batch, width = first.shape
        self.form, self.bytes = planned_form(model, batch, width, settings, keep)
        logger.info(
            "recording takes %.1f MB in %s form, with the maps of %d heads", self.bytes / MB, self.form, len(keep.heads)
        )
        shapes = buffer_shapes(model, batch, width, settings, keep)
        self.steps = 0
        self.backend = ""
        self.to_host = HostCopies()
        self.blocks = torch.zeros(shapes["blocks"][1:], dtype=torch.int32)
        # Name in a trace → [batch, …], as `SHAPES` has it.
        names = ["queries", "seen", "canvas", "confidence", "committed_at", *FORMS[self.form]]
        names += ["built_in"] if model.family.built_in_key else []
        names += [name for name, asked in EXTRAS.items() if getattr(keep, asked)]
        self.kept = {name: _zeros(*shapes[name], dtype=dtype_of(name, keep)) for name in names}
        self.kept["confidence"].fill_(torch.nan)
        self.kept["committed_at"].fill_(-1)
        self.kept["canvas"][:, 0] = first.cpu()
        self.rotary = {layer: rotary_of(model, layer, settings, width) for layer in {one for one, _ in keep.heads}}
        self.slots: dict[int, list[tuple[int, int]]] = {}  # layer → number of a map, and its head
        for slot, (of_layer, head) in enumerate(keep.heads):
            self.slots.setdefault(of_layer, []).append((slot, head))
        # How many steps each score is a sum of.
        self.scores_seen = _zeros(*shapes["mean_scores"], dtype=torch.int32) if keep.maps else torch.zeros(0)

    def needs_sums_fused(self, call: Call) -> bool:
        # Forwards that only fill a cache belong to no step.
        return call.forward is None or call.forward.kind == "denoise"

    def take(self, call: Call, result: CallResult) -> None:
        forward = call.forward
        if forward is None:
            raise TraceError("A recorder listens to sinkscope's decoders only; use sk.observe for plain forwards.")
        if not self.needs_sums_fused(call):
            return
        if forward.columns is not None and self.keep.maps:
            raise TraceError("A cache that computes single columns has no whole maps to keep; trace without keep.maps.")
        rows, step, layer = forward.rows, forward.step, call.layer
        received = result.received[:rows]
        if self.form == "full":
            self._send("received", (step, layer), received)
        else:
            self._send("layer_mean", (step, layer), received.mean(1))
            top = received.topk(min(TOP, call.keys), dim=-1)
            self._send("top_keys", (step, layer), top.indices)
            self._send("top_scores", (step, layer), top.values)
        if layer == 0 or not self.backend:
            groups = torch.arange(len(GROUPS), device=forward.labels.device)
            if forward.ids is not None:  # the canvas may change between a step and the next forward
                self._send("canvas", (step,), forward.ids[:rows])
            self._send("queries", (step,), (forward.labels[:rows, :, None] == groups).sum(1))
            self._send("seen", (step,), forward.seen(call.keys, forward.labels.device)[:rows])
            self.backend = call.backend
        if result.built_in is not None:
            self._send("built_in", (step, layer), result.built_in[:rows])
        if self.keep.value_norms:
            norms = call.v[:rows].float().norm(dim=-1)  # [batch, kv head, key]
            share = self.kept["value_norms"].shape[3] // norms.shape[1]
            self._send("value_norms", (step, layer), norms.repeat_interleave(share, dim=1))
        for slot, head in self.slots.get(layer, ()):
            window = slice(call.start, call.start + call.queries)
            scores, extra = _head_scores(call, result, head, rows)
            self._send("maps", (slot, step, window), softmax(scores)[..., extra:])
            self._add_scores(slot, window, scores[..., extra:])
            self._send("reasons", (slot, step), measure(call, head, self._counts(call, rows), self.rotary[layer]))

    def _add_scores(self, slot: int, window: slice, scores: Tensor) -> None:
        """Scores [batch, query, key] into their sums; those of keys that a query may not see count nowhere."""

        def add(arrived: Tensor) -> None:
            keys, seen = arrived.shape[-1], arrived > -torch.inf
            self.kept["mean_scores"][:, slot, window, :keys] += arrived.masked_fill(~seen, 0.0)
            self.scores_seen[:, slot, window, :keys] += seen.int()

        self.to_host.put(scores, add)

    def _counts(self, call: Call, rows: int) -> Tensor:
        """bool [batch, query]: over which a reason is a mean; of a causal prompt only the last query writes a token."""
        counts = call.labels[:rows] >= 0
        if self.model.causal:
            counts = counts & (torch.arange(call.queries, device=counts.device) == call.queries - 1)
        return counts

    def _send(self, name: str, at: tuple[int | slice, ...], found: Tensor) -> None:
        """Write `found` to the beginning of a part of a buffer; cast on its device, and copied with all else of the step."""
        part = self.kept[name][:, *at][..., : found.shape[-1]]
        if found.device.type == "cpu":
            part.copy_(found)  # casts on the way
        else:
            self.to_host.put(found.to(part.dtype), part.copy_)

    def on_step(self, step: Step) -> None:
        """Called by the decoder after each commit."""
        index = step.index
        self._send("canvas", (index + 1,), step.canvas)
        self._send("confidence", (index,), step.confidence)
        self.to_host.put(step.committed, lambda committed: self.kept["committed_at"].masked_fill_(committed, index))
        if step.edited is not None:
            self.to_host.put(step.edited, lambda edited: self._note_edits(edited, index))
        self.to_host.send()
        self.blocks[index] = torch.tensor(step.block)
        self.steps = index + 1

    def _note_edits(self, edited: Tensor, index: int) -> None:
        if bool(edited.any()):
            self.kept["committed_at"].masked_fill_(edited, index)
            self.kept["edits"] = self.kept.get("edits", 0) + edited.int()

    def finish(self, tokens: Tensor) -> None:
        """The text that the decoder gave back, when the device has sent all else."""
        self.to_host.finish()
        self.kept["canvas"][:, self.steps, : tokens.shape[1]] = tokens.cpu()

    def row(self, row: int, steps: int, real: slice) -> dict[str, Tensor]:
        """One row's part of every buffer, without its padding and without steps after its end."""
        parts = {"step": slice(steps), "step+1": slice(steps + 1), "key": real}
        found = {
            name: buffer[row][tuple(parts.get(str(letter), slice(None)) for letter in SHAPES[name])].clone()
            for name, buffer in self.kept.items()
        }
        if "mean_scores" in found:
            counted = self.scores_seen[row][:, real, real]
            found["mean_scores"] = (found["mean_scores"] / counted).masked_fill(counted == 0, torch.nan)
        if "top_keys" in found:
            found["top_keys"] = (found["top_keys"] - real.start).clamp(min=0)
        if self.keep.lens and self.model.shift:
            # Nothing speaks for the first position; in a padded batch the padding before it would.
            found["lens_tokens"][..., 0] = found["lens_probability"][..., 0] = 0
        if torch.equal(found["seen"], found["queries"][..., None].expand_as(found["seen"])):
            del found["seen"]  # every query sees every key
        return found | {"blocks": (self.blocks[:steps] - real.start).clamp(min=0)}

    def hooks(self, stack: ExitStack) -> None:
        """Put in what is needed for the lens, channels and hidden-state norms; taken out when the stack closes."""
        if self.keep.lens or self.keep.channels:
            stack.enter_context(hook(self.model, "resid_post", self._take_output))
        if self.keep.hidden_norms:
            stack.enter_context(hook(self.model, "resid_pre", self._take_hidden))

    def _take_hidden(self, state: Tensor, context: HookContext) -> None:
        if context.kind == "denoise" and context.step is not None:
            norms = state[: context.rows].float().norm(dim=-1)
            self._send("hidden_norms", (context.step, context.layer, context.columns), norms)

    def _take_output(self, state: Tensor, context: HookContext) -> None:
        """The lens is kept at the positions that it is *for*: in a shifted family a row speaks for the one after its own.

        Where a step computed no row for a position, its probabilities and channels are 0.
        """
        if context.kind != "denoise" or context.step is None or context.groups is None:
            return
        at, state = (context.step, context.layer, slice(None)), state[: context.rows]
        if self.keep.lens:
            first, width = context.columns.start + int(self.model.shift), self.kept["canvas"].shape[-1]
            for span, *best in states.top_tokens(self.model, state):
                place = slice(first + span.start, min(first + span.stop, width))
                for name, found in zip(("lens_tokens", "lens_probability"), best, strict=True):
                    self._send(name, (*at, place), found[..., : place.stop - place.start])
        if self.keep.channels:
            channels = largest(state, context.groups[: context.rows] >= 0, self.keep.channels)  # [batch, n]
            self._send("channels", at, channels)
            values = state.gather(-1, channels[:, None].expand(-1, state.shape[1], -1)).mT
            self._send("channel_values", (*at, context.columns), values)


def _head_scores(call: Call, result: CallResult, head: int, rows: int) -> tuple[Tensor, int]:
    """What goes into the softmax of one head, [batch, query, key], and how many keys of the module's own come first."""
    share, mask = call.q.shape[1] // call.k.shape[1], result.mask
    if mask is not None:
        mask = mask.expand(call.q.shape[0], call.q.shape[1], -1, -1)[:rows, head, None]
    q, k = call.q[:rows, head, None].float(), call.k[:rows, head // share, None].float()
    drop = None if result.drop is None else result.drop[:rows, head, None]
    extra = 0 if call.built_in is None or result.built_in is None else 1
    if call.built_in is not None and extra:
        k = torch.cat([call.built_in.key[:, head, None].to(k).expand(rows, -1, -1, -1), k], 2)
        mask = None if mask is None else pad(mask, (1, 0), value=mask.dtype == torch.bool)
        drop = None if drop is None else pad(drop, (1, 0))
    return attended_scores(replace(call, q=q, k=k, v=k, mask=mask).inputs(drop))[:, 0], extra


def laid_out(model: Model, ids: Tensor, settings: Decode, mask: Tensor | None) -> tuple[Tensor, list[slice], list[int]]:
    """The canvas before the first step [batch, position], and per row its real columns and where its answer begins."""
    if not settings.left_to_right and model.mask_id is not None:
        canvas = build_canvas(model, ids, settings, None if mask is None else mask.to(ids.device))
        found = [row.nonzero().flatten().tolist() for row in canvas.real]
        return canvas.tokens, [slice(columns[0], columns[-1] + 1) for columns in found], canvas.answers
    first = torch.cat([ids, ids.new_full((len(ids), settings.answer_length), model.fill_id)], 1)
    padding = [0] * len(ids) if mask is None else (mask == 0).sum(1).tolist()
    return first, [slice(padded, first.shape[1]) for padded in padding], [ids.shape[1]] * len(ids)


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros whose memory is taken page by page as it is written: a trace of a thousand steps begins as one of ten does."""
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


def _kv_heads(model: Model) -> int:
    """The most that a layer has: DiffusionGemma's are of two kinds."""
    layers = getattr(model.config, "per_layer_config", None) or [model.config]
    return max(int(getattr(one, "num_key_value_heads", None) or one.num_attention_heads) for one in layers)
