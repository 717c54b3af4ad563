"""A choice that has no effect is refused: when the `with` is entered, or at its end where only running tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sinkscope as sk
from golden_sets import golden
from sinkscope.errors import CaptureError, InterventionError, PromptError, TraceError
from sinkscope.interventions.base import Intervention

MAKERS: list[Callable[..., Intervention]] = [
    lambda **words: sk.MaskSinks(k=1, **words),
    lambda **words: sk.MaskRandom(k=1, **words),
    lambda **words: sk.MaskPositions((0,), **words),
    lambda **words: sk.CutContext(0, 2, **words),
    lambda **words: sk.ZeroValues(of=sk.MaskSinks(k=1, **words)),
    lambda **words: sk.MeanValues(of=sk.MaskPositions((1,), **words)),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("field", ["layers", "heads"])
@pytest.mark.parametrize("wrong", [(-1,), ("a",), (1.0,), (True,), (), 3, "01", (0, None), {0: 1.5}.values()], ids=repr)
def test_layers_and_heads_that_are_none(make: Callable[..., Intervention], field: str, wrong: Any) -> None:
    with pytest.raises(InterventionError, match=field):
        make(**{field: wrong})


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("words", [{"layers": (99,)}, {"layers": (0, 3)}, {"heads": (99,)}, {"heads": (4,)}], ids=repr)
def test_layers_and_heads_that_the_model_does_not_have(
    make: Callable[..., Intervention], words: dict[str, Any]
) -> None:
    model = golden("llada").model  # 3 layers, 4 heads
    hooks = [len(part._forward_pre_hooks) for part in model.module.modules()]
    with pytest.raises(InterventionError, match=r"Expected (layers from 0 to 2|heads from 0 to 3), which Llama"):
        sk.intervene(model, make(**words)).__enter__()
    with pytest.raises(InterventionError):
        sk.trace(model, torch.arange(10, 16)[None], length=4, interventions=[make(**words)])
    assert hooks == [len(part._forward_pre_hooks) for part in model.module.modules()]


def test_the_window_names_layers_too() -> None:
    with pytest.raises(InterventionError, match="layers"):
        sk.Window(3, layers=("a",))  # type: ignore[arg-type]
    with (
        pytest.raises(InterventionError, match="Expected layers from"),
        sk.intervene(golden("llada").model, sk.Window(3, layers=(3,))),
    ):
        pass


@pytest.mark.parametrize("words", [{"layers": (2,)}, {"heads": (4,)}], ids=repr)
def test_a_module_without_a_config_is_checked_at_the_end(words: dict[str, Any]) -> None:
    module = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(1, 5, 16)
    with (
        torch.inference_mode(),
        pytest.raises(InterventionError, match="choose among them"),
        sk.intervene(module, sk.MaskPositions((0,), **words)),
    ):
        module(x)
    with torch.inference_mode(), sk.intervene(module, sk.MaskPositions((0,), layers=(1,), heads=(3,))):
        module(x)


def test_observe_checks_its_layers() -> None:
    model = golden("llada").model
    for wrong in ([99], [0, 3]):
        with pytest.raises(CaptureError, match="Expected layers from 0 to 2"), sk.observe(model, layers=wrong):
            pass
    for wrong in ([-1], ["a"], [], "0"):
        with pytest.raises(CaptureError, match="layers"), sk.observe(model, layers=wrong):
            pass
    plain = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    with (
        pytest.raises(CaptureError, match="Expected layers from 0 to 0"),
        torch.inference_mode(),
        sk.observe(plain, layers=[1]),
    ):
        plain(torch.randn(1, 3, 16))


def test_only_modules_and_models_can_be_observed() -> None:
    for wrong in (None, 7, "tiny-llada", torch.ones(2)):
        with pytest.raises(CaptureError, match="Expected a torch module or a loaded model"), sk.observe(wrong):
            pass
        with pytest.raises(CaptureError, match="Expected a torch module"), sk.intervene(wrong, sk.MaskSinks(k=1)):
            pass


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sk.CutContext(math.nan, math.nan), lambda: sk.CutContext(0.0, math.nan), lambda: sk.CutContext(0, math.inf),
        lambda: sk.CutContext(False, True), lambda: sk.CutContext("0", "1"), lambda: sk.CutContext(-1, 2),
        lambda: sk.MaskRandom(k=1, seed=-1), lambda: sk.MaskRandom(k=1, seed=1.5), lambda: sk.MaskSinks(k=True),
        lambda: sk.MaskSinks(k=1, keep_self="no"), lambda: sk.MaskSinks(k=1, kinds="nice"),
        lambda: sk.MaskSinks(k=1, kinds=[]), lambda: sk.MaskSinks(k=1, kinds=["word", "verb"]),
        lambda: sk.MaskSinks(k=1, value_norm="short"), lambda: sk.MaskSinks(k=1, per="step"),
        lambda: sk.MaskSinks(k=1, score="mean"), lambda: sk.MaskSinks(k=1, score="per_row", rows="last"),
        lambda: sk.MaskSinks(k=1, above=0.3), lambda: sk.MaskSinks(k=1, below="strong"),
        lambda: sk.MaskSinks(k=1, above=sk.HeadShare(0.3, group="masked")), lambda: sk.MaskPositions((True,)),
        lambda: sk.MaskPositions((0,), since="third"), lambda: sk.MaskRandom(k=1, persist=1),
    ],
)  # fmt: skip
def test_settings_without_sense_or_effect(wrong: Callable[[], object]) -> None:
    with pytest.raises(InterventionError, match=r"^[^\n]*\.$"):
        wrong()


def _twice(run: Callable[[], object]) -> None:
    run()
    run()


def test_kinds_need_a_tokenizer_and_tokens() -> None:
    model = golden("llada").model
    assert model.tokenizer is None
    with (
        pytest.raises(InterventionError, match="Expected a model with a tokenizer"),
        sk.intervene(model, sk.ZeroValues(of=sk.MaskSinks(k=1, kinds="content"))),
    ):
        sk.decode(model, torch.arange(10, 16)[None], sk.Decode.llada(length=4, block=4, steps=4))
    spoken = sk.load("tiny-llada")
    ids = spoken.encode("Tom has 3.")
    with (
        pytest.raises(InterventionError, match="a decoder that says which tokens"),
        sk.intervene(spoken, sk.MaskSinks(k=1, kinds="content")),
    ):
        _twice(lambda: spoken.logits(ids))


def test_value_norms_need_values() -> None:
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with (
        pytest.raises(InterventionError, match="needs the values"),
        torch.inference_mode(),
        sk.intervene(module, sk.MaskSinks(k=1, value_norm="low")),
    ):
        _twice(lambda: module(x, x, x))


@pytest.mark.parametrize("positions", [(10,), (10, 99), (-11,)])
def test_positions_that_never_were(positions: tuple[int, ...]) -> None:
    model, settings = golden("llada").model, sk.Decode.llada(length=4, block=4, steps=4)
    with pytest.raises(InterventionError, match="among the 10 keys"), sk.intervene(model, sk.MaskPositions(positions)):
        sk.decode(model, torch.arange(10, 16)[None], settings)
    with sk.intervene(model, sk.MaskPositions((9, -10))):
        sk.decode(model, torch.arange(10, 16)[None], settings)


@pytest.mark.parametrize("maps", [((99, 0),), ((0, 4),), ((0, -1),), (("a", 0),), (0, 1), 7, ((0,),)], ids=repr)
def test_maps_that_do_not_exist(maps: Any) -> None:
    with pytest.raises(TraceError, match=r"maps|layers from 0 to 2|heads from 0 to 3"):
        sk.trace(golden("llada").model, torch.arange(10, 16)[None], length=4, keep=sk.Keep(maps=maps))


@pytest.mark.parametrize(
    "mask",
    [torch.ones(1, 3), torch.ones(6), torch.ones(2, 6), torch.full((1, 6), math.nan), torch.full((1, 6), 7), [[1] * 6],
     torch.full((1, 6), -math.inf)],
    ids=["short", "flat", "rows", "nan", "seven", "list", "additive"],
)  # fmt: skip
def test_attention_masks_that_are_none(mask: Any) -> None:
    model, ids = golden("llada").model, torch.arange(10, 16)[None]
    with pytest.raises(PromptError, match="Expected an attention mask"):
        model.logits(ids, mask)
    with pytest.raises(PromptError, match="Expected an attention mask"):
        sk.decode(model, ids, sk.Decode.llada(length=4, block=4, steps=4), attention_mask=mask)


def test_position_0_from_the_first_forward_leaves_row_0_without_a_key() -> None:
    """Row 0 of a causal model sees key 0 alone: with it hidden, attention gives that row 0, and nobody anything to it."""
    module = sk.load("tiny-llama").module
    outputs: list[torch.Tensor] = []
    hook = module.base_model.layers[0].self_attn.o_proj.register_forward_pre_hook(
        lambda _, args: outputs.append(args[0])
    )
    ids = torch.arange(10, 17)[None]
    try:
        with torch.inference_mode(), sk.intervene(module, sk.MaskPositions((0,))), sk.observe(module) as seen:
            logits = module(ids).logits
    finally:
        hook.remove()
    assert not outputs[0][0, 0].any() and bool(outputs[0][0, 1:].any(-1).all())
    assert bool(logits.isfinite().all())
    for received in seen.received:
        torch.testing.assert_close(received.sum((2, 3)), torch.full((1, 4), 6.0))  # 6 of 7 rows pay 1 in all
    with torch.inference_mode(), sk.intervene(module, sk.MaskPositions((0,), since="second"), record=True) as active:
        module(ids)
    assert not any(bool(masked.any()) for masked in active.masked)
