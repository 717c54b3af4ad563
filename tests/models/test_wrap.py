"""A model in memory gives, token for token, what the same checkpoint gives through sk.load."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from made_models import make_causal, make_llada, save_tokenizer
from sinkscope.errors import CheckpointError, TraceError

IDS = torch.randint(4, 60, (2, 5), generator=torch.Generator().manual_seed(0))
KEEP = sk.Keep(dtype=torch.float32)


def native(folder: Path) -> Any:
    """The same weights in transformers' own class, as a user has them."""
    from transformers import LlamaForCausalLM

    loaded: Any = sk.load(folder).module
    ours = ("is_causal", "mask_token_id")
    words = {name: value for name, value in loaded.config.to_dict().items() if name not in ours}
    made = LlamaForCausalLM(type(loaded.config)(**words))
    made.load_state_dict(loaded.state_dict())
    return made


@pytest.mark.parametrize("kind", ["llama", "llada"])
def test_equal_to_load_token_for_token(tmp_path: Path, kind: str) -> None:
    folder = (make_causal if kind == "llama" else make_llada)(tmp_path / kind)
    loaded, module = sk.load(folder), native(folder)
    wrapped = sk.wrap(module) if kind == "llama" else sk.wrap(module, family="llada", mask_id=3)
    assert (
        wrapped.module is module
        and not module.training
        and (wrapped.causal, wrapped.shift) == (loaded.causal, loaded.shift)
    )
    settings = sk.Decode.autoregressive(length=8) if kind == "llama" else sk.Decode.llada(length=8, block=4, steps=8)
    for change in ([], [sk.MaskSinks(k=1)], [sk.ZeroAttention(((0, 1),))]):
        one, other = (sk.trace(model, IDS, settings, interventions=change, keep=KEEP) for model in (loaded, wrapped))
        for left, right in zip(one, other, strict=True):
            assert torch.equal(left.received, right.received) and torch.equal(left.canvas, right.canvas)
    assert torch.equal(sk.lens(loaded, IDS), sk.lens(wrapped, IDS))
    assert (
        wrapped.fingerprint
        == sk.wrap(module, **({} if kind == "llama" else {"family": "llada", "mask_id": 3})).fingerprint
    )


def test_a_peft_wrapped_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = make_llada(tmp_path / "base")
    adapted = peft.get_peft_model(native(folder), peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=2))
    plain = sk.wrap(adapted, family="llada", mask_id=3)
    settings = sk.Decode.llada(length=8, block=4, steps=8)
    loaded = sk.load(folder)
    assert torch.equal(sk.decode(plain, IDS, settings).history, sk.decode(loaded, IDS, settings).history)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    moved = sk.wrap(adapted, family="llada", mask_id=3)
    assert moved.fingerprint != plain.fingerprint
    before = sk.trace(moved, IDS, settings, keep=KEEP, interventions=[sk.AblateChannels(top=1)])
    merged = sk.wrap(adapted.merge_and_unload(), family="llada", mask_id=3)
    after = sk.trace(merged, IDS, settings, keep=KEEP, interventions=[sk.AblateChannels(top=1)])
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one.canvas, other.canvas) and torch.allclose(one.received, other.received, atol=1e-3)


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its fast part: a random LLaDA, and the same in a LoRA; each equal to sk.load and checked."""
    path = Path(__file__).parents[2] / "examples" / "wrap_in_memory.py"
    example = runpy.run_path(str(path))
    example["random_llada"](tmp_path)
    example["tiny"](tmp_path)
    assert capsys.readouterr().out.count("the tokens of sk.load at every one") == 4


def test_a_study_in_process(tmp_path: Path) -> None:
    loaded = sk.load("tiny-llada")
    wrapped = sk.wrap(loaded.module, loaded.tokenizer, family="llada", mask_id=loaded.mask_id)
    study = sk.Study.from_dict(
        {
            "name": "own", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": 3, "difficulty": 1}],
            "conditions": ["none", {"name": "mask_sinks", "k": 1}], "decode": {"length": 16, "block": 8, "steps": 4},
        }
    )  # fmt: skip
    named = sk.run(study, tmp_path / "named", workers=1).results
    own = sk.run(study, tmp_path / "own", models={"mine": wrapped}).results
    assert [cell["correct"] for cell in own["cells"]] == [cell["correct"] for cell in named["cells"]]
    assert {cell["model"] for cell in own["cells"]} == {"mine"}
    about = json.loads((tmp_path / "own" / "run.json").read_text())
    assert about["models"][0]["identity"]["fingerprint"] == wrapped.fingerprint
    for words in ({"engine": "ray"}, {"workers": 2}):
        with pytest.raises(sk.SinkscopeError, match="in memory"):
            sk.run(study, tmp_path / "no", models={"mine": wrapped}, **words)
    with pytest.raises(sk.SinkscopeError, match="mine"):  # it is gone when the run is over
        sk.run(study.changed(models=["mine"]), tmp_path / "gone", workers=1)


def test_half_precision_and_text(tmp_path: Path) -> None:
    folder = save_tokenizer(make_llada(tmp_path / "half"), mask_token="<m>", eos_token="</s>")
    loaded, module = sk.load(folder, dtype=torch.bfloat16, mask_id=3), native(folder).to(torch.bfloat16)
    wrapped = sk.wrap(module, loaded.tokenizer, family="llada", mask_id=3)
    assert wrapped.dtype == torch.bfloat16
    words: dict[str, Any] = {"length": 8, "block": 4, "steps": 8}
    assert wrapped.generate("Tom has two apples .", **words) == loaded.generate("Tom has two apples .", **words)


def test_what_cannot_be_wrapped_is_told(tmp_path: Path) -> None:
    module = native(make_llada(tmp_path / "a"))
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (module, {"mask_id": 3}, "family="), (module, {"family": "gpt"}, "known are"), (module, {"family": "llada"}, "mask token"),
        (module, {"family": "llama", "mask_id": 3}, "autoregressive"), (torch.nn.Linear(2, 2), {}, "Linear"),
        (module.model, {}, "LlamaModel"), ("tiny-llada", {}, "str"), (sk.load("tiny-llada"), {}, "Model"),
    ]  # fmt: skip
    for model, words, said in wrong:
        with pytest.raises(sk.SinkscopeError, match=said) as caught:
            sk.wrap(model, **words)
        assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match=r"sk\.wrap") as told:
        sk.trace(module, IDS)
    assert len(str(told.value)) < 200
    assert issubclass(CheckpointError, sk.SinkscopeError)
