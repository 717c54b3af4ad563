"""Families without golden data decode, trace and obey a masking; and what is refused is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sinkscope as sk
from golden_sets import newer
from made_models import make_fast_dllm, make_llada_moe, make_open_dcoder, save
from registries import restored
from sinkscope.decoding import Step
from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, register

MAKERS: dict[str, Callable[..., Path]] = {
    "llada": make_llada_moe, "fast_dllm2": make_fast_dllm, "dream": make_open_dcoder,
}  # fmt: skip


def every_family(tmp_path: Path) -> list[sk.Model]:
    made = [sk.load(make(tmp_path / name)) for name, make in MAKERS.items()]
    return [*made, *(newer(family).model for family in ("llada2", "sdar", "a2d"))]


def test_defaults_decode_trace_and_mask(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 9, 11, 6, 8]])
    for model in every_family(tmp_path):
        settings = sk.decoding.resolve_settings(model.defaults, model, 5, {"length": 12, "temperature": 0.0})
        trace = sk.trace(model, ids, settings)
        assert isinstance(trace, sk.Trace)
        answer = trace.canvas[-1, 5:17]
        assert not (answer == model.mask_id).any(), model.family.name
        assert trace.sinks() is not None
        with sk.intervene(model, sk.MaskSinks(k=1)) as active:
            sk.decode(model, ids, settings)
        assert active.effect.keys > 0 and active.effect.leak == 0


def test_families_are_told_apart(tmp_path: Path) -> None:
    found = {name: sk.load(make(tmp_path / name)) for name, make in MAKERS.items()}
    assert {model.defaults.sampler for model in found.values()} == set(MAKERS)
    assert [found[name].family.name for name in MAKERS] == ["llada_moe", "fast_dllm2", "open_dcoder"]
    assert found["fast_dllm2"].block == 8 and found["fast_dllm2"].shift


@pytest.mark.parametrize(
    ("field", "value"), [("use_bias", True), ("use_qkv_bias", True), ("score_function", "softmax")]
)
def test_llada2_variants_that_compute_something_else(tmp_path: Path, field: str, value: object) -> None:
    import json

    config = json.loads((newer("llada2").folder / "config.json").read_text())
    folder = save(tmp_path, {**config, field: value}, {"lm_head.weight": torch.zeros(2, 2)})
    with pytest.raises(sk.SinkscopeError, match=field):
        sk.load(folder)


def test_a_shared_expert_of_llada_moe_is_refused(tmp_path: Path) -> None:
    import json

    folder = make_llada_moe(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "shared_expert_intermediate_size": 16}))
    with pytest.raises(sk.SinkscopeError, match="shared_expert_intermediate_size"):
        sk.load(folder)


def test_diffusion_gemma_without_its_sizes_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, {"model_type": "diffusion_gemma"}, {"a": torch.zeros(1)})
    with pytest.raises(sk.SinkscopeError, match="text_config"):
        sk.load(folder)


def test_p2_keeps_a_growing_share_and_masks_the_rest_again(tmp_path: Path) -> None:
    model = sk.load(make_open_dcoder(tmp_path))
    steps: list[Step] = []
    settings = sk.Decode.dream(length=12, steps=6, algorithm="p2", temperature=0.0, top_p=None, top_k=None)
    done = sk.decode(model, torch.tensor([[5, 9, 11]]), settings, on_step=steps.append)
    assert done.history is not None
    known = (done.history[:, 0, 3:] != model.mask_id).sum(1).tolist()
    assert known == [12 - int(12 * (1 - step / 6)) if step else 0 for step in range(7)]
    assert any(step.reopened is not None and bool(step.reopened.any()) for step in steps)


def test_fast_dllm_fills_sub_blocks_from_left_to_right(tmp_path: Path) -> None:
    model = sk.load(make_fast_dllm(tmp_path))
    steps: list[Step] = []
    settings = sk.Decode.fast_dllm2(length=13, block=8, sub_block=4)
    sk.decode(model, torch.tensor([[5, 9, 11]]), settings, on_step=steps.append)
    places = [step.committed[0].nonzero().flatten().tolist() for step in steps]
    assert all(len(place) == 1 for place in places)  # threshold 1: one token per step
    parts = [place[0] // 4 for place in places]
    assert parts == sorted(parts)
    assert 8 not in [place[0] for place in places]  # a block's first token needs no step of its own


def test_a_commit_rule_from_outside_the_package() -> None:
    with restored():

        @register("leftmost")
        class Leftmost(CommitRule):
            def pick(self, candidates: torch.Tensor, confidence: torch.Tensor) -> Picks:
                opened = self.open()
                return Picks(opened & (opened.cumsum(1) == 1))

        model = newer("a2d").model
        steps: list[Step] = []
        settings = sk.Decode.llada(6, 3, commit="leftmost")
        sk.decode(model, torch.tensor([[5, 9, 11]]), settings, on_step=steps.append)
        assert [step.committed[0].nonzero().item() for step in steps] == [3, 4, 5, 6, 7, 8]


def test_options_without_effect_are_refused() -> None:
    for make in (
        lambda: sk.Decode.llada(8, suppress=(3,)),
        lambda: sk.Decode.sdar(8, guidance=1.0),
        lambda: sk.Decode.mdlm(8, guidance_keep=(3,)),
        lambda: sk.Decode.llada2(8, cache="dual"),
        lambda: sk.Decode.sdar(8, rule="best"),
        lambda: sk.Decode.mdlm(8, cache="exact"),
    ):
        with pytest.raises(sk.SinkscopeError):
            make()
