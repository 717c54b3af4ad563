"""`load`: a zoo name, a folder, a GGUF file or a Hub id becomes a Model; `outline`: the same without its weights."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from sinkscope.aliases import DTYPES, LOAD, translated
from sinkscope.errors import CheckpointError, TokenizerError
from sinkscope.io.reading import reason, short
from sinkscope.models import adapters, checkpoint, weights
from sinkscope.models.assemble import assemble, described, self_tested, tokenizer_in, with_preset
from sinkscope.models.base import Model
from sinkscope.models.checkpoint import checked_name, one_sentence, refuse_odd_files
from sinkscope.models.family import Family, families, has_tokenizer, register
from sinkscope.models.gguf_file import gguf_config, load_gguf, read_gguf
from sinkscope.models.hub import find_folder, hub_commit
from sinkscope.models.llama import Llama
from sinkscope.models.sizes import check_against_weights, empty_module, refuse_unless_fits
from sinkscope.models.weights import Device, import_transformers, load_weights, set_direction

for _found in iter_modules([str(Path(__file__).parent)]):  # families register themselves
    import_module(f"sinkscope.models.{_found.name}")

# Words for a model that is spread over all devices.
SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
# Packings that a config.json may name; for others transformers may fetch kernels from the Hub and run them.
PACKINGS = ("bitsandbytes", "torchao", "gptq", "awq", "compressed-tensors")

__all__ = ["SPREAD", "families", "load", "outline", "register"]


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
        raise CheckpointError(f"Expected a branch, tag or commit as revision, got {short(repr(revision))}.")
    wanted, at = checked_options(dtype, device, mask_id), None if base is None else checked_name(base)
    with one_sentence(asked):
        weights.checked_scheme(scheme)
        model = _loaded(
            asked, wanted, device, mask_id, at, revision, token, None if isinstance(scheme, str) else scheme
        )
        model = self_tested(model if mode is None else model.in_mode(mode))
        return weights.quantize(model, scheme) if isinstance(scheme, str) else model


def checked_options(dtype: torch.dtype | str | None, device: Device, mask_id: int | None) -> torch.dtype | str:
    """The dtype to load with; options that no model could be loaded with are refused."""
    for one in device.values() if isinstance(device, dict) else (device,):
        _check_device(one)
    if mask_id is not None and (type(mask_id) is not int or mask_id < 0):
        raise CheckpointError(f"Expected mask_id to be a token id of at least 0, got {short(repr(mask_id))}.")
    return _dtype(dtype, device)


def _loaded(
    asked: str, dtype: torch.dtype | str, device: Device, mask_id: int | None, base: str | None = None,
    revision: str | None = None, token: str | bool | None = None, packing: Any = None,
) -> Model:  # fmt: skip
    """packing: a quantization_config of transformers."""
    folder = find_folder(asked, revision, token)
    import_transformers()
    adapted, packed = adapters.is_adapter(folder), folder.suffix == ".gguf"
    if base is not None and not adapted:
        raise CheckpointError(f"{asked} is no PEFT adapter, so that a base would have no effect; leave it out.")
    if packing is not None and (adapted or packed):
        raise CheckpointError(
            f"{asked} becomes plain weights as it is loaded, which int8 and int4 pack afterwards: use one of these, or "
            "load it with transformers and peft and sk.wrap it."
        )
    if adapted:
        refuse_odd_files(folder)
        adapter = adapters.read_adapter(folder, base)
        return _merged(asked, adapter, dtype, device, mask_id, token)
    if packed:
        module, spelled = load_gguf(asked, read_gguf(folder), dtype, device)
        return assemble(Llama(), module, spelled, asked, None, fingerprint=checkpoint.gguf_fingerprint(folder))
    family, config, native = described(folder, asked)
    stored = config.get("quantization_config")
    _check_packing(family, stored, packing, asked)
    if mask_id is not None:
        if family.causal:
            raise CheckpointError(f"{asked} is autoregressive and has no mask token; leave mask_id out.")
        config["mask_token_id"] = mask_id
    files = checkpoint.weight_files(folder)
    check_against_weights(family, native, files, asked)
    refuse_unless_fits(asked, files.values(), dtype, on_cpu=_on_cpu(device))
    tokenizer = tokenizer_in(folder, family)
    mask_id = family.mask_id(config, tokenizer)
    module = load_weights(family, folder, native, dtype, device, packing, files)
    family.adapt(module, config)
    digest = checkpoint.fingerprint(files)
    model = assemble(
        family, module, tokenizer, asked, mask_id, block=family.block(config), revision=hub_commit(folder),
        quantization=weights.packed_by(packing or stored),
        fingerprint=digest if packing is None else weights.digest(digest, packing),
    )  # fmt: skip
    return with_preset(model, config.get("sinkscope_decode"), f"config.json of {asked}")


def _merged(
    asked: str, adapter: adapters.Adapter, dtype: torch.dtype | str, device: Device, mask_id: int | None, token: Any
) -> Model:
    """An adapter in its base."""
    named = checked_name(adapter.base)
    try:
        with one_sentence(named):  # the self-test is left to the merged model
            whole = _loaded(named, dtype, device, mask_id, token=token)
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
    model.revision = hub_commit(adapter.folder)
    return model


def converted(model: Model, adapter: adapters.Adapter) -> Model:
    """What the adapter's notes say beyond weights: another family, its mask token, decode settings, a chat template."""
    notes, folder = adapter.notes, adapter.folder
    known = {family.name: family for family in families()}
    name = str(notes.get("family", model.family))
    if name not in known:
        raise CheckpointError(f"{folder / adapters.NOTES} names the family {name!r}; known are {', '.join(known)}.")
    if has_tokenizer(folder):
        model.tokenizer = tokenizer_in(folder, known[name])
    template = folder / "chat_template.jinja"
    if template.is_file() and model.tokenizer is not None:
        model.tokenizer.chat_template = template.read_text(encoding="utf-8")
    if name != model.family:
        mask_id = known[name].mask_id(notes, model.tokenizer)
        model = assemble(known[name], model.module, model.tokenizer, model.name, mask_id, fingerprint=model.fingerprint)
        set_direction(model.module, model.causal)
    return with_preset(model, notes.get("sinkscope_decode", model.preset), str(folder / adapters.NOTES))


def outline(name: str | os.PathLike[str], dtype: torch.dtype = torch.bfloat16) -> Model:
    """A model without weights, from a zoo name, a folder, a config.json or a Hub id, of which nothing else is fetched."""
    asked = checked_name(name)
    with one_sentence(asked):
        path = Path(asked).expanduser()
        alone = path.name == "config.json" and path.is_file()
        folder = path.parent if alone else find_folder(asked, patterns=["config.json"])
        import_transformers()
        if adapters.is_adapter(folder):
            adapter = adapters.read_adapter(folder)
            return converted(outline(adapter.base, dtype), adapter)  # of another family, perhaps
        packed = folder.suffix == ".gguf"
        found: tuple[Family, dict[str, Any], Any] = (
            (Llama(), {}, gguf_config(folder)) if packed else described(folder, asked)
        )
        family, config, native = found
        module = empty_module(family, native).to(dtype).eval()
        tokenizer = None if packed else tokenizer_in(folder, family)
        mask_id = None if family.causal else 0  # it does not matter which token it is
        with suppress(TokenizerError):
            mask_id = family.mask_id(config, tokenizer)
        model = assemble(family, module, tokenizer, asked, mask_id, block=family.block(config))
        return with_preset(model, config.get("sinkscope_decode"), f"config.json of {asked}")


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
            f"({reason(error)}); use cpu, or install a torch that has it."
        ) from None


def _check_packing(family: Family, stored: Any, packing: Any, asked: str) -> None:
    """Packed weights are for families that transformers loads under its own names; others would read them as plain numbers."""
    method = weights.packed_by(packing or stored)
    if method is None:
        return
    if stored and packing is not None:
        raise CheckpointError(f"{asked} is quantised already ({weights.packed_by(stored)}); leave quantization out.")
    if stored and (not isinstance(stored, dict) or stored.get("quant_method") not in PACKINGS):
        raise CheckpointError(
            f"{asked} is quantised by {short(method)}, and supported are {', '.join(PACKINGS)}; use the original checkpoint."
        )
    if family.key_mapping or family.native_class is not None:
        raise CheckpointError(
            f"{asked} is quantised by {short(method)}, and {family.name} checkpoints are converted while they are loaded; "
            "use the original checkpoint, with quantization='int8' or 'int4'."
        )


def _dtype(dtype: torch.dtype | str | None, device: Device) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return torch.float32 if dtype is None and _on_cpu(device) else "auto"
    found = getattr(torch, DTYPES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"Expected a dtype such as float32, bfloat16 or float16, got {short(repr(dtype))}.")
    return found


def _on_cpu(device: Device) -> bool:
    if isinstance(device, dict):
        return all(str(one) == "cpu" for one in device.values())
    return str(device or "cpu").startswith("cpu") or (str(device) == "auto" and not torch.cuda.is_available())
