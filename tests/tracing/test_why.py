"""Why a key is a sink, and the channels that a trace keeps: parts that add up to what the model computed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from golden_sets import golden, newer
from made_models import make_causal, make_llada
from sinkscope.errors import TraceError
from sinkscope.tracing.why import rotary_of

PROMPT = torch.randint(8, 60, (1, 7), generator=torch.Generator().manual_seed(1))


def traced(name: str, tmp_path: Path, keep: sk.Keep | None = None) -> tuple[sk.Model, sk.Trace]:
    settings = {
        "llada": sk.Decode.llada(length=8, block=4, steps=4), "dream": sk.Decode.dream(length=8, steps=4, temperature=0.0),
        "sdar": sk.Decode.sdar(length=8, block=4, steps=4, temperature=0.0), "causal": sk.Decode.autoregressive(length=8),
    }[name]  # fmt: skip
    model = (
        sk.load(make_causal(tmp_path))
        if name == "causal"
        else newer(name).model
        if name == "sdar"
        else golden(name).model
    )
    made: Any = sk.trace(model, PROMPT, settings, keep=keep or sk.Keep(dtype=torch.float32))
    return model, made


@pytest.mark.parametrize("name", ["llada", "dream", "sdar", "causal"])
def test_the_parts_add_up_to_the_score(name: str, tmp_path: Path) -> None:
    model, trace = traced(name, tmp_path)
    for layer, head in ((0, 1), (1, 2)):
        found = trace.why(step=2, layer=layer, head=head, key=3, model=model)
        lead = found.score - found.matched_score
        assert found.by_norm + found.by_angle == pytest.approx(lead, abs=1e-4)
        assert found.sources["score"].sum() == pytest.approx(found.score, abs=1e-4)
        assert found.sources["matched"].sum() == pytest.approx(found.matched_score, abs=1e-4)
        assert found.sources["source"].to_list() == ["embedding", *(["attention 0", "mlp 0"] if layer else []), "bias"]
        assert found.state == "prompt" and 3 not in found.matched and all(key < 7 for key in found.matched)
        assert found.received == pytest.approx(float(trace.scores()[2, layer, head, 3])) and str(found).startswith(
            "Key 3"
        )


@pytest.mark.parametrize("name", ["llada", "dream", "sdar", "causal"])
def test_what_a_trace_keeps_of_a_head_is_what_why_computes(name: str, tmp_path: Path) -> None:
    """Of the heads with maps: the four numbers of every key, and the split into norm and angle that follows from them."""
    model, trace = traced(name, tmp_path, sk.Keep(dtype=torch.float32, maps=((1, 2), (0, 1))))
    trace.save(tmp_path / "kept.safetensors")
    assert torch.equal(sk.Trace.load(tmp_path / "kept.safetensors").reasons, trace.reasons)
    assert trace.reasons.shape == (2, trace.steps, 4, trace.positions) and trace.select(layers=[1]).reasons is None
    for (slot, (layer, head)), step in itertools.product(enumerate(trace.map_heads), (0, trace.steps - 1)):
        found, kept = trace.why(step, layer, head, 3, model=model), trace.reasons[slot, step].double()
        others = list(found.matched)
        expected = [found.score, found.key_norm, found.content, found.value_norm]
        assert kept[:, 3].tolist() == pytest.approx(expected, abs=1e-4)
        matched = [found.matched_score, found.matched_key_norm, found.matched_content, found.matched_value_norm]
        assert kept[:, others].mean(1).tolist() == pytest.approx(matched, abs=1e-4)
        states = states_of(model, trace, step, layer, head)  # the definition, query by query
        lengths, norms, cosines = states
        by_norm = lengths * (norms[3] - norms[others]) * (cosines[:, [3]] + cosines[:, others]) / 2
        by_angle = lengths * (cosines[:, [3]] - cosines[:, others]) * (norms[3] + norms[others]) / 2
        assert [found.by_norm, found.by_angle] == pytest.approx(
            [float(by_norm.mean()), float(by_angle.mean())], abs=1e-4
        )


def states_of(model: sk.Model, trace: sk.Trace, step: int, layer: int, head: int) -> tuple[torch.Tensor, ...]:
    """|q|/√d [query, 1], |k| [key] and cosines [query, key] of one head, from the step's canvas computed once more."""
    from sinkscope.attention.call import EachCall
    from sinkscope.attention.patch import patched
    from sinkscope.tracing.why import _canvas

    ids, queries = _canvas(trace, step)
    calls: dict[int, Any] = {}
    with torch.inference_mode(), patched(model.module, EachCall(lambda call: calls.update({call.layer: call}))):
        model.logits(ids, block=trace.settings.block if trace.settings.block_causal else None)
    call = calls[layer]
    q, k = call.q[0, head, queries], call.k[0, head * call.k.shape[1] // call.q.shape[1]]
    cosines = torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
    return q.norm(dim=-1)[:, None] * q.shape[-1] ** -0.5, k.norm(dim=-1), cosines


def test_reasons_do_not_depend_on_padding_or_batch() -> None:
    model, keep = sk.load("tiny-llada"), sk.Keep(dtype=torch.float32, maps=((2, 1),))
    texts = ["Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?", "1 + 2 ="]
    settings = sk.Decode.llada(length=8, block=8, steps=4)
    for text, padded in zip(texts, sk.trace(model, texts, settings, keep=keep), strict=True):
        alone = sk.trace(model, text, settings, keep=keep)
        assert torch.allclose(padded.reasons, alone.reasons, atol=1e-3)


def test_a_model_whose_positions_cannot_be_taken_off_keeps_the_rest(tmp_path: Path) -> None:
    model = sk.load(make_llada(tmp_path / "made"))
    module: Any = model.module
    embedding, dropped = module.model.rotary_emb, sk.Keep(maps=((0, 0),))
    module.model.rotary_emb = None
    assert rotary_of(model, 0, sk.Decode.llada(length=4, block=4, steps=4), 11) is None
    module.model.rotary_emb = embedding
    assert rotary_of(model, 0, sk.Decode.llada(length=4, block=4, steps=4), 11) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.tracing.recorder.rotary_of", lambda *_: None)
        trace: Any = sk.trace(model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4), keep=dropped)
    assert bool(trace.reasons[:, :, 2].isnan().all()) and bool(trace.reasons[:, :, [0, 1, 3]].isfinite().all())


def test_what_is_made_by_one_part_alone_is_found(tmp_path: Path) -> None:
    """With nothing written by layer 0, keys of layer 1 are the embedding's; and without rotation, content is all."""
    model = sk.load(make_llada(tmp_path / "made", theta=1e30))
    module: Any = model.module
    with torch.no_grad():
        module.model.layers[0].self_attn.o_proj.weight.zero_()
        module.model.layers[0].mlp.down_proj.weight.zero_()
    trace: Any = sk.trace(model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4), keep=sk.Keep(dtype=torch.float32))
    found = trace.why(1, 1, 0, 2, model=model)
    scores = dict(zip(found.sources["source"], found.sources["score"], strict=True))
    assert scores["embedding"] == pytest.approx(found.score, abs=1e-5) and scores["attention 0"] == scores["mlp 0"] == 0
    # The first pair of dimensions turns at any theta: without it nothing but content is left.
    with torch.no_grad():
        for part in ("q_proj", "k_proj"):
            weight = getattr(module.model.layers[1].self_attn, part).weight
            weight.view(4, 8, -1)[:, [0, 4]] = 0.0
    trace = sk.trace(model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4), keep=sk.Keep(dtype=torch.float32))
    found = trace.why(1, 1, 0, 2, model=model)
    assert found.content == pytest.approx(found.score, abs=1e-4) and found.value_norm > 0


def test_a_longer_key_is_told_from_one_that_is_nearer(tmp_path: Path) -> None:
    """Doubling one head's keys doubles both parts; the cosines stay."""
    model, trace = traced("llada", tmp_path)
    module: Any = model.module
    before = trace.why(1, 0, 0, 2, model=model)
    weight = module.model.layers[0].self_attn.k_proj.weight
    with torch.no_grad():
        weight.mul_(2)
        after = trace.why(1, 0, 0, 2, model=model)
        weight.div_(2)
    assert after.key_norm == pytest.approx(2 * before.key_norm) and after.cosine == pytest.approx(
        before.cosine, abs=1e-5
    )
    assert after.by_norm == pytest.approx(2 * before.by_norm, abs=1e-4)


def test_what_cannot_be_computed_again_is_refused(tmp_path: Path) -> None:
    model, trace = traced("llada", tmp_path)
    for wrong in (
        {"step": 9},
        {"layer": 9},
        {"head": -1},
        {"key": 99},
        {"key": 1.0},
        {"model": None},
        {"model": golden("dream").model},
    ):
        with pytest.raises(TraceError, match="Expected"):
            trace.why(**{"step": 0, "layer": 0, "head": 0, "key": 0, "model": model, **wrong})
    changed: Any = sk.trace(
        model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4), interventions=[sk.MaskSinks(k=1)]
    )
    with pytest.raises(TraceError, match="without interventions"):
        changed.why(0, 0, 0, 0, model=model)


@pytest.mark.parametrize("name", ["llada", "sdar", "causal"])
def test_kept_channels_are_the_largest(name: str, tmp_path: Path) -> None:
    model, trace = traced(name, tmp_path, sk.Keep(dtype=torch.float32, channels=3))
    seen: dict[tuple[int, int], Any] = {}

    def keep(activation: torch.Tensor, context: sk.HookContext) -> None:
        if context.kind == "denoise":
            seen[context.step, context.layer] = activation[0].clone(), context.columns

    with sk.hook(model, "resid_post", keep):
        again: Any = sk.trace(model, PROMPT, trace.settings, keep=sk.Keep(dtype=torch.float32, channels=3))
    assert trace.channels is not None and torch.equal(again.channel_values, trace.channel_values)
    for (step, layer), (state, columns) in seen.items():
        order = state.square().sum(0).argsort(descending=True)[:3]
        assert trace.channels[step, layer].tolist() == order.tolist()
        assert torch.equal(trace.channel_values[step, layer][:, columns], state[:, order].mT)
    trace.save(tmp_path / "t.safetensors")
    assert torch.equal(sk.Trace.load(tmp_path / "t.safetensors").channels, trace.channels)
    assert trace.select(layers=[1]).channels.shape[1] == 1


def test_a_planted_channel_is_the_outlier_of_every_layer(tmp_path: Path) -> None:
    model = sk.load(make_llada(tmp_path / "made"))
    module: Any = model.module
    with torch.no_grad():
        module.model.embed_tokens.weight[:, 7] = 40.0
    trace: Any = sk.trace(model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4), keep=sk.Keep(channels=2))
    table = trace.outliers()
    for layer in range(2):
        first = table.filter(table["layer"] == layer).row(0, named=True)
        assert (
            first["channel"] == 7
            and first["steps"] == 1.0
            and max(first["at_sinks"] or 0, first["elsewhere"] or 0) > 30
        )
    others = table.filter(table["channel"] != 7).select("at_sinks", "elsewhere").fill_null(0)
    assert len(others) and max(others.max().row(0)) < 10  # and no other is made out to be one
    with pytest.raises(TraceError, match="channels=8"):
        sk.trace(model, PROMPT, sk.Decode.llada(length=4, block=4, steps=4)).outliers()  # type: ignore[union-attr]
    for wrong in (-1, 1.5, True):
        with pytest.raises(TraceError):
            sk.Keep(channels=wrong)
