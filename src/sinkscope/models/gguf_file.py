"""`load_gguf`: one GGUF file becomes module and tokenizer, directly where it is a plain Llama, else through transformers."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError
from sinkscope.models import gguf_llama
from sinkscope.models.gguf_header import Header
from sinkscope.models.gguf_tokenizer import tokenizer_of
from sinkscope.models.weights import Device, first_lines, placement, quiet

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerBase

    Loaded = tuple[torch.nn.Module, PreTrainedTokenizerBase]


def load_gguf(asked: str, header: Header, dtype: torch.dtype | str, device: Device) -> Loaded:
    """Module and tokenizer of one GGUF file, its quantised layers turned into plain ones."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise CheckpointError(
            f"{asked} is a GGUF file, and reading one needs the package gguf; install it: pip install gguf"
        ) from None
    try:
        # The bar of transformers' conversion is drawn by tqdm itself, past transformers' own switch.
        with quiet(), redirect_stderr(io.StringIO()):
            config = gguf_llama.config_of(header)
            if config is None:
                return through_transformers(header, dtype, device)
            return direct(header, config, dtype, device)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{header.path} cannot be read as a GGUF model: {first_lines(error)}; fetch it again."
        ) from error


def direct(header: Header, config: LlamaConfig, dtype: torch.dtype | str, device: Device) -> Loaded:
    """A plain Llama, in less than a second for SmolLM2-135M."""
    from transformers import LlamaForCausalLM

    wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32  # what "auto" is for unpacked weights
    weights = gguf_llama.weights_of(header, wanted)
    native: Any = LlamaForCausalLM
    module, info = native.from_pretrained(
        None, config=config, state_dict=weights, dtype=wanted, output_loading_info=True, **placement(device)
    )
    _refuse_missing(header, info)
    module.config.name_or_path = str(header.path.parent)
    return module.eval(), tokenizer_of(header)


def through_transformers(header: Header, dtype: torch.dtype | str, device: Device) -> Loaded:
    """Any architecture that transformers reads: slow, as it reads the head of the file three times."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(header.path.parent), header.path.name
    auto: Any = AutoModelForCausalLM
    module, info = auto.from_pretrained(
        folder, gguf_file=name, dtype=dtype, quantization_config=GgufConfig(dequantize=True), output_loading_info=True,
        **placement(device),
    )  # fmt: skip
    _refuse_missing(header, info)
    return module.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def _refuse_missing(header: Header, info: dict[str, Any]) -> None:
    """transformers gives random numbers to the weights that a GGUF file lacks."""
    if lacks := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"{header.path} cannot be read as a GGUF model: it lacks {len(lacks)} weights, such as {lacks[0]}; "
            "fetch it again."
        )
