"""The tap that fills traces while a decoder runs, within a memory budget that is known before it starts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Outcome, Tap
from sinkscope.attention.context import GROUPS
from sinkscope.attention.transfer import ToHost
from sinkscope.decoding.layout import lay_out
from sinkscope.decoding.run import Step
from sinkscope.errors import BudgetError, TraceError
from sinkscope.fields import LARGEST, TRUTH, Allowed, among, need, whole
from sinkscope.interventions.ablate import is_pairs
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.models.base import Model
from sinkscope.settings.decode import Decode
from sinkscope.tracing import lens
from sinkscope.tracing.channels import ChannelBuffer
from sinkscope.tracing.why import KEPT, measure, rotary_of

Form = Literal["auto", "full", "summary"]
TOP = 16  # keys kept per head and group in summary form


@dataclass(frozen=True)
class Keep:
    """What a recorder keeps."""

    form: Form = "auto"
    dtype: torch.dtype = torch.float16
    budget: int = 2 << 30  # bytes
    value_norms: bool = False
    hidden_norms: bool = False
    maps: tuple[tuple[int, int], ...] = ()  # (layer, head) whose whole attention map is kept
    lens: bool = False  # the tokens that each layer would write at each position, were it the last
    channels: int = 0  # so many of the largest channels behind each layer, with their values

    def __post_init__(self) -> None:
        need("form", self.form, among(("auto", "full", "summary")), TraceError)
        need("dtype", self.dtype, among((torch.float16, torch.float32)), TraceError)
        need("budget", self.budget, Allowed("a whole number of bytes", whole(-LARGEST)), TraceError)
        for name in ("value_norms", "hidden_norms", "lens"):
            need(name, getattr(self, name), TRUTH, TraceError)
        need("channels", self.channels, whole(0), TraceError)
        need("maps", self.maps, Allowed("pairs of layer and head, such as ((3, 0),)", is_pairs), TraceError)


def check_maps(model: Model, keep: Keep) -> None:
    """Heads that the model does not have would give maps of nothing."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    for layer, head in keep.maps:
        if layer >= layers or head >= heads:
            raise TraceError(
                f"Expected maps of layers 0 to {layers - 1} and heads 0 to {heads - 1} of {model.name}, got {layer}.{head}."
            )


def planned_form(model: Model, batch: int, positions: int, settings: Decode, keep: Keep) -> tuple[str, int]:
    """The form that fits the budget, and its bytes; stated before anything runs."""
    steps, layers, heads = settings.most_steps, model.config.num_hidden_layers, model.config.num_attention_heads
    size = keep.dtype.itemsize
    cells = batch * steps * layers * len(GROUPS)
    extra = batch * steps * len(keep.maps) * (positions**2 * size + len(KEPT) * positions * torch.float32.itemsize)
    if keep.value_norms:
        extra += batch * steps * layers * _kv_heads(model) * positions * torch.float32.itemsize
    if keep.hidden_norms:
        extra += batch * steps * layers * positions * torch.float32.itemsize
    if keep.lens:
        extra += batch * steps * layers * positions * lens.BYTES
    extra += batch * steps * layers * keep.channels * (positions + 1) * torch.float32.itemsize
    full = cells * heads * positions * size + extra
    summary = cells * (positions * size + heads * min(TOP, positions) * (size + 4)) + extra
    if keep.form != "summary" and full <= keep.budget:
        return "full", full
    if keep.form != "full" and summary <= keep.budget:
        return "summary", summary
    needed = full if keep.form == "full" else summary
    advice = "form='summary' (layer means and top keys)" if keep.form == "full" else "fewer prompts, steps or maps"
    raise BudgetError(
        f"Recording {steps} steps of {layers} layers × {heads} heads × {positions} keys for {batch} prompts needs "
        f"{needed / 2**20:,.0f} MB, more than the budget of {keep.budget / 2**20:,.0f} MB; use {advice}, or raise budget=…"
    )


class Recorder(Tap):
    """Buffers for a batch of traces; rows are cut out of it when the run is over."""

    def __init__(self, model: Model, ids: Tensor, settings: Decode, keep: Keep, mask: Tensor | None = None) -> None:
        self.model, self.settings, self.keep = model, settings, keep
        check_maps(model, keep)
        first, self.real, self.answers = laid_out(model, ids, settings, mask)
        batch, self.width = first.shape
        self.form, self.bytes = planned_form(model, batch, self.width, settings, keep)
        steps, layers, heads = settings.most_steps, model.config.num_hidden_layers, model.config.num_attention_heads
        groups, dtype = len(GROUPS), keep.dtype
        self.steps = 0
        self.backend = ""
        self.to_host = ToHost()
        self.queries = torch.zeros(batch, steps, groups, dtype=torch.int32)
        self.canvas = torch.zeros(batch, steps + 1, self.width, dtype=torch.int64)
        self.confidence = torch.full((batch, steps, self.width), torch.nan)
        self.committed_at = torch.full((batch, self.width), -1, dtype=torch.int32)
        self.edits: Tensor | None = None
        self.blocks = torch.zeros(steps, 2, dtype=torch.int32)
        self.received = self.layer_mean = self.top_keys = self.top_scores = None
        if self.form == "full":
            self.received = _zeros(batch, steps, layers, heads, groups, self.width, dtype=dtype)
        else:
            kept = min(TOP, self.width)
            self.layer_mean = _zeros(batch, steps, layers, groups, self.width, dtype=dtype)
            self.top_keys = _zeros(batch, steps, layers, heads, groups, kept, dtype=torch.int32)
            self.top_scores = _zeros(batch, steps, layers, heads, groups, kept, dtype=dtype)
        self.value_norms = _zeros(batch, steps, layers, _kv_heads(model), self.width) if keep.value_norms else None
        self.hidden_norms = _zeros(batch, steps, layers, self.width) if keep.hidden_norms else None
        self.maps = _zeros(len(keep.maps), batch, steps, self.width, self.width, dtype=dtype) if keep.maps else None
        self.reasons = _zeros(len(keep.maps), batch, steps, len(KEPT), self.width) if keep.maps else None
        self.rotary = {layer: rotary_of(model, layer, settings, self.width) for layer in {one for one, _ in keep.maps}}
        self.lens = lens.LensBuffer(model, batch, steps, layers, self.width, self.to_host) if keep.lens else None
        self.channels = ChannelBuffer(model, batch, steps, layers, self.width, keep.channels) if keep.channels else None
        self.canvas[:, 0] = first.cpu()

    def watches(self, call: Call) -> bool:
        # Forwards that only fill a cache belong to no step.
        return call.forward is None or call.forward.kind == "denoise"

    def take(self, call: Call, outcome: Outcome) -> None:
        forward = call.forward
        if forward is None:
            raise TraceError("A recorder listens to sinkscope's decoders only; use sk.observe for plain forwards.")
        if not self.watches(call):
            return
        rows, step, layer = forward.rows, forward.step, call.layer
        received = outcome.received[:rows]
        if self.received is not None:
            self._send(self.received[:, step, layer], received)
        else:
            assert self.layer_mean is not None and self.top_keys is not None and self.top_scores is not None
            self._send(self.layer_mean[:, step, layer], received.mean(1))
            top = received.topk(min(self.top_keys.shape[-1], call.keys), dim=-1)
            self._send(self.top_keys[:, step, layer], top.indices)
            self._send(self.top_scores[:, step, layer], top.values)
        if layer == 0 or not self.backend:
            groups = torch.arange(len(GROUPS), device=forward.labels.device)
            if forward.ids is not None:  # the canvas may change between a step and the next forward
                self._send(self.canvas[:, step], forward.ids[:rows])
            self._send(self.queries[:, step], (forward.labels[:rows, :, None] == groups).sum(1))
            self.backend = call.backend
        if self.value_norms is not None:
            norms = call.v[:rows].float().norm(dim=-1)  # [batch, kv head, key]
            self._send(
                self.value_norms[:, step, layer],
                norms.repeat_interleave(self.value_norms.shape[3] // norms.shape[1], dim=1),
            )
        if self.maps is not None:
            self._keep_maps(call, outcome, step, rows)

    def _keep_maps(self, call: Call, outcome: Outcome, step: int, rows: int) -> None:
        assert self.maps is not None and self.reasons is not None
        counts = call.labels[:rows] >= 0
        if self.model.causal:  # of the prompt's queries only the last one writes a token
            counts = counts & (torch.arange(call.queries, device=counts.device) == call.queries - 1)
        share = call.q.shape[1] // call.k.shape[1]
        for slot, (layer, head) in enumerate(self.keep.maps):
            if layer != call.layer:
                continue
            scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
            scores = call.q[:rows, head].float() @ call.k[:rows, head // share].float().mT * scale
            if outcome.mask is not None:
                mask = outcome.mask.expand(call.q.shape[0], call.q.shape[1], -1, -1)[:rows, head]
                scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            if call.causal:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + call.start)
                scores = scores.masked_fill(later, -torch.inf)
            if outcome.drop is not None:
                scores = scores.masked_fill(outcome.drop[:rows, head, None], -torch.inf)
            window = slice(call.start, call.start + call.queries)
            self._send(self.maps[slot, :, step, window], scores.softmax(-1).nan_to_num(0.0))
            self._send(self.reasons[slot, :, step], measure(call, head, counts, self.rotary[layer]))

    def _send(self, part: Tensor, found: Tensor) -> None:
        """Write `found` to the beginning of a part of a buffer; cast on its device, and copied with all else of the step."""
        part = part[..., : found.shape[-1]]
        if found.device.type == "cpu":
            part.copy_(found)  # casts on the way
        else:
            self.to_host.put(found.to(part.dtype), part.copy_)

    def on_step(self, step: Step) -> None:
        """Called by the decoder after each commit."""
        index = step.index
        self._send(self.canvas[:, index + 1], step.canvas)
        self._send(self.confidence[:, index], step.confidence)
        self.to_host.put(step.committed, lambda committed: self.committed_at.masked_fill_(committed, index))
        if step.edited is not None:
            self.to_host.put(step.edited, lambda edited: self._note_edits(edited, index))
        self.to_host.send()
        self.blocks[index] = torch.tensor(step.block)
        self.steps = index + 1

    def _note_edits(self, edited: Tensor, index: int) -> None:
        if bool(edited.any()):
            self.committed_at.masked_fill_(edited, index)
            self.edits = edited.int() if self.edits is None else self.edits + edited.int()

    def finish(self, tokens: Tensor) -> None:
        """The text that the decoder gave back, when the device has sent all else."""
        self.to_host.finish()
        self.canvas[:, self.steps, : tokens.shape[1]] = tokens.cpu()

    def hooks(self, stack: ExitStack) -> None:
        """Put in what is needed for the lens, channels and hidden-state norms; taken out when the stack closes."""
        for buffer in (self.lens, self.channels):
            if buffer is not None:
                buffer.hooks(stack)
        if self.hidden_norms is not None:
            stack.enter_context(hook(self.model, "resid_pre", self._take_hidden))

    def _take_hidden(self, state: Tensor, context: HookContext) -> None:
        if context.kind == "denoise" and self.hidden_norms is not None:
            part = self.hidden_norms[:, context.step, context.layer, context.columns]
            self._send(part, state[: context.rows].float().norm(dim=-1))


def laid_out(model: Model, ids: Tensor, settings: Decode, mask: Tensor | None) -> tuple[Tensor, list[slice], list[int]]:
    """The canvas before the first step [batch, position], and per row its real columns and where its answer begins."""
    if settings.family != "autoregressive" and model.mask_id is not None:
        canvas = lay_out(model, ids, settings, None if mask is None else mask.to(ids.device))
        found = [row.nonzero().flatten().tolist() for row in canvas.real]
        return canvas.tokens, [slice(columns[0], columns[-1] + 1) for columns in found], canvas.answers
    blank = next((token for token in (model.pad_id, model.eos_id) if token is not None), 0)
    first = torch.cat([ids, ids.new_full((len(ids), settings.answer_length), blank)], 1)
    padding = [0] * len(ids) if mask is None else (mask == 0).sum(1).tolist()
    return first, [slice(padded, first.shape[1]) for padded in padding], [ids.shape[1]] * len(ids)


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros whose memory is taken page by page as it is written: a trace of a thousand steps begins as one of ten does."""
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


def _kv_heads(model: Model) -> int:
    """The most that a layer has: DiffusionGemma's are of two kinds."""
    layers = getattr(model.config, "per_layer_config", None) or [model.config]
    return max(int(getattr(one, "num_key_value_heads", None) or one.num_attention_heads) for one in layers)
