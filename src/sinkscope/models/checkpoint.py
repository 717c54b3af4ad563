"""The files of a checkpoint's folder before anything is loaded: whole, no pickle, no code, of one model, and small enough."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError, SinkscopeError
from sinkscope.files import MB, describe_error, read_object, short

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.family import Config, Family

Header = dict[str, tuple[str, tuple[int, ...]]]  # of a safetensors file: name → dtype and shape
MAX_JSON = 64 * MB
MAX_LAYERS = 512
FIRST_BYTES = 1 << 16
LAYER_COUNTS = ("n_layers", "num_hidden_layers", "n_layer", "num_layers")
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Fields that choose code instead of a size: kernels may be fetched from the Hub by them, and run.
CODE = (
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "use_kernels", "custom_pipelines",
)  # fmt: skip
GB = 1e9
# How numbers are stored; those of eight bits have no dtype to be loaded in.
STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "", "F8_E5M2": ""}
SPARE = 1 << 24  # numbers that a model may have beyond its files: buffers, and what the loader then names by key


@contextmanager
def as_checkpoint_error(what: str) -> Iterator[None]:
    """The one boundary for foreign errors: what a library raises over a file becomes one sentence that repeats it."""
    try:
        yield
    except BaseException as error:
        # A panic on the Rust side is no Exception, and means no more than one.
        foreign = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if isinstance(error, SinkscopeError) or not foreign:
            raise
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        advice = f"pip install {missing}" if missing else "fetch its files again"
        raise CheckpointError(f"{short(what)} cannot be used ({describe_error(error)}); {advice}.") from error


def read_config(folder: Path) -> Config:
    """config.json without the fields that would choose code."""
    path = folder / "config.json"
    config = read_object(path, MAX_JSON, CheckpointError, "fetch it again")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for field in LAYER_COUNTS:  # lists of that length are made before any size is compared
            if isinstance(part.get(field), int | float) and not 0 < part[field] <= MAX_LAYERS:
                raise CheckpointError(
                    f"Expected {field} in {short(path)} from 1 to {MAX_LAYERS}, got {short(part[field])}; fetch it again."
                )
    return {field: value for field, value in config.items() if field not in CODE}


def stored_mask_tokens(folder: Path) -> list[str]:
    """What the tokenizer's files call the mask token; a causal checkpoint has no use for one."""
    tokens = []
    for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        token = json.loads(path.read_text(encoding="utf-8")).get("mask_token") if path.is_file() else None
        tokens.append(token.get("content") if isinstance(token, dict) else token)
    return [token for token in tokens if token]


def weight_files(folder: Path) -> dict[Path, Header]:
    """The .safetensors files of a checkpoint, single or sharded, each whole, with their headers; pickle is refused by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(read_object(index, MAX_JSON, CheckpointError, "fetch it again")["weight_map"].values())
        outside = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
        if outside or not names:
            raise CheckpointError(
                f"Expected shards inside {folder} in {index.name}, got {short(outside)}; fetch it again."
            )
        files = [folder / name for name in sorted(names)]
    else:
        files = sorted(folder.glob("model*.safetensors")) or sorted(
            path for path in folder.glob("*.safetensors") if path.name != "golden.safetensors"
        )
    if not files:
        pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
        came = f"only pickle ({', '.join(pickled[:3])}), which can run code when opened" if pickled else "none"
        advice = f"where you trust it, convert it ({conversion(folder, pickled[0])})" if pickled else "fetch it again"
        raise CheckpointError(f"Expected .safetensors weights in {folder}, found {came}; {advice}.")
    return {path: read_header(path) for path in files}


def conversion(folder: Path, pickled: str) -> str:
    """The command that turns a pickled state dict into safetensors; torch then opens tensors only."""
    return (
        f"cd {folder} && python -c 'import torch, safetensors.torch as s; s.save_file({{k: v.clone() for k, v in "
        f'torch.load("{pickled}", weights_only=True).items()}}, "model.safetensors")\''
    )


def read_header(path: Path) -> Header:
    """Name → dtype and shape of every tensor; safetensors refuses a file that is not as long as its header says."""
    from safetensors import safe_open

    with as_checkpoint_error(str(path)), safe_open(path, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}


def fingerprint(files: Iterable[Path]) -> str:
    """sha256 of every weight file's header and first bytes: cheap at 16 GB, and it changes with the weights."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            start = file.read(8)
            digest.update(start)
            digest.update(file.read(min(int.from_bytes(start, "little"), 1 << 26)))
            digest.update(file.read(FIRST_BYTES))
    return digest.hexdigest()


# ---- sizes, compared before anything is loaded


def check_against_weights(family: Family, native: PretrainedConfig, files: Mapping[Path, Header], name: str) -> None:
    """The model that config.json describes is made on the device meta, where it has sizes and takes no memory."""
    shapes = [shape for header in files.values() for _, shape in header.values()]
    stored = sum(map(math.prod, shapes))
    module = empty_module(family, native)
    described = sum(part.numel() for part in (*module.parameters(), *module.buffers()))
    packed = 16 if getattr(native, "quantization_config", None) else 2  # several numbers may share one stored number
    if described > packed * stored + SPARE:
        raise CheckpointError(
            f"config.json of {short(name)} describes {described:,} numbers, and its weights hold {stored:,}: of "
            "different checkpoints; fetch both again."
        )


def check_memory(name: str, headers: Iterable[Header], dtype: torch.dtype | str, on_cpu: bool) -> None:
    """Refuse weights that would be turned into more bytes than this machine has left.

    Weights that keep their dtype are mapped from their files and may be larger than what is free; those that are
    converted are copied into memory.
    """
    if not on_cpu or isinstance(dtype, str):
        return
    wanted, free = str(dtype).removeprefix("torch."), available_memory()
    stored = [entry for header in headers for entry in header.values()]
    numbers = sum(math.prod(shape) for kind, shape in stored if STORED.get(kind, wanted) != wanted)
    needed = numbers * dtype.itemsize
    if free is not None and needed > free:
        raise CheckpointError(
            f"{name} takes {needed / GB:.1f} GB in {wanted}, and {free / GB:.1f} GB of memory are available; load it as "
            "it is stored: dtype=auto."
        )


def available_memory() -> int | None:
    """Bytes of memory that this process could get: the machine's, or less where its group is limited; None if unknown."""
    limits: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        usage = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        if limit != "max":
            limits.append(int(limit) - int(used) + int(usage.get("file", 0)))
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def native_class(family: Family) -> Any:
    """The class that a family's weights are loaded into: transformers', or one of ours."""
    import transformers

    return family.own_class() or getattr(transformers, family.native_class or "AutoModelForCausalLM")


def empty_module(family: Family, native: PretrainedConfig) -> torch.nn.Module:
    """The native module on the device meta, without weights."""
    from sinkscope.models.weights import quiet

    alone = family.native_class or family.own_class()
    build: Any = native_class(family) if alone else native_class(family).from_config
    with torch.device("meta"), quiet():
        module: torch.nn.Module = build(native)
    return module
