"""A model's health, check by check: does it load, attend as it should, decode, and obey an intervention?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.compare import against_reference
from sinkscope.attention.observe import observe
from sinkscope.decoding import Decode, Decoded, decode, resolve_settings
from sinkscope.errors import CheckpointError, DecodeError, SinkscopeError, TokenizerError, UnknownFamilyError
from sinkscope.interventions import MaskSinks, intervene
from sinkscope.models import Model, load, pad
from sinkscope.models.assemble import looks_ahead
from sinkscope.models.boundary import checked_name, one_sentence
from sinkscope.models.hub import find_folder
from sinkscope.models.load import checked_options
from sinkscope.models.weights import is_finite
from sinkscope.settings import SparseCache
from sinkscope.settings.choices import CACHES
from sinkscope.tracing.drift import drift

SENTENCE = "Tom has 12 apples and gives 5 away."
# Read by a quantised model and by the same one in plain numbers.
TEXT = f"{SENTENCE} How many apples does he have left? He has 12 - 5 = 7 apples.\nThe answer is 7. His sister buys 3 bags of 4."
LENGTH = 8


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    status: Literal["ok", "failed", "skipped"]
    detail: str
    values: Mapping[str, float | int | None] = field(default_factory=dict)  # figures, where a check measures some

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "values" or value}


class _FailedError(Exception):
    """A check that did not hold; its text is the reason."""


class _SkippedError(Exception):
    """A check that has no meaning for this model; its text is the reason."""


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
    """Check a model, loaded by its name or as it is; yields each result as it is known.

    Nothing follows a failed load.
    everything: also what depends on the machine: backends, caches in half precision, several GPUs, memory.
    quantization: as in `load`; how far logits and attention drift from the plain weights is then measured too.

    A name behind which there is no model, or a device that is not there, is a mistake of the caller's, no failed check.
    """
    started = time.perf_counter()
    options: dict[str, Any] = {"dtype": dtype, "device": device, "mask_id": mask_id, "base": base, "revision": revision}
    if isinstance(name, Model):
        model = name
    else:
        checked_options(dtype, device, mask_id)
        with one_sentence(checked_name(name)):
            find_folder(name, revision)
        try:
            model = load(name, quantization=quantization, **options)
        except (CheckpointError, UnknownFamilyError, TokenizerError) as error:
            yield Check("loads", "failed", str(error))
            return
    seconds = time.perf_counter() - started
    size = sum(part.numel() for part in model.module.parameters())
    kind = (
        f"{type(model.module).__name__}, {model.quantization} weights"
        if model.quantization
        else type(model.module).__name__
    )
    where = "in memory" if name is model else f"{seconds:.1f} s"
    yield Check("loads", "ok", f"{model.family}, {kind}, {size:,} parameters, {model.dtype}, {where}")
    for mode in model.recipe.modes or (None,):
        examined = _Examined(model if mode is None else model.in_mode(mode), reloads=name is not model)
        first = mode == model.mode
        checks = {**CHECKS, **MACHINE_CHECKS} if everything and first else CHECKS
        yield from (
            _checked(label if first else f"{label}, {mode}", check, examined)
            for label, check in checks.items()
            if first or label in BY_MODE
        )
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
    found = drift(plain, model, ids)
    kept = "no sinks above 0.3" if found.sinks_kept is None else f"{found.sinks_kept:.0%} of {found.sinks} sinks kept"
    return Check(
        "drift", "ok",
        f"logits {found.logit_mean:.2g} on average, {found.logit_max:.2g} at most, KL {found.kl:.2g} nats, likeliest token the "
        f"same at {found.top1:.0%} of {found.positions} positions; received attention moved {found.moved:.1%} a head, at most "
        f"{found.moved_max:.0%}; {kept}, {found.sinks_new} new", found.to_dict(),
    )  # fmt: skip


class _Examined:
    """The model, and what it generates undisturbed: a generation of a large model takes minutes on a CPU, so there is one."""

    def __init__(self, model: Model, reloads: bool) -> None:
        self.model = model
        self.reloads = reloads  # it can be loaded again, in another dtype or on other devices

    def again(self, **options: Any) -> Model:
        if not self.reloads:
            raise _SkippedError("a model in memory is not loaded again")
        return load(self.model.name, mask_id=self.model.mask_id, **options)

    @cached_property
    def ids(self) -> Tensor:
        return _prompt(self.model)

    @cached_property
    def plain(self) -> tuple[Decoded, float]:
        """And the seconds that it took."""
        started = time.perf_counter()
        return _generate(self.model, self.ids), time.perf_counter() - started


def _checked(name: str, check: Callable[[_Examined], str], examined: _Examined) -> Check:
    try:
        return Check(name, "ok", check(examined))
    except _SkippedError as reason:
        return Check(name, "skipped", str(reason))
    except (_FailedError, SinkscopeError) as reason:
        return Check(name, "failed", str(reason))


def _keys(examined: _Examined) -> str:
    return (
        f"{len(examined.model.module.state_dict())} tensors, none missing, none left over"  # load refuses anything else
    )


def _finite(examined: _Examined) -> str:
    for name, part in examined.model.module.named_parameters():
        if not is_finite(part):
            raise _FailedError(f"NaN or infinite numbers in {name}")
    return "every weight is a finite number"


def _direction(examined: _Examined) -> str:
    model = examined.model
    ahead = looks_ahead(model)
    if ahead == model.causal:
        raise _FailedError(f"attention is {'bidirectional' if ahead else 'causal'}, which {model.family} is not")
    return (
        "bidirectional: the last token moves the first logits"
        if ahead
        else "causal: the last token moves nothing before"
    )


def _mask_token(examined: _Examined) -> str:
    model = examined.model
    if model.causal:
        raise _SkippedError("autoregressive: needs none")
    if model.mask_id is None:
        raise _SkippedError("none: a canvas begins as random tokens")
    if model.tokenizer is None:
        return f"id {model.mask_id}"
    return f"id {model.mask_id} {model.tokenizer.convert_ids_to_tokens(model.mask_id)}"


def _tokenizer(examined: _Examined) -> str:
    model = examined.model
    if model.tokenizer is None:
        raise _SkippedError("no tokenizer files: ids only")
    back = model.tokenizer.decode(model.encode(SENTENCE, chat=False)[0], skip_special_tokens=True)
    if str(back).strip() != SENTENCE:
        raise _FailedError(f"{SENTENCE!r} comes back as {back!r}")
    chat = "with a chat template" if model.chat_template else "no chat template"
    return f"{len(model.tokenizer):,} tokens, text round-trips, {chat}"


def _attention(examined: _Examined) -> str:
    model, ids = examined.model, examined.ids
    plain = model.logits(ids)
    with observe(model) as seen:
        watched = model.logits(ids)
    if not torch.allclose(plain, watched, atol=1e-3 if model.dtype == torch.float32 else 0.5, rtol=1e-3):
        raise _FailedError(f"watching moves the logits by {float((plain - watched).abs().max()):.2g}")
    layers = int(model.config.num_hidden_layers)
    if len(seen.received) != layers:
        raise _FailedError(f"saw {len(seen.received)} attention calls in {layers} layers")
    total = torch.stack([received.sum((2, 3)).cpu() for received in seen.received])  # [layer, batch, head]
    off = float((total - ids.shape[1]).abs().max())
    if off > 0.05 * ids.shape[1]:
        raise _FailedError(f"attention of {ids.shape[1]} queries sums to {float(total.max()):.3f}")
    return f"captured in {layers} layers, each query's attention sums to 1 (backend {set(seen.backends).pop()})"


def _decodes(examined: _Examined) -> str:
    model = examined.model
    done, _ = examined.plain
    if any(bool((answer == model.mask_id).any()) for answer in done.returned if model.mask_id is not None):
        raise _FailedError("masks are left on the canvas")
    return f"{len(done.returned[0])} tokens in {done.forwards} forwards, by {_settings(model, examined.ids).family}"


def _padding(examined: _Examined) -> str:
    model = examined.model
    if model.mask_id is None and not model.causal:
        raise _SkippedError("rows of a batch share the draws of transformers' generate, so none is what it is alone")
    if model.mode == "self_speculation":
        raise _SkippedError("decodes one prompt at a time")
    short, long = examined.ids[:, :3], examined.ids
    ids, mask = pad([short, long], model)
    together = decode(model, ids, _settings(model, ids), attention_mask=mask).returned[0]
    alone = decode(model, short, _settings(model, short)).returned[0]
    if not torch.equal(together, alone):
        if model.dtype != torch.float32:
            raise _SkippedError(f"a padded row differs from the row alone; {model.dtype} rounds too coarsely to tell")
        raise _FailedError("a padded row gives other tokens than the row alone")
    return "a row of a padded batch decodes as it does alone"


def _no_op(examined: _Examined) -> str:
    model = examined.model
    plain, _ = examined.plain
    with intervene(model, MaskSinks(k=0)):
        same = _generate(model, examined.ids)
    if not torch.equal(plain.tokens, same.tokens):
        raise _FailedError("masking no sink changes the output")
    return "masking 0 sinks changes no token"


def _took_effect(examined: _Examined) -> str:
    model = examined.model
    rows: Literal["all", "last"] = "last" if model.causal else "all"
    with intervene(model, MaskSinks(k=1, rows=rows)) as active:
        _generate(model, examined.ids)
    if active.effect.keys == 0:
        raise _FailedError("masking 1 sink masked no key")
    if active.effect.leak > 0:
        raise _FailedError(f"a masked key still received {active.effect.leak:.2g}")
    return f"1 key per head masked, {active.effect.mass_share:.0%} of the attention; masked keys received exactly 0"


def _speed(examined: _Examined) -> str:
    done, seconds = examined.plain
    if seconds < 10:  # warming up counts for little in a longer one
        started = time.perf_counter()
        _generate(examined.model, examined.ids)
        seconds = time.perf_counter() - started
    where = f"{done.tokens.shape[1]} positions on {examined.model.device}"
    return f"{seconds / done.forwards * 1000:.1f} ms per forward over {where}"


CHECKS: dict[str, Callable[[_Examined], str]] = {
    "keys": _keys,
    "finite weights": _finite,
    "direction": _direction,
    "mask token": _mask_token,
    "tokenizer": _tokenizer,
    "attention": _attention,
    "decodes": _decodes,
    "padding": _padding,
    "no-op": _no_op,
    "took effect": _took_effect,
    "speed": _speed,
}


BY_MODE = ("direction", "attention", "decodes", "padding", "no-op", "took effect", "speed")  # of each way of decoding


# ---- the machine ----


def _backends(examined: _Examined) -> str:
    found = against_reference(examined.model.device, examined.model.dtype)
    for one in found:
        if not one.holds:
            off = max(one.out, one.received)
            raise _FailedError(f"{one.backend}, {one.call}, head size {one.dim}: {off:.2g} off the float64 formula")
    worst = max(max(one.out, one.received) for one in found)
    return (
        f"{', '.join(sorted({one.backend for one in found}))}: {len(found)} calls, at most {worst:.2g} off the formula"
    )


def _caches(examined: _Examined) -> str:
    model = examined.model
    if model.dtype == torch.float32:
        model = examined.again(dtype="bfloat16", device=str(model.device))
    settings = _settings(model, examined.ids)
    tried = []
    caches: tuple[Any, ...] = (None, *CACHES, "exact", SparseCache(keep=0.5))
    for cache in caches:
        try:
            chosen = replace(settings, cache=cache)
        except DecodeError:  # not with this family's decoder
            continue
        with intervene(model, MaskSinks(k=1, rows="last" if model.causal else "all")) as active:
            decode(model, examined.ids, chosen, history=False)
        if active.effect.leak > 0:
            raise _FailedError(f"{cache}: a masked key still received {active.effect.leak:.2g}")
        tried.append("none" if cache is None else cache if isinstance(cache, str) else "sparse")
    return f"{model.dtype}: {', '.join(tried)}"


def _several_devices(examined: _Examined) -> str:
    if (count := torch.cuda.device_count()) < 2:
        raise _SkippedError(f"{count} GPUs")
    model = examined.model
    spread = examined.again(dtype=model.dtype, device="balanced")
    devices = {str(part.device) for part in spread.module.parameters()}
    if not torch.equal(_generate(spread, examined.ids).tokens.cpu(), examined.plain[0].tokens.cpu()):
        raise _FailedError(f"other tokens over {', '.join(sorted(devices))} than on {model.device}")
    return f"the same tokens over {', '.join(sorted(devices))}"


def _memory(examined: _Examined) -> str:
    model = examined.model
    if model.device.type != "cuda" or not torch.cuda.is_available():
        raise _SkippedError("no GPU")
    torch.cuda.reset_peak_memory_stats(model.device)
    _generate(model, examined.ids)
    plain = torch.cuda.max_memory_allocated(model.device)
    with intervene(model, MaskSinks(k=1)):
        _generate(model, examined.ids)
    masked = torch.cuda.max_memory_allocated(model.device)
    return f"{plain / 2**30:.2f} GB, masked {(masked - plain) / 2**20:+.0f} MB"


MACHINE_CHECKS: dict[str, Callable[[_Examined], str]] = {
    "backends": _backends,
    "caches": _caches,
    "several GPUs": _several_devices,
    "memory": _memory,
}


def _prompt(model: Model, text: str = SENTENCE) -> Tensor:
    """Some ids [1, position] that any model has; the text where there is a tokenizer."""
    if model.tokenizer is not None:
        return model.encode(text, chat=False)
    special = {model.mask_id, model.pad_id, model.eot_id, *model.eos_ids}
    return torch.tensor([[token for token in range(model.vocabulary) if token not in special][:12]])


def _settings(model: Model, ids: Tensor) -> Decode:
    words: dict[str, Any] = {"length": LENGTH, "block": LENGTH // 2 if model.defaults.block else None}
    if model.defaults.family == "native":
        words["steps"] = LENGTH  # per canvas, which is long
    return replace(resolve_settings(model.defaults, model, ids.shape[1], words), temperature=0.0)


def _generate(model: Model, ids: Tensor) -> Decoded:
    return decode(model, ids, _settings(model, ids), history=False)
