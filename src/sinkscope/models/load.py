"""`load`: a zoo name, a folder, a GGUF file or a Hub id becomes a Model; `wrap`: so does a module in memory."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import AfterValidator

from sinkscope.attention.patch import is_native
from sinkscope.errors import CheckpointError, SinkscopeError, TokenizerError
from sinkscope.files import describe_error
from sinkscope.models import adapters, checkpoint, gguf, weights
from sinkscope.models.checkpoint import as_checkpoint_error
from sinkscope.models.families import UNSUPPORTED
from sinkscope.models.family import (
    FAMILIES,
    Config,
    Family,
    check_requirements,
    config_of_type,
    family_for,
    has_tokenizer,
    register,
)  # fmt: skip
from sinkscope.models.hub import check_name, find_folder, hub_commit, shape_of
from sinkscope.models.model import Model
from sinkscope.models.weights import Device, import_transformers, quiet, set_direction
from sinkscope.validation import DTYPES, FromZero, rename_settings, settings, show_value, validate

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

# Words for a model that is spread over all devices.
SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
# Packings that a config.json may name; for others transformers may fetch kernels from the Hub and run them.
PACKINGS = ("bitsandbytes", "torchao", "gptq", "awq", "compressed-tensors")
SAMPLE = 64  # numbers of each parameter that the fingerprint of a module in memory is made of

__all__ = ["SPREAD", "load", "load_config_only", "register", "wrap"]


def usable_device(device: Any) -> Any:
    """A device that torch has here, with the float64 that decoding needs, or what accelerate takes in its place."""
    for one in device.values() if isinstance(device, dict) else (device,):
        if one is None or str(one) in SPREAD:
            continue
        try:
            torch.zeros(1, dtype=torch.float64, device=torch.device(one)).cpu()  # "meta" is a device that holds nothing
        except (RuntimeError, AssertionError, ImportError, TypeError) as error:
            raise ValueError(
                f"must be a device that torch can use here, got {one!r} ({describe_error(error)})"
            ) from None
    return device


def torch_dtype(dtype: Any) -> torch.dtype | str | None:
    """A dtype of floating-point numbers by its name, or "auto": as stored."""
    wanted = getattr(torch, DTYPES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if dtype not in (None, "auto") and not (isinstance(wanted, torch.dtype) and wanted.is_floating_point):
        raise ValueError(f"must be a dtype such as float32, bfloat16 or float16, got {show_value(dtype)}")
    return dtype if dtype == "auto" else wanted


@settings(CheckpointError)
class LoadOptions:
    """How a checkpoint is loaded: the arguments of `load`."""

    dtype: Annotated[Any, AfterValidator(torch_dtype)] = None
    device: Annotated[Any, AfterValidator(usable_device)] = None
    mask_id: FromZero | None = None
    base: str | None = None
    mode: str | None = None
    revision: str | None = None
    token: str | bool | None = None
    quantization: Literal["int8", "int4"] | None = None

    @property
    def is_on_cpu(self) -> bool:
        if isinstance(self.device, dict):
            return all(str(one) == "cpu" for one in self.device.values())
        device = str(self.device or "cpu")
        return device.startswith("cpu") or (device == "auto" and not torch.cuda.is_available())

    @property
    def resolved_dtype(self) -> torch.dtype | str:
        """What transformers is asked for: as stored on an accelerator and float32 on a CPU, unless given."""
        wanted: torch.dtype | str = self.dtype or (torch.float32 if self.is_on_cpu else "auto")
        return wanted


def load(
    name: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    device: Device = None,
    mask_id: int | None = None,
    base: str | os.PathLike[str] | None = None,
    mode: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    quantization: str | None = None,
    **words: Any,
) -> Model:
    """Load a model by bundled name, folder, GGUF file or Hub id.

    The weights run in a plain transformers class; no remote code is executed. A PEFT adapter is merged into its base
    model.

    Args:
        name: Bundled name (`sinkscope models` lists them), checkpoint folder, GGUF file, Hub id, or folder of a PEFT
            adapter.
        dtype: Floating-point type of the weights, or "auto" for the stored type. The default is the stored type on an
            accelerator and float32 on a CPU.
        device: Device of the whole model ("cuda:0"), "auto" to spread the layers over all devices, or a mapping from
            module name to device. The default is the CPU.
        mask_id: Token id of the mask token of a diffusion checkpoint; overrides the id that the checkpoint names.
        base: Location of an adapter's base model; the default is the location in its adapter_config.json.
        mode: "diffusion", "autoregressive" or "self_speculation", for a checkpoint that decodes in several ways; the
            default is the family's usual mode.
        revision: Branch, tag or commit of a Hub id; `name@revision` means the same.
        token: Access token of the Hub.
        quantization: "int8" or "int4" to quantise the weights with torchao. Load models that are packed in another way
            with transformers and pass them to `wrap`.
        **words: The same options under transformers' names (`torch_dtype`, `device_map`).

    Returns:
        The loaded model in evaluation mode.

    Raises:
        CheckpointError: If the checkpoint is missing, incomplete, packed in an unsupported way, or too large for the
            memory.
        UnknownFamilyError: If no family recognises the checkpoint's config.json.
    """
    given = {
        "dtype": dtype, "device": device, "mask_id": mask_id, "base": None if base is None else check_name(base),
        "mode": mode, "revision": revision, "token": token, "quantization": quantization,
    }  # fmt: skip
    given = {key: one for key, one in given.items() if one is not None}
    options = LoadOptions(**rename_settings({**given, **words}, CheckpointError))
    name = check_name(name)
    with as_checkpoint_error(name):
        model = load_checkpoint(name, options)
        model = check_loaded(model if mode is None else model.in_mode(mode))
        return model if quantization is None else weights.quantize(model, quantization)


def load_checkpoint(name: str, options: LoadOptions) -> Model:
    """The model of a folder, a GGUF file or an adapter, not yet tested."""
    folder = find_folder(name, options.revision, options.token)
    import_transformers()
    dtype = options.resolved_dtype
    if adapters.is_adapter(folder):
        return load_adapter(name, adapters.read_adapter(folder, options.base), options)
    if options.base is not None:
        raise CheckpointError(f"{name} is no PEFT adapter, so that a base would have no effect; leave it out.")
    if folder.suffix == ".gguf":
        packed, spelling = gguf.load_gguf(folder, dtype, options.device)
        return assemble(FAMILIES["llama"], packed, spelling, name, None, fingerprint=gguf.fingerprint(folder))
    family, config, native = describe_checkpoint(checkpoint.read_config(folder), folder)
    stored = config.get("quantization_config")
    check_packing(family, stored, name)
    config = with_mask(family, config, options.mask_id)
    files = checkpoint.weight_files(folder)
    checkpoint.check_against_weights(family, native, files, name)
    checkpoint.check_memory(name, files.values(), dtype, options.is_on_cpu)
    tokenizer = load_tokenizer(folder, family)
    mask_id = family.mask_id(config, tokenizer)
    module = weights.load_weights(family, folder, native, dtype, options.device, files)
    family.adapt(module, config)
    model = assemble(
        family, module, tokenizer, name, mask_id, block=block_of(family, config), revision=hub_commit(folder),
        quantization=weights.packed_by(stored), fingerprint=checkpoint.fingerprint(files),
    )  # fmt: skip
    model = with_checkpoint_defaults(model, config.get(weights.DECODE), f"config.json of {name}")
    weights.keep_native_names(module, model, config)
    return model


def with_mask(family: Family, config: Config, mask_id: int | None) -> Config:
    """The fields of a checkpoint, with the mask token that a caller names in the place of its own."""
    if mask_id is not None and family.causal:
        raise CheckpointError(f"{family.name} is autoregressive and has no mask token; leave mask_id out.")
    return config if mask_id is None else {**config, "mask_token_id": mask_id}


def load_adapter(name: str, adapter: adapters.Adapter, options: LoadOptions) -> Model:
    """The adapter's base with the adapter in it."""
    base = check_name(adapter.base)
    try:
        with as_checkpoint_error(base):  # only the merged model is tested
            model = load_checkpoint(base, replace(options, base=None, revision=None))
    except CheckpointError as error:
        raise CheckpointError(
            f"{name} is an adapter of {base}, which cannot be loaded here (base=… or --base says where it is): {error}"
        ) from None
    if model.quantization is not None:
        raise CheckpointError(
            f"{name} is an adapter of {base}, whose {model.quantization} weights nothing can be merged into; load both "
            "with peft and sk.wrap the model, or pass base=… with plain weights."
        )
    model = apply_adapter_notes(adapters.merge(model, adapter, name), adapter)
    model.revision = hub_commit(adapter.folder)
    return model


def apply_adapter_notes(model: Model, adapter: adapters.Adapter) -> Model:
    """What the adapter's notes say beyond weights: another family, its mask token, decode settings, a chat template."""
    notes, folder = adapter.notes, adapter.folder
    family = FAMILIES[str(notes.get("family", model.family.name))]
    if has_tokenizer(folder):
        model.tokenizer = load_tokenizer(folder, family)
    template = folder / "chat_template.jinja"
    if template.is_file() and model.tokenizer is not None:
        model.tokenizer.chat_template = template.read_text(encoding="utf-8")
    if family is not model.family:
        mask_id = family.mask_id(notes, model.tokenizer)
        model = assemble(family, model.module, model.tokenizer, model.name, mask_id, fingerprint=model.fingerprint)
        set_direction(model.module, model.causal)
    asked = notes.get(weights.DECODE, model.checkpoint_defaults)
    return with_checkpoint_defaults(model, asked, str(folder / adapters.NOTES))


def load_config_only(name: str | os.PathLike[str], dtype: torch.dtype = torch.bfloat16) -> Model:
    """A model without weights, from a zoo name, a folder, a config.json or a Hub id, of which nothing else is fetched."""
    name = check_name(name)
    with as_checkpoint_error(name):
        path = Path(name).expanduser()
        known = None if path.exists() else shape_of(name)
        if known is not None:
            return empty_model(*describe_checkpoint(known, path), None, name, dtype)
        alone = path.name == "config.json" and path.is_file()
        folder = path.parent if alone else find_folder(name, patterns=["config.json"])
        import_transformers()
        if adapters.is_adapter(folder):
            adapter = adapters.read_adapter(folder)
            return apply_adapter_notes(load_config_only(adapter.base, dtype), adapter)  # of another family, perhaps
        if folder.suffix == ".gguf":
            return empty_model(FAMILIES["llama"], {}, gguf.read_gguf_config(folder), None, name, dtype)
        family, config, native = describe_checkpoint(checkpoint.read_config(folder), folder)
        return empty_model(family, config, native, load_tokenizer(folder, family), name, dtype)


def empty_model(
    family: Family, config: Config, native: PretrainedConfig, tokenizer: Any, name: str, dtype: torch.dtype
) -> Model:
    """A model of these sizes without weights."""
    module = checkpoint.empty_module(family, native).to(dtype).eval()
    mask_id = None if family.causal else 0  # it does not matter which token it is
    with suppress(TokenizerError):
        mask_id = family.mask_id(config, tokenizer)
    model = assemble(family, module, tokenizer, name, mask_id, block=block_of(family, config))
    return with_checkpoint_defaults(model, config.get(weights.DECODE), f"config.json of {name}")


def block_of(family: Family, config: Config) -> int | None:
    """Block length of a checkpoint: as it was saved, else in the words of its family."""
    saved: int | None = config.get(weights.BLOCK)
    return family.block(config) if saved is None else saved


def describe_checkpoint(config: Config, folder: Path) -> tuple[Family, Config, PretrainedConfig]:
    """The family that knows these fields of config.json, the fields, and the native configuration."""
    saved = config.get(weights.FAMILY)
    family = family_for(config, folder, UNSUPPORTED) if saved is None else FAMILIES[saved]
    check_requirements(config, family.requires, family.name)
    with quiet():  # it may warn of a rope that is meant so
        native = family.native_config(config) if saved is None else config_of_type(config["model_type"], config)
    if family.causal or not family.causal_module:
        native.is_causal = family.causal
    return family, config, native


def load_tokenizer(folder: Path, family: Family) -> PreTrainedTokenizerBase | None:
    if not has_tokenizer(folder):
        return None
    with (
        as_checkpoint_error(f"The tokenizer in {folder} (without its files, the model is loaded for ids only)"),
        quiet(),
    ):
        return family.load_tokenizer(folder)


def assemble(
    family: Family, module: Any, tokenizer: PreTrainedTokenizerBase | None, name: str, mask_id: int | None, **facts: Any
) -> Model:
    """A Model with the tokens that configuration, tokenizer and family name; facts: further fields of it."""
    config = module.config.get_text_config()
    ends = family.eos_ids(config, tokenizer)
    known = tokenizer.get_vocab() if tokenizer is not None else {}
    eot = known.get(family.end_of_turn) if family.end_of_turn else None
    if family.causal and eot is not None and eot not in ends:
        ends = (*ends, eot)
    return Model(
        module=module, tokenizer=tokenizer, family=family, name=name, mask_id=mask_id, shift=family.shift,
        causal=family.causal, context=int(config.max_position_embeddings), eos_ids=ends,
        pad_id=family.pad_id(config, tokenizer), eot_id=eot, mode=next(iter(family.modes), None), **facts,
    )  # fmt: skip


def with_checkpoint_defaults(model: Model, settings: Any, where: str) -> Model:
    model.family.defaults(model)  # which may refuse a checkpoint by its name
    if not settings:
        return model
    try:
        model.checkpoint_defaults = dict(settings)
        _ = model.defaults
    except (TypeError, ValueError, SinkscopeError) as error:
        raise CheckpointError(f"{where} has sinkscope_decode settings that cannot be used: {error}") from None
    return model


def check_loaded(model: Model) -> Model:
    """Refuse weights with NaN, special tokens without a row, and a direction of attention that is not the family's."""
    special = {"mask": (model.mask_id,), "end": model.eos_ids, "padding": (model.pad_id,)}
    for kind, ids in special.items():
        for token in ids:
            if token is not None and not 0 <= token < model.vocabulary:
                raise CheckpointError(
                    f"Expected the {kind} token of {model.name} among its {model.vocabulary} tokens, got id {token}; "
                    f"correct it in config.json{', or pass mask_id=…' if kind == 'mask' else ''}."
                )
    for key, parameter in model.module.named_parameters():
        if parameter.is_floating_point() and not weights.is_finite(parameter):
            raise CheckpointError(
                f"{model.name} has NaN or infinite numbers in {key}; the checkpoint is damaged: fetch it again."
            )
    later = not model.causal if model.family.sees_later is None else model.family.sees_later
    if looks_ahead(model) != later:
        expected, came = ("bidirectional", "causal") if later else ("causal", "bidirectional")
        raise CheckpointError(
            f"Expected {expected} attention in {model.name}, and it is {came} with this transformers; "
            "version 5.2 or newer is needed."
        )
    if model.causal or model.block is not None:
        try_cache(model)
    return model


@torch.inference_mode()
def try_cache(model: Model) -> None:
    """One forward over a cache, as decoding makes them: its layers are made from fields that no other forward reads."""
    from transformers import DynamicCache

    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    module: Any = model.module.base_model
    module(ids, past_key_values=DynamicCache(config=model.config), use_cache=True, **model.direction())


def looks_ahead(model: Model) -> bool:
    """Whether a change of the last token moves the logits at position 0, as it must in a diffusion model."""
    ids = torch.arange(4).remainder(model.vocabulary).unsqueeze(0)
    if model.mask_id is not None:
        ids[0, 0] = model.mask_id  # WeDLM's known tokens look back only; masks look ahead in every family
    changed = ids.clone()
    changed[0, -1] = model.vocabulary - 1
    before, after = (model.logits(one)[0, 0] for one in (ids, changed))
    if not bool(torch.isfinite(before).all()):
        raise CheckpointError(f"{model.name} gives logits that are no numbers; is this the right config.json?")
    return not torch.equal(before, after)


def check_packing(family: Family, stored: Any, name: str) -> None:
    """Packed weights are for families that transformers loads under its own names; others would read them as plain numbers."""
    method = stored.get("quant_method") if isinstance(stored, dict) else stored
    converted = family.key_mapping or family.native_class is not None
    if stored and (converted or method not in PACKINGS):
        raise CheckpointError(
            f"{name} is quantised by {show_value(method)}, which {family.name} checkpoints cannot be; use the original "
            "checkpoint, with quantization='int8' or 'int4'."
        )


# ---- a module in memory


def wrap(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    family: str | None = None,
    mask_id: int | None = None,
) -> Model:
    """Wrap a transformers model in memory, so that it can be used like a model from `load`.

    The model keeps its dtype, device map and quantisation and is put in evaluation mode. PEFT-wrapped models are
    accepted.

    Args:
        model: Causal-language-model instance of one of transformers' own classes.
        tokenizer: Tokenizer of the model; without one, only token ids can be passed as prompts.
        family: Family name ("llada", "dream", ...) of a diffusion model whose transformers class is causal; its
            attention becomes bidirectional. Without a family the model is autoregressive.
        mask_id: Token id of the mask token, if neither the model's config nor the tokenizer names it.

    Raises:
        CheckpointError: If the module is not one of transformers' own language models, or a diffusion model comes
            without `family`.
    """
    validate(FromZero | None, mask_id, "mask_id", CheckpointError)
    module = native_module(model)
    name = str(getattr(module.config, "_name_or_path", "") or type(module).__name__)
    with as_checkpoint_error(name):
        kind = family_to_wrap(module, family, mask_id)
        config = with_mask(kind, module.config.to_dict(), mask_id)
        mask = kind.mask_id(config, tokenizer)
        module.eval()
        if not kind.causal_module:
            set_direction(module, causal=False)
        kind.adapt(module, config)
        wrapped = assemble(
            kind, module, tokenizer, name, mask, fingerprint=fingerprint_module(module), block=kind.block(config),
            quantization=weights.packed_by(getattr(module.config, "quantization_config", None)),
        )  # fmt: skip
        return check_loaded(wrapped)


def native_module(model: Any) -> Any:
    """The transformers module itself: PEFT puts its layers into it, and wraps it."""
    learned = getattr(model, "peft_config", None)
    if learned is not None and hasattr(model, "get_base_model"):
        if any(getattr(one, "is_prompt_learning", False) for one in learned.values()):
            raise CheckpointError(
                "Expected a PEFT adapter of weights, got one that learns prompts, which stand on no position; merge it first."
            )
        model = model.get_base_model()
    if not isinstance(model, torch.nn.Module) or not is_native(model) or model.get_output_embeddings() is None:  # type: ignore[operator]
        raise CheckpointError(
            f"Expected a language model of one of transformers' own classes, got {type(model).__name__}; "
            "remote code and other modules are not supported: load the checkpoint with sk.load(folder or Hub id)."
        )
    return model


def family_to_wrap(module: Any, name: str | None, mask_id: int | None) -> Family:
    if name is None and (mask_id is not None or getattr(module.config, "is_causal", None) is False):
        diffusion = ", ".join(one.name for one in FAMILIES.values() if not one.causal)
        raise CheckpointError(
            f"Expected family=… for a diffusion model, which decides how it decodes: one of {diffusion}."
        )
    return FAMILIES["llama" if name is None else name]


def fingerprint_module(module: torch.nn.Module) -> str:
    """sha256 of every parameter's name, shape and first numbers: cheap at 16 GB, and it changes with the weights."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        first = weights.unpack(parameter).flatten()[:SAMPLE].float().cpu()
        digest.update(f"{name}{tuple(parameter.shape)}{first.tolist()}".encode())
    return digest.hexdigest()
