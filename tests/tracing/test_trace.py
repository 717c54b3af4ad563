"""What a trace holds, that it survives its file, and what it says to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as sk
from golden_sets import golden
from made_models import save_tokenizer
from sinkscope.errors import BudgetError, TraceError
from sinkscope.models import Model
from sinkscope.tracing.files import FORMAT
from sinkscope.tracing.recorder import planned_form
from sinkscope.tracing.trace import SHAPES

SETTINGS = sk.Decode.llada(length=8, block=4, steps=8)


def prompt(family: str = "llada") -> torch.Tensor:
    return golden(family).tensor("forward.input_ids")[:, :7].clamp(max=100)


def made(**keep: object) -> sk.Trace:
    return sk.trace(golden("llada").model, prompt(), SETTINGS, keep=sk.Keep(**keep))


def same(one: sk.Trace, two: sk.Trace) -> bool:
    tensors = ((getattr(one, name), getattr(two, name)) for name in SHAPES)
    equal = all(
        (a is None) == (b is None) and (a is None or torch.equal(a.nan_to_num(), b.nan_to_num())) for a, b in tensors
    )
    return equal and one.settings == two.settings and one.vocabulary == two.vocabulary and one.model == two.model


@pytest.fixture
def causal(tmp_path: Path) -> Model:
    config = LlamaConfig(
        vocab_size=19, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=18, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(tmp_path / "causal"))
    save_tokenizer(tmp_path / "causal", eos_token="<e>")
    return sk.load(tmp_path / "causal")


def test_groups_and_counts_follow_the_canvas() -> None:
    model, trace = golden("llada").model, made(dtype=torch.float32)
    for step in range(trace.steps):
        canvas = trace.canvas[step]
        masked = int((canvas == model.mask_id).sum())
        assert trace.queries[step].tolist() == [masked, 8 - masked, 7]
        for group in range(3):
            total = trace.received[step, :, :, group].sum(-1)
            torch.testing.assert_close(
                total, torch.full_like(total, float(trace.queries[step, group])), atol=1e-3, rtol=0
            )
    assert trace.blocks[:, 0].tolist() == [7] * 4 + [11] * 4
    committed = trace.committed_at[7:]
    assert sorted(committed.tolist()) == list(range(8)) and bool((trace.committed_at[:7] == -1).all())
    for position, step in enumerate(committed.tolist(), start=7):
        assert trace.canvas[step, position] == model.mask_id and trace.canvas[step + 1, position] != model.mask_id
        assert 0 < float(trace.confidence[step, position]) <= 1


def test_scores_by_group_and_unit() -> None:
    trace = made(dtype=torch.float32)
    total = trace.scores("masked") + trace.scores("committed") + trace.scores("prompt")
    torch.testing.assert_close(trace.scores(), total)
    torch.testing.assert_close(trace.scores(unit="percent").sum(-1), torch.full((8, 3, 4), 100.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(trace.scores("masked", "mean")[2], trace.scores("masked")[2] / trace.queries[2, 0])


@pytest.mark.parametrize("keep", [{}, {"dtype": torch.float32, "value_norms": True, "hidden_norms": True, "maps": ((1, 2),)},
                                  {"form": "summary"}], ids=["half", "everything", "summary"])  # fmt: skip
def test_a_file_gives_back_what_was_saved(tmp_path: Path, keep: dict[str, object]) -> None:
    trace = made(**keep)
    path = trace.save(tmp_path / "deep" / "one.trace")
    assert same(sk.Trace.load(path), trace)
    assert [file.name for file in path.parent.iterdir()] == ["one.trace"]


def test_norms_and_maps_against_the_model() -> None:
    model, ids = golden("dream").model, golden("dream").tensor("forward.input_ids")
    settings = sk.Decode.dream(length=2, steps=2, algorithm="entropy", temperature=0.0, top_p=None, top_k=None)
    keep = sk.Keep(dtype=torch.float32, value_norms=True, hidden_norms=True, maps=((0, 3), (2, 1)))
    trace = sk.trace(model, ids, settings, keep=keep)
    canvas = trace.canvas[0][None]
    model.module.set_attn_implementation("eager")
    out = model.module(canvas, is_causal=False, output_attentions=True, output_hidden_states=True, use_cache=True)
    model.module.set_attn_implementation("sdpa")
    for slot, (layer, head) in enumerate(trace.map_heads):
        torch.testing.assert_close(trace.maps[slot, 0], out.attentions[layer][0, head], atol=1e-5, rtol=1e-4)
    for layer in range(trace.layers):
        values = out.past_key_values.layers[layer].values[0].norm(dim=-1)
        torch.testing.assert_close(trace.value_norms[0, layer], values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            trace.hidden_norms[0, layer], out.hidden_states[layer][0].norm(dim=-1), atol=1e-4, rtol=1e-4
        )


def test_summary_form_is_exact_at_the_top_and_keeps_the_total() -> None:
    full, summary = made(dtype=torch.float32), made(dtype=torch.float32, form="summary")
    assert summary.received is None and summary.form == "summary"
    torch.testing.assert_close(summary.layer_mean, full.received.mean(2), atol=1e-4, rtol=1e-3)
    assert torch.equal(summary.scores("masked").argmax(-1), full.scores("masked").argmax(-1))
    torch.testing.assert_close(summary.scores("masked").amax(-1), full.scores("masked").amax(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(summary.scores().sum(-1), full.scores().sum(-1), atol=1e-2, rtol=1e-3)
    rule = sk.Threshold(4.0, unit="sum")
    marked = [
        set(trace.sinks(rule).select("step", "layer", "head", "position").iter_rows()) for trace in (full, summary)
    ]
    assert marked[0] == marked[1]


def test_the_budget_is_kept_and_refused_with_advice() -> None:
    model, cells = golden("llada").model, 8 * 3 * 3  # steps, layers, groups
    full = cells * 4 * 1000 * 4
    assert planned_form(model, 1, 1000, SETTINGS, sk.Keep(budget=full)) == ("full", full)
    form, needed = planned_form(model, 1, 1000, SETTINGS, sk.Keep(budget=full - 1))
    assert form == "summary" and needed == cells * (1000 * 4 + 4 * 16 * (4 + 4))
    with pytest.raises(BudgetError, match="form='summary'"):
        planned_form(model, 1, 1000, SETTINGS, sk.Keep(form="full", budget=full - 1))
    with pytest.raises(BudgetError, match="fewer prompts, steps or maps"):
        made(budget=1_000)


def test_a_part_of_a_trace() -> None:
    trace = made()
    part = trace.select(steps=slice(2, 6), layers=[0, 2], heads=slice(1, 3))
    assert torch.equal(part.scores(), trace.scores()[2:6][:, [0, 2]][:, :, 1:3])
    assert torch.equal(part.canvas, trace.canvas[2:7]) and part.steps == 4
    assert part.sinks().height > 0
    for steps in (slice(0, 8, 2), slice(5, 5), slice(90, 99)):
        with pytest.raises(TraceError, match="slice of steps"):
            trace.select(steps=steps)


def test_a_batch_gives_each_row_its_own_trace() -> None:
    model, ids = golden("llada").model, prompt()
    batch = torch.cat([ids, torch.cat([torch.full((1, 3), model.pad_id), ids[:, 3:]], 1)])
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    keep = sk.Keep(dtype=torch.float32)
    together = sk.trace(model, batch, SETTINGS, attention_mask=mask, keep=keep)
    for row, alone in zip(together, (ids, ids[:, 3:]), strict=True):
        single = sk.trace(model, alone, SETTINGS, keep=keep)
        torch.testing.assert_close(row.received, single.received, atol=1e-4, rtol=1e-3)
        assert torch.equal(row.canvas, single.canvas) and row.prompt_length == single.prompt_length
        assert torch.equal(row.blocks, single.blocks) and torch.equal(row.committed_at, single.committed_at)


def test_autoregressive_traces_have_the_same_shape(causal: Model) -> None:
    trace = sk.trace(
        causal, "Tom has two apples . the sum", length=6, steps=99, block=3, keep=sk.Keep(dtype=torch.float32)
    )
    assert trace.causal and trace.prompt_length == 7
    assert trace.queries[0].tolist() == [0, 0, 7] and trace.queries[1:].tolist() == [[0, 1, 0]] * (trace.steps - 1)
    for step in range(trace.steps):
        assert not trace.scores()[step, :, :, 7 + step :].any()
    assert trace.sinks().columns[:4] == ["step", "layer", "head", "position"]
    rows = sk.trace(causal, ["Tom has two apples . the sum", "one more"], length=6, keep=sk.Keep(dtype=torch.float32))
    torch.testing.assert_close(rows[0].received, trace.received, atol=1e-4, rtol=1e-3)
    assert rows[1].prompt_length == 2 and rows[1].prompt == "one more"


def test_caches_are_traced_too() -> None:
    model = golden("llada").model
    for cache in ("prefix", "dual"):
        settings = sk.Decode.parallel(length=8, block=4, threshold=0.5, cache=cache)
        trace = sk.trace(model, prompt(), settings, keep=sk.Keep(dtype=torch.float32))
        assert torch.equal(trace.canvas[-1], sk.decode(model, prompt(), settings).tokens[0])
        queries = trace.queries.sum(1).float()[:, None, None]
        torch.testing.assert_close(trace.scores().sum(-1), queries.expand(-1, 3, 4), atol=1e-3, rtol=0)


def test_guidance_counts_the_conditional_half_only() -> None:
    settings = sk.Decode.llada(length=8, block=4, steps=8, guidance=1.5)
    trace = sk.trace(golden("llada").model, prompt(), settings, keep=sk.Keep(dtype=torch.float32))
    torch.testing.assert_close(trace.scores().sum(-1), torch.full((8, 3, 4), 15.0), atol=1e-3, rtol=0)


def test_bad_files(tmp_path: Path) -> None:
    path = made().save(tmp_path / "good.trace")
    whole = path.read_bytes()
    (tmp_path / "cut.trace").write_bytes(whole[: len(whole) // 2])
    save_file({"x": torch.zeros(2)}, tmp_path / "foreign.trace")
    save_file({"x": torch.zeros(2)}, tmp_path / "newer.trace", {"format": FORMAT, "schema": "99", "header": "{}"})
    save_file(
        {"x": torch.zeros(2)}, tmp_path / "damaged.trace", {"format": FORMAT, "schema": "2", "header": json.dumps({})}
    )
    for name, message in (("cut", "not a whole trace"), ("foreign", "another kind"), ("newer", "update sinkscope"),
                          ("damaged", "needs the field"), ("absent", "there is none")):  # fmt: skip
        with pytest.raises(TraceError, match=message):
            sk.Trace.load(tmp_path / f"{name}.trace")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="nothing was left behind"):
        made().save(tmp_path / "file" / "one.trace")


def test_bad_words() -> None:
    trace = made()
    with pytest.raises(TraceError, match="group of queries"):
        trace.scores("someone")
    with pytest.raises(TraceError, match="unit"):
        trace.scores(unit="percents")
    with pytest.raises(TraceError, match="form"):
        sk.Keep(form="small")  # type: ignore[arg-type]


def test_nan_scores_are_refused() -> None:
    trace = made(dtype=torch.float32)
    trace.received[3, 1, 0, 0, 2] = torch.nan
    with pytest.raises(TraceError, match="NaN"):
        trace.sinks()
