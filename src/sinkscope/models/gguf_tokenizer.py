"""The tokenizer of a GGUF file, through transformers' own converter, fed with a head that was read already."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.models.gguf_header import Header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Files from which transformers takes settings, or another class, where they lie beside the GGUF file.
BESIDE = ("*token*", "*template*", "*.model*", "tekken.json", "config.json")


def tokenizer_of(header: Header) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = header.path.parent
    if not any(True for pattern in BESIDE for _ in folder.glob(pattern)):
        # The converter is no public part of transformers: where it is another one, the slow way below still stands.
        with suppress(Exception):
            return _converted(header, folder)
    slow: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), gguf_file=header.path.name)
    return slow


def _converted(header: Header, folder: Path) -> PreTrainedTokenizerBase:
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    said = header.values
    if TOKENIZER_MAPPING.get(LlamaConfig, PreTrainedTokenizerFast) is not PreTrainedTokenizerFast:
        raise TypeError("AutoTokenizer gives a Llama another class")
    described, settings = (
        {own: said[f"tokenizer.{name}"] for name, own in names.items() if f"tokenizer.{name}" in said}
        for names in (GGUF_TOKENIZER_MAPPING["tokenizer"], GGUF_TOKENIZER_MAPPING["tokenizer_config"])
    )
    ids = {name: said.get(f"tokenizer.ggml.{word}_token_id") for name, word in SPECIAL.items()}
    settings |= {name: None if one is None else described["tokens"][one] for name, one in ids.items()}
    backend, more = convert_gguf_tokenizer("llama", described)
    # Without the last two, transformers asks the Hub about large vocabularies.
    place: dict[str, Any] = {"name_or_path": str(folder), "is_local": True, "local_files_only": True}
    return PreTrainedTokenizerFast(tokenizer_object=backend, vocab_file=None, **place, **settings, **more)
