"""`load`: a zoo name, a folder, a GGUF file or a Hub id becomes a Model that has passed its self-tests."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.aliases import DTYPES, LOAD, translated
from sinkscope.errors import CheckpointError, DecodeError, UnknownFamilyError
from sinkscope.models import adapters, checkpoint, zoo
from sinkscope.models.base import Model
from sinkscope.models.boundary import checked_name, one_sentence, refuse_odd_files, shown
from sinkscope.models.family import FAMILIES, Family, families, has_tokenizer, register
from sinkscope.models.gguf_file import load_gguf
from sinkscope.models.gguf_header import read_gguf
from sinkscope.models.hub import snapshot
from sinkscope.models.imports import import_transformers
from sinkscope.models.llama import Llama
from sinkscope.models.memory import is_finite, refuse_unless_fits
from sinkscope.models.quantize import checked_scheme, digest, packed_by, quantize
from sinkscope.models.sizes import check_against_weights
from sinkscope.models.weights import Device, first_lines, load_weights, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

for _found in iter_modules([str(Path(__file__).parent)]):  # families register themselves
    import_module(f"sinkscope.models.{_found.name}")

# Words for a model that is spread over all devices.
SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
# Packings that a config.json may name; for others transformers may fetch kernels from the Hub and run them.
PACKINGS = ("bitsandbytes", "torchao", "gptq", "awq", "compressed-tensors")

__all__ = ["FAMILIES", "SPREAD", "families", "family_of", "find_folder", "load", "looks_ahead", "register"]


@dataclass(frozen=True)
class _Options:
    """How a checkpoint is loaded."""

    dtype: torch.dtype | str
    device: Device
    mask_id: int | None = None
    base: str | None = None
    revision: str | None = None
    token: str | bool | None = None
    packing: Any = None  # a quantization_config of transformers


def load(
    name: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    device: Device = None,
    mask_id: int | None = None,
    base: str | os.PathLike[str] | None = None,
    mode: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    quantization: Any = None,
    **words: Any,
) -> Model:
    """Load a model by zoo name, folder, GGUF file or Hub id; a PEFT adapter's folder is merged into its base.

    dtype: as stored on an accelerator and float32 on a CPU, unless given ("auto" is as stored). device: "auto" spreads over all
    devices, a mapping places modules. mask_id: the mask token of a diffusion checkpoint that does not name it. It
    overrides one that is named. base: where the base of an adapter is, if not where adapter_config.json says.
    mode: "diffusion", "autoregressive" or "self_speculation", for a checkpoint that decodes in several ways.
    revision: branch, tag or commit of a Hub id, which may also be written name@revision. token: of the Hub.
    quantization: "int8" or "int4" weights by torchao, or a quantization_config of transformers (BitsAndBytesConfig(…)).
    words: transformers' names of these (torch_dtype, device_map, quantization_config).
    """
    own = {"dtype": dtype, "device": device, "quantization": quantization}
    given = translated(
        {**{key: value for key, value in own.items() if value is not None}, **words}, LOAD, CheckpointError
    )
    if strange := sorted(set(given) - set(own)):
        raise CheckpointError(
            f"Expected dtype, device, mask_id, base, mode, revision, token or quantization, got {', '.join(strange)}."
        )
    dtype, device, scheme = (given.get(key) for key in own)
    asked = checked_name(name)
    if revision is not None and (type(revision) is not str or not revision):
        raise CheckpointError(f"Expected a branch, tag or commit as revision, got {shown(repr(revision))}.")
    options = _Options(
        checked_options(dtype, device, mask_id), device, mask_id, None if base is None else checked_name(base),
        revision, token, None if isinstance(scheme, str) else scheme,
    )  # fmt: skip
    with one_sentence(asked):
        checked_scheme(scheme)
        model = _loaded(asked, options)
        model = _self_tested(model if mode is None else model.in_mode(mode))
        return quantize(model, scheme) if isinstance(scheme, str) else model


def checked_options(dtype: torch.dtype | str | None, device: Device, mask_id: int | None) -> torch.dtype | str:
    """The dtype to load with; options that no model could be loaded with are refused."""
    for one in device.values() if isinstance(device, dict) else (device,):
        _check_device(one)
    if mask_id is not None and (type(mask_id) is not int or mask_id < 0):
        raise CheckpointError(f"Expected mask_id to be a token id of at least 0, got {shown(repr(mask_id))}.")
    return _dtype(dtype, device)


def _loaded(asked: str, options: _Options) -> Model:
    folder = zoo.find(asked)
    if folder is not None and options.revision is not None:
        raise CheckpointError(f"{asked} is in this installation and has no revisions; leave revision out.")
    folder = folder or find_folder(asked, options.revision, options.token)
    import_transformers()
    device, mask_id, wanted = options.device, options.mask_id, options.dtype
    if adapters.is_adapter(folder):
        return _merged(asked, folder, options)
    if options.base is not None:
        raise CheckpointError(f"{asked} is no PEFT adapter, so that a base would have no effect; leave it out.")
    if folder.suffix == ".gguf":
        if options.packing is not None:
            raise CheckpointError(
                f"{asked} is a GGUF file, whose weights are unpacked; use quantization='int8' or 'int4'."
            )
        packed, reader = load_gguf(asked, read_gguf(folder), wanted, device)
        return _assemble(Llama(), packed, reader, asked, None, checkpoint.gguf_fingerprint(folder))
    config = checkpoint.read_config(folder)
    family = family_of(config, folder)
    stored = config.get("quantization_config")
    _check_packing(family, stored, options.packing, asked)
    if mask_id is not None:
        if family.causal:
            raise CheckpointError(f"{asked} is autoregressive and has no mask token; leave mask_id out.")
        config["mask_token_id"] = mask_id
    files = checkpoint.weight_files(folder)
    try:
        with quiet():  # it may warn of a rope that is meant so
            native = family.native_config(config)
    except KeyError as error:
        raise CheckpointError(
            f"config.json of {asked} lacks {error}, which every {family.name} checkpoint has; fetch the file again."
        ) from None
    if family.causal or not family.causal_module:
        native.is_causal = family.causal
    check_against_weights(family, native, files, [checkpoint.read_header(path) for path in files], asked)
    refuse_unless_fits(asked, files, wanted, on_cpu=_on_cpu(device))
    tokenizer = _tokenizer(family, folder)
    mask_id = family.mask_id(config, tokenizer)
    module = load_weights(family, folder, native, wanted, device, options.packing)
    family.adapt(module, config)
    model = _assemble(family, module, tokenizer, asked, mask_id, checkpoint.fingerprint(files))
    model.block, model.revision = family.block(config), hub_commit(folder)
    model.quantization = packed_by(options.packing or stored)
    if options.packing is not None:
        model.fingerprint = digest(model.fingerprint, options.packing)
    return _with_preset(model, config.get("sinkscope_decode"), f"config.json of {asked}")


def _merged(asked: str, folder: Path, options: _Options) -> Model:
    """An adapter in its base."""
    refuse_odd_files(folder)
    if options.packing is not None:
        raise CheckpointError(
            f"{asked} is an adapter, which is merged into plain weights; use quantization='int8' or 'int4', which pack "
            "them afterwards, or load it with peft and sk.wrap it."
        )
    adapter = adapters.read_adapter(folder, options.base)
    named = checked_name(adapter.base)
    try:
        with one_sentence(named):  # the forwards of the self-test are left to the merged model
            whole = _undamaged(_loaded(named, replace(options, base=None, revision=None)))
    except CheckpointError as error:
        raise CheckpointError(
            f"{asked} is an adapter of {named}, which cannot be loaded here (base=… or --base says where it is): {error}"
        ) from None
    if whole.quantization is not None:
        raise CheckpointError(
            f"{asked} is an adapter of {named}, whose {whole.quantization} weights nothing can be merged into; load both "
            "with peft and sk.wrap the model, or pass base=… with plain weights."
        )
    model = converted(adapters.merge(whole, adapter, asked), adapter)
    model.revision = hub_commit(folder)
    return model


def converted(model: Model, adapter: adapters.Adapter) -> Model:
    """What the adapter's notes say beyond weights: another family, its mask token, decode settings, a chat template."""
    notes, folder = adapter.notes, adapter.folder
    known = {family.name: family for family in families()}
    name = str(notes.get("family", model.family))
    if name not in known:
        raise CheckpointError(f"{folder / adapters.NOTES} names the family {name!r}; known are {', '.join(known)}.")
    if has_tokenizer(folder):
        model.tokenizer = _tokenizer(known[name], folder)
    template = folder / "chat_template.jinja"
    if template.is_file() and model.tokenizer is not None:
        model.tokenizer.chat_template = template.read_text(encoding="utf-8")
    if name != model.family:
        mask_id = known[name].mask_id(notes, model.tokenizer)
        made = _assemble(known[name], model.module, model.tokenizer, model.name, mask_id, model.fingerprint)
        adapters.set_direction(made.module, made.causal)
        model = made
    return _with_preset(model, notes.get("sinkscope_decode", model.preset), str(folder / adapters.NOTES))


def _with_preset(model: Model, preset: Any, where: str) -> Model:
    try:
        model.preset = dict(preset or {})
        _ = model.defaults
    except (TypeError, ValueError, DecodeError) as error:
        raise CheckpointError(f"{where} has sinkscope_decode settings that cannot be used: {error}") from None
    return model


def find_folder(asked: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """A folder or GGUF file on disk, else a snapshot of the Hub id, which may be written name@revision."""
    path = Path(asked).expanduser()
    if revision is not None and path.exists():
        raise CheckpointError(
            f"{asked} is on this machine, so that revision={revision!r} would have no effect; leave it out."
        )
    if path.suffix == ".gguf" and path.is_file():
        return path
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        return packed[0] if len(packed) == 1 and not (path / "config.json").is_file() else path
    if path.exists():
        raise CheckpointError(f"Expected a checkpoint folder, got the file {asked}; name the folder that holds it.")
    hub_id, at, written = asked.partition("@")
    parts = hub_id.split("/")
    if len(parts) != 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise CheckpointError(
            f"Expected a zoo name ({', '.join(zoo.names())}), a folder or a Hub id such as GSAI-ML/LLaDA-8B-Instruct, "
            f"got {shown(repr(asked))}, which is none of them."
        )
    if at and (not written or revision not in (None, written)):
        raise CheckpointError(f"Expected one revision of {hub_id}, got {shown(repr(asked))} and revision={revision!r}.")
    return snapshot(asked, revision=revision, token=token)


def hub_commit(folder: Path) -> str | None:
    """The commit of a snapshot in the Hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--") else None


def family_of(config: dict[str, Any], folder: Path) -> Family:
    for family in families():
        if family.knows(config, folder):
            return family
    known = ", ".join(family.name for family in FAMILIES if family.tested != "refused")
    raise UnknownFamilyError(
        f"Expected a config.json of a known family ({known}, or a causal model "
        f"that transformers has), got model_type {config.get('model_type')!r}; "
        "write a Family and hand it to sinkscope.models.register (see help(sinkscope.models.Family))."
    )


def _check_device(device: Any) -> None:
    """Refuse a device that torch does not know, or that is not in this machine."""
    if device is None or str(device) in SPREAD:
        return
    if str(device).split(":")[0] == "mps":
        raise CheckpointError("Expected a device with float64, which decoding needs, got mps, which has none; use cpu.")
    try:
        torch.zeros(1, device=torch.device(device)).cpu()  # "meta" is a device that holds nothing
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        raise CheckpointError(
            f"Expected a device that torch can use here, such as cpu, cuda, cuda:1 or auto, got {str(device)!r} "
            f"({first_lines(error).split('. ')[0].rstrip('.')}); use cpu, or install a torch that has it."
        ) from None


def _check_packing(family: Family, stored: Any, packing: Any, asked: str) -> None:
    """Packed weights are for families that transformers loads under its own names; others would read them as plain numbers."""
    method = packed_by(packing or stored)
    if method is None:
        return
    if stored and packing is not None:
        raise CheckpointError(f"{asked} is quantised already ({packed_by(stored)}); leave quantization out.")
    if stored and (not isinstance(stored, dict) or stored.get("quant_method") not in PACKINGS):
        raise CheckpointError(
            f"{asked} is quantised by {shown(method)}, and supported are {', '.join(PACKINGS)}; use the original checkpoint."
        )
    if family.key_mapping or family.native_class is not None:
        raise CheckpointError(
            f"{asked} is quantised by {shown(method)}, and {family.name} checkpoints are converted while they are loaded; "
            "use the original checkpoint, with quantization='int8' or 'int4'."
        )


def _dtype(dtype: torch.dtype | str | None, device: Device) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return torch.float32 if dtype is None and _on_cpu(device) else "auto"
    found = getattr(torch, DTYPES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"Expected a dtype such as float32, bfloat16 or float16, got {shown(repr(dtype))}.")
    return found


def _on_cpu(device: Device) -> bool:
    if isinstance(device, dict):
        return all(str(one) == "cpu" for one in device.values())
    return str(device or "cpu").startswith("cpu") or (str(device) == "auto" and not torch.cuda.is_available())


def _tokenizer(family: Family, folder: Path) -> PreTrainedTokenizerBase | None:
    if not has_tokenizer(folder):
        return None
    try:
        with quiet():
            return family.load_tokenizer(folder)
    except Exception as error:
        # transformers raises half a dozen types here, from the Rust side too; each means the same to the user.
        raise CheckpointError(
            f"The tokenizer files in {folder} cannot be read ({type(error).__name__}: {first_lines(error)}); "
            "fetch them again, or remove them to load the model for ids only."
        ) from error


def _assemble(
    family: Family, module: Any, tokenizer: PreTrainedTokenizerBase | None, name: str, mask_id: int | None, digest: str
) -> Model:
    config = module.config.get_text_config()
    ends = family.eos_ids(config, tokenizer)
    known = tokenizer.get_vocab() if tokenizer is not None else {}
    eot = known.get(family.end_of_turn) if family.end_of_turn else None
    pad = family.pad_id(config, tokenizer)
    if family.causal and eot is not None and eot not in ends:
        ends = (*ends, eot)
    return Model(
        module=module, tokenizer=tokenizer, family=family.name, name=name, mask_id=mask_id, shift=family.shift,
        causal=family.causal, context=int(config.max_position_embeddings), eos_ids=ends, pad_id=pad, eot_id=eot,
        recipe=family, fingerprint=digest, mode=next(iter(family.modes), None),
    )  # fmt: skip


def _undamaged(model: Model) -> Model:
    """Refuse weights with NaN, and a mask token without a row."""
    if model.mask_id is not None and not 0 <= model.mask_id < model.vocabulary:
        raise CheckpointError(
            f"Expected the mask token of {model.name} among its {model.vocabulary} tokens, got id {model.mask_id}; "
            "correct mask_token_id in config.json, or pass mask_id=…."
        )
    for key, parameter in model.module.named_parameters():
        if parameter.is_floating_point() and not is_finite(parameter):
            raise CheckpointError(
                f"{model.name} has NaN or infinite numbers in {key}; the checkpoint is damaged: fetch it again."
            )
    return model


def _self_tested(model: Model) -> Model:
    """Refuse a damaged model, and a direction of attention that is not the family's."""
    _undamaged(model)
    if looks_ahead(model) == model.causal:
        expected, came = ("causal", "bidirectional") if model.causal else ("bidirectional", "causal")
        raise CheckpointError(
            f"Expected {expected} attention in {model.name}, and it is {came} with this transformers; "
            "version 5.2 or newer is needed."
        )
    if model.causal or model.block is not None:
        _try_cache(model)
    return model


@torch.inference_mode()
def _try_cache(model: Model) -> None:
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
    return not torch.equal(model.logits(ids)[0, 0], model.logits(changed)[0, 0])
