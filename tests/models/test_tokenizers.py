"""The real LLaDA and Dream tokenizers, in random checkpoints made from the real config.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from made_models import llada_name, llama_weights, save
from sinkscope.decoding import Decode, decode
from sinkscope.models import Model, load

TOKENIZERS = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
pytestmark = pytest.mark.skipif(
    not TOKENIZERS.is_dir(), reason="the real tokenizers are not beside this repository (../shared/data/tokenizers)"
)


def shrunk(folder: Path, family: str, **sizes: Any) -> Path:
    """A random checkpoint with the real tokenizer and config.json, but for a few small sizes."""
    shutil.copytree(TOKENIZERS / family, folder, dirs_exist_ok=True)
    config = {**json.loads((folder / "config.json").read_text()), **sizes}
    rows = config.get("embedding_size") or config["vocab_size"]
    weights = llama_weights(rows, 32, 1, 4, 2, 48, bias=family == "dream")
    if family == "llada":
        weights = {llada_name(name): part for name, part in weights.items()}
    return save(folder, config, weights)


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("llada")
    sizes = {"d_model": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 48}
    return load(shrunk(folder, "llada", **sizes))


@pytest.fixture(scope="module")
def dream(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("dream")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    return load(shrunk(folder, "dream", **sizes, intermediate_size=48))


def test_llada_tokens(llada: Model) -> None:
    assert (llada.mask_id, llada.eos_id, llada.pad_id, llada.eot_id) == (126336, 126081, 126081, 126348)
    assert llada.vocabulary == 126464
    assert llada.context == 4096


def test_llada_chat(llada: Model) -> None:
    assert llada.tokenizer is not None
    ids = llada.encode("Why is the sky blue?")
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    expected = "<|startoftext|>" + header.format("user") + "Why is the sky blue?<|eot_id|>" + header.format("assistant")
    assert llada.tokenizer.decode(ids[0]) == expected
    assert ids[0, 0] == 126080
    assert (ids == 126080).sum() == 1  # the begin token is not added a second time
    plain = llada.encode("Why is the sky blue?", chat=False)
    assert "Why is the sky blue?" in llada.tokenizer.decode(plain[0])
    assert "header" not in llada.tokenizer.decode(plain[0])


def test_llada_mask_token_from_the_tokenizer(llada: Model) -> None:
    assert llada.family.mask_id({}, llada.tokenizer) == 126336


def test_dream_tokens(dream: Model) -> None:
    assert (dream.mask_id, dream.eos_id, dream.pad_id, dream.eot_id) == (151666, 151643, 151643, 151645)
    assert dream.vocabulary == 152064
    assert dream.valid_vocab_size == 151667
    assert dream.family.mask_id({}, dream.tokenizer) == 151666


def test_dream_chat(dream: Model) -> None:
    assert dream.tokenizer is not None
    text = dream.tokenizer.decode(dream.encode("Why is the sky blue?")[0])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n")


def test_dream_never_chooses_a_row_without_a_token(dream: Model) -> None:
    with torch.no_grad():  # make nameless rows the likeliest of all
        head = dream.module.lm_head.weight
        before = head[151700:].clone()
        head[151700:] *= 30
    try:
        ids = dream.encode("Why?")
        raw = dream.logits(ids).argmax(-1)
        assert (raw >= 151667).any()
        for settings in (
            Decode.dream(length=2, algorithm="entropy", temperature=0.0),
            Decode.dream(length=2, algorithm="origin", noise="per_row"),
            Decode.parallel(length=2, threshold=0.5),
        ):
            assert (decode(dream, ids, settings).tokens < 151667).all()
    finally:
        with torch.no_grad():
            head[151700:] = before


def test_generation_in_text(llada: Model, dream: Model) -> None:
    for model in (llada, dream):
        texts = model.generate(["Hello", "A longer prompt than that"], length=2, steps=2)
        assert len(texts) == 2
        assert all("<|" not in text for text in texts)
