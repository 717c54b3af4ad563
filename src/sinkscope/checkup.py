"""A model's health, check by check: does it load, attend as it should, decode, and obey an intervention?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.observe import observe
from sinkscope.attention.selfcheck import against_reference
from sinkscope.decoding import Decode, Decoded, decode, resolve_settings
from sinkscope.decoding.caches.evicting import SparseCache
from sinkscope.decoding.noisy import NoisyDecode
from sinkscope.decoding.settings import CACHES
from sinkscope.errors import CheckpointError, DecodeError, SinkscopeError, TokenizerError, UnknownFamilyError
from sinkscope.interventions import MaskSinks, intervene
from sinkscope.interventions.apply import Effect
from sinkscope.models import Model, load, pad
from sinkscope.models.checkpoint import as_checkpoint_error
from sinkscope.models.hub import check_name, find_folder
from sinkscope.models.load import LoadOptions, looks_ahead
from sinkscope.tracing.states import drift

SENTENCE = "Tom has 12 apples and gives 5 away."
# Read by a quantised model and by the same one in plain numbers.
TEXT = f"{SENTENCE} How many apples does he have left? He has 12 - 5 = 7 apples.\nThe answer is 7. His sister buys 3 bags of 4."
LENGTH = 8


Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    status: Status
    detail: str
    values: Mapping[str, float | int | None] = field(default_factory=dict)  # figures, where a check measures some

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "values" or value}


class Skipped(str):
    """Why a check has no meaning for this model."""


class Failed(str):
    """Why a check does not hold."""


def checkup(
    name: str | Model,
    dtype: str | None = None,
    device: str | None = None,
    mask_id: int | None = None,
    base: str | None = None,
    everything: bool = False,
    revision: str | None = None,
    quantization: Any = None,
) -> Iterator[Check]:
    """Check that a model loads, decodes, and can be observed and masked correctly.

    Args:
        name: Model, or a name that `load` accepts.
        dtype: Floating-point type, as in `load`.
        device: Device, as in `load`.
        mask_id: Token id of the mask token, as in `load`.
        base: Location of an adapter's base model, as in `load`.
        everything: True to run the checks that depend on the machine too: attention backends, caches in half precision,
            several GPUs, memory.
        revision: Branch, tag or commit of a Hub id, as in `load`.
        quantization: "int8" or "int4", as in `load`; the drift of logits and attention from the plain weights is then
            measured.

    Yields:
        Each result as soon as it is known, with a name, a status ("ok", "failed" or "skipped") and a sentence. A failed
            load is the last result.

    Raises:
        SinkscopeError: If the name leads to no model or the device does not exist; neither is reported as a failed
            check.
    """
    started = time.perf_counter()
    options: dict[str, Any] = {"dtype": dtype, "device": device, "mask_id": mask_id, "base": base, "revision": revision}
    if isinstance(name, Model):
        model = name
    else:
        LoadOptions(dtype=dtype, device=device, mask_id=mask_id)
        with as_checkpoint_error(check_name(name)):
            find_folder(name, revision)
        try:
            model = load(name, quantization=quantization, **options)
        except (CheckpointError, UnknownFamilyError, TokenizerError) as error:
            yield Check("loads", "failed", str(error))
            return
    where = "in memory" if name is model else f"{time.perf_counter() - started:.1f} s"
    size = sum(part.numel() for part in model.module.parameters())
    packed = f"{model.quantization} weights, " if model.quantization else ""
    kind = f"{model.family.name}, {type(model.module).__name__}, {packed}{size:,} parameters"
    yield Check("loads", "ok", f"{kind}, {model.dtype}, {where}")
    for mode in model.family.modes or (None,):
        examined = _Examined(model if mode is None else model.in_mode(mode), reloads=name is not model)
        if mode == model.mode:
            yield from map(examined.check, (*CHECKS, *MACHINE_CHECKS) if everything else CHECKS)
        else:
            for one in map(examined.check, BY_MODE):
                yield replace(one, name=f"{one.name}, {mode}")
    if quantization is not None and isinstance(name, str):
        yield _drifted(model, name, options)


def _drifted(model: Model, name: str, options: Mapping[str, Any]) -> Check:
    """The same checkpoint in plain numbers, where both fit into memory; a diffusion model finds every third token masked."""
    try:
        plain = load(name, **options)
    except CheckpointError as error:
        return Check("drift", "skipped", f"the plain weights cannot be loaded beside: {error}")
    ids = _prompt(plain, TEXT).clone()
    if plain.mask_id is not None:
        ids[:, 1::3] = plain.mask_id
    found = drift(plain, model, ids)._asdict()
    shown = ", ".join(f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value in found.items())
    return Check("drift", "ok", shown, found)


# Each is a method of `_Examined`; a SinkscopeError is a check that does not hold.
CHECKS = (
    "keys", "finite weights", "direction", "mask token", "tokenizer", "attention", "decodes", "padding", "no-op",
    "took effect", "speed",
)  # fmt: skip
BY_MODE = ("direction", "attention", "decodes", "padding", "no-op", "took effect", "speed")  # of each way of decoding
MACHINE_CHECKS = ("backends", "caches", "several GPUs", "memory")


class _Examined:
    """The model, and what it generates undisturbed: a generation of a large model takes minutes on a CPU, so there is one."""

    def __init__(self, model: Model, reloads: bool) -> None:
        self.model = model
        self.reloads = reloads  # it can be loaded again, in another dtype or on other devices

    def check(self, name: str) -> Check:
        try:
            found: str = getattr(self, name.lower().replace(" ", "_").replace("-", "_"))()
        except SinkscopeError as reason:
            found = Failed(reason)
        status: Status = "skipped" if isinstance(found, Skipped) else "failed" if isinstance(found, Failed) else "ok"
        return Check(name, status, str(found))

    @cached_property
    def ids(self) -> Tensor:
        return _prompt(self.model)

    @cached_property
    def plain(self) -> tuple[Decoded, float]:
        """And the seconds that it took."""
        started = time.perf_counter()
        return _generate(self.model, self.ids), time.perf_counter() - started

    def keys(self) -> str:
        return f"{len(self.model.module.state_dict())} tensors, none missing, none left over"  # load refuses all else

    def finite_weights(self) -> str:
        return "every weight is a finite number"  # load and wrap refuse all else

    def direction(self) -> str:
        ahead = looks_ahead(self.model)
        kind, moved = ("bidirectional", "the first logits") if ahead else ("causal", "nothing before")
        if ahead == self.model.causal:
            return Failed(f"attention is {kind}, which {self.model.family.name} is not")
        return f"{kind}: the last token moves {moved}"

    def mask_token(self) -> str:
        model = self.model
        if model.causal:
            return Skipped("autoregressive: needs none")
        if model.mask_id is None:
            return Skipped("none: a canvas begins as random tokens")
        text = "" if model.tokenizer is None else f" {model.tokenizer.convert_ids_to_tokens(model.mask_id)}"
        return f"id {model.mask_id}{text}"

    def tokenizer(self) -> str:
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return Skipped("no tokenizer files: ids only")
        back = tokenizer.decode(self.model.encode(SENTENCE, chat=False)[0], skip_special_tokens=True)
        if str(back).strip() != SENTENCE:
            return Failed(f"{SENTENCE!r} comes back as {back!r}")
        chat = "with a chat template" if self.model.chat_template else "no chat template"
        return f"{len(tokenizer):,} tokens, text round-trips, {chat}"

    def attention(self) -> str:
        model, ids = self.model, self.ids
        plain = model.logits(ids)
        with observe(model) as seen:
            watched = model.logits(ids)
        if not torch.allclose(plain, watched, atol=1e-3 if model.dtype == torch.float32 else 0.5, rtol=1e-3):
            return Failed(f"watching moves the logits by {float((plain - watched).abs().max()):.2g}")
        layers = int(model.config.num_hidden_layers)
        if len(seen.received) != layers:
            return Failed(f"saw {len(seen.received)} attention calls in {layers} layers")
        total = torch.stack([received.sum((2, 3)).cpu() for received in seen.received])  # [layer, batch, head]
        own = [one.sum(2).cpu() for one in seen.built_in if one is not None]  # of a key that is no token's
        total = total + torch.stack(own) if own else total
        if float((total - ids.shape[1]).abs().max()) > 0.05 * ids.shape[1]:
            return Failed(f"attention of {ids.shape[1]} queries sums to {float(total.max()):.3f}")
        return f"captured in {layers} layers, each query's attention sums to 1 (backend {set(seen.backends).pop()})"

    def decodes(self) -> str:
        model, done = self.model, self.plain[0]
        if any(bool((answer == model.mask_id).any()) for answer in done.returned if model.mask_id is not None):
            return Failed("masks are left on the canvas")
        return f"{len(done.returned[0])} tokens in {done.forwards} forwards, by {_settings(model, self.ids).sampler}"

    def padding(self) -> str:
        model = self.model
        if model.mask_id is None and not model.causal:
            return Skipped("rows of a batch share the draws of transformers' generate")
        if model.mode == "self_speculation":
            return Skipped("decodes one prompt at a time")
        short = self.ids[:, :3]
        ids, mask = pad([short, self.ids], model)
        both, one = (_settings(model, some) for some in (ids, short))
        if isinstance(both, NoisyDecode):
            if not both.pads:
                return Skipped("a batch has prompts of one length")
            both, one = (replace(each, noise="per_row") for each in (both, one))
        together = decode(model, ids, both, attention_mask=mask).returned[0]
        alone = decode(model, short, one).returned[0]
        if not torch.equal(together, alone):
            if model.dtype != torch.float32:
                return Skipped(f"a padded row differs, and {model.dtype} rounds too coarsely to tell")
            return Failed("a padded row gives other tokens than the row alone")
        return "a row of a padded batch decodes as it does alone"

    def no_op(self) -> str:
        with intervene(self.model, MaskSinks(k=0)):
            same = _generate(self.model, self.ids)
        if not torch.equal(self.plain[0].tokens, same.tokens):
            return Failed("masking no sink changes the output")
        return "masking 0 sinks changes no token"

    def took_effect(self) -> str:
        effect = _masked(self.model, self.ids, _settings(self.model, self.ids))
        if effect.keys == 0:
            return Failed("masking 1 sink masked no key")
        return f"1 key per head masked, {effect.mass_share:.0%} of the attention; masked keys received exactly 0"

    def speed(self) -> str:
        done, seconds = self.plain
        if seconds < 10:  # warming up counts for little in a longer one
            started = time.perf_counter()
            _generate(self.model, self.ids)
            seconds = time.perf_counter() - started
        where = f"{done.tokens.shape[1]} positions on {self.model.device}"
        return f"{seconds / done.forwards * 1000:.1f} ms per forward over {where}"

    # ---- the machine

    def backends(self) -> str:
        found = against_reference(self.model.device, self.model.dtype)
        worst = max(found, key=lambda one: (not one["holds"], max(one["out"], one["received"])))
        off = f"{max(worst['out'], worst['received']):.2g} off the formula"
        if not worst["holds"]:
            return Failed(f"{worst['backend']}, {worst['call']}, head size {worst['dim']}: {off}")
        return f"{', '.join(sorted({one['backend'] for one in found}))}: {len(found)} calls, at most {off}"

    def caches(self) -> str:
        model, tried = self.model, list[str]()
        if model.dtype == torch.float32:
            if not self.reloads:
                return Skipped("a model in memory is not loaded again")
            model = load(model.name, mask_id=model.mask_id, dtype="bfloat16", device=str(model.device))
        caches: tuple[Any, ...] = (None, *CACHES, "exact", SparseCache(keep=0.5))
        for cache in caches:
            try:
                chosen = replace(_settings(model, self.ids), cache=cache)
            except DecodeError:  # not with this family's decoder
                continue
            _masked(model, self.ids, chosen)
            tried.append("none" if cache is None else cache if isinstance(cache, str) else "sparse")
        return f"{model.dtype}: {', '.join(tried)}"

    def several_gpus(self) -> str:
        if (count := torch.cuda.device_count()) < 2:
            return Skipped(f"{count} GPUs")
        if not self.reloads:
            return Skipped("a model in memory is not loaded again")
        spread = load(self.model.name, mask_id=self.model.mask_id, dtype=self.model.dtype, device="balanced")
        devices = ", ".join(sorted({str(part.device) for part in spread.module.parameters()}))
        if not torch.equal(_generate(spread, self.ids).tokens.cpu(), self.plain[0].tokens.cpu()):
            return Failed(f"other tokens over {devices} than on {self.model.device}")
        return f"the same tokens over {devices}"

    def memory(self) -> str:
        plain = peak(self.model.device, lambda: _generate(self.model, self.ids))
        with intervene(self.model, MaskSinks(k=1)):
            masked = peak(self.model.device, lambda: _generate(self.model, self.ids))
        if plain is None or masked is None:
            return Skipped("no GPU")
        return f"{plain / 2**30:.2f} GB, masked {(masked - plain) / 2**20:+.0f} MB"


def peak(device: torch.device, run: Callable[[], object]) -> int | None:
    """The most bytes that a GPU's tensors took while something ran; None elsewhere."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return int(torch.cuda.max_memory_allocated(device))


def _prompt(model: Model, text: str = SENTENCE) -> Tensor:
    """Some ids [1, position] that any model has; the text where there is a tokenizer."""
    if model.tokenizer is not None:
        return model.encode(text, chat=False)
    special = {model.mask_id, model.pad_id, model.eot_id, *model.eos_ids}
    return torch.tensor([[token for token in range(model.vocabulary) if token not in special][:12]])


def _settings(model: Model, ids: Tensor) -> Decode:
    words: dict[str, Any] = {"length": LENGTH, "block": LENGTH // 2 if model.defaults.block else None}
    if "block" in model.defaults.unused:
        words["steps"] = LENGTH  # per canvas, which is long
    return replace(resolve_settings(model.defaults, model, ids.shape[1], words), temperature=0.0)


def _generate(model: Model, ids: Tensor) -> Decoded:
    return decode(model, ids, _settings(model, ids), history=False)


def _masked(model: Model, ids: Tensor, settings: Decode) -> Effect:
    """What masking one sink per head did; masked keys that still receive attention are a failure."""
    with intervene(model, MaskSinks(k=1, rows="last" if model.causal else "all")) as active:
        decode(model, ids, settings, history=False)
    if active.effect.leak > 0:
        raise SinkscopeError(f"cache {settings.cache}: a masked key still received {active.effect.leak:.2g}")
    return active.effect
