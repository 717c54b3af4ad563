"""Averages of maps: over steps, before and after the softmax, and against distance."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import golden
from made_models import make_causal
from sinkscope.errors import BudgetError, TraceError

D = sk.Decode
IDS = torch.tensor([[5, 6, 7, 8, 9]])
SETTINGS = [
    D.llada(length=8, block=4, steps=8),
    D.parallel(length=8, block=4, threshold=0.6, cache="dual"),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_means_are_those_of_what_hooks_see(settings: sk.Decode, tmp_path: Path) -> None:
    model = golden("llada").model
    rows: dict[tuple[str, int, int], list[Tensor]] = defaultdict(list)

    def keep(tensor: Tensor, context: sk.HookContext) -> None:
        if context.kind == "denoise":
            for place, row in enumerate(tensor[0].transpose(0, 1), context.columns.start):
                rows[context.place, context.layer, place].append(row)

    with sk.hook(model, ["scores", "pattern"], keep):
        sk.decode(model, IDS, settings)
    trace = sk.trace(model, IDS, settings, keep=sk.Keep(maps="all"))
    trace = sk.Trace.load((trace[0] if isinstance(trace, list) else trace).save(tmp_path / "maps.trace"))
    layers, heads, positions = trace.layers, trace.heads_count, trace.positions
    for of in ("pattern", "scores"):
        found = trace.mean_map(of=of)
        assert found.shape == (layers, heads, positions, positions)
        for layer in range(layers):
            for query in range(positions):
                seen = rows[of, layer, query]
                if seen:
                    expected = torch.stack(seen).mean(0)
                    torch.testing.assert_close(found[layer, :, query], expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(trace.mean_map(1)[2], trace.mean_map(1, 2))
    assert torch.equal(trace.mean_map(head=2)[1], trace.mean_map(1, 2))


def test_distances_are_those_of_a_plain_loop() -> None:
    trace = sk.trace(golden("llada").model, [5, 6, 7, 8, 9], SETTINGS[1], keep=sk.Keep(maps=((1, 2), (0, 1))))
    assert trace.maps is not None
    given: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for slot, (layer, head) in enumerate(trace.map_heads):
        for step in range(trace.steps):
            for query, row in enumerate(trace.maps[slot, step].tolist()):
                for key, weight in enumerate(row if any(row) else []):
                    given[layer, head, key - query].append(weight)
    found = trace.by_distance()
    assert found["layer"].to_list()[0] == 0 and found.height == len(given)
    for layer, head, distance, attention, _, pairs in found.iter_rows():
        weights = given[layer, head, distance]
        assert pairs == len(weights) and attention == pytest.approx(sum(weights) / pairs)
    assert found.group_by("layer", "head").agg(total=found["share"].sum() / 2)["total"].to_list() == pytest.approx(
        [1, 1]
    )
    assert trace.by_distance(1, 2).height == found.height / 2


def test_a_causal_head_gives_nothing_to_later_keys(tmp_path: Path) -> None:
    model = sk.load(make_causal(tmp_path / "causal", eos_token_id=2, pad_token_id=0))
    trace = sk.trace(model, [5, 6, 7, 8], length=6, keep=sk.Keep(maps="all"))
    found = trace.by_distance()
    assert found["distance"].max() == 0 and found["distance"].min() == 2 - trace.positions
    scores, pattern = trace.mean_map(0, 0, of="scores"), trace.mean_map(0, 0)
    later = torch.ones_like(pattern, dtype=torch.bool).triu(1)
    # The last token is written and never read: no row of it was computed.
    computed = slice(0, int((pattern.sum(-1) > 0).sum()))
    assert torch.equal(scores[computed].isnan(), later[computed])
    torch.testing.assert_close(scores[computed].nan_to_num(-torch.inf).softmax(-1), pattern[computed])


def test_memory_is_said_first() -> None:
    model = golden("llada").model
    with pytest.raises(BudgetError, match=r"of it for 12 maps"):
        sk.trace(model, IDS, SETTINGS[0], keep=sk.Keep(maps="all", budget=1000))


@pytest.mark.parametrize(
    ("keep", "words", "said"),
    [
        (sk.Keep(), {}, r'record it with keep=sk.Keep\(maps="all"\)'),
        (sk.Keep(maps=((0, 1), (1, 2))), {}, "name a layer and a head"),
        (sk.Keep(maps=((0, 1),)), {"layer": 1}, r"\(0.1\), got layer 1"),
        (sk.Keep(maps=((0, 1),)), {"of": "logits"}, 'of="scores"'),
    ],
)
def test_what_was_not_kept_is_said(keep: sk.Keep, words: dict[str, object], said: str) -> None:
    trace = sk.trace(golden("llada").model, [5, 6, 7], SETTINGS[0], keep=keep)
    with pytest.raises(TraceError, match=said):
        trace.mean_map(**words)  # type: ignore[arg-type]


def test_figures_of_a_trace_with_maps(tmp_path: Path) -> None:
    from sinkscope.report.printing import figures

    trace = sk.trace(sk.load("tiny-llada"), "Tom has 3 apples.", length=8, steps=4, keep=sk.Keep(maps="all"))
    drawn = [path.name for path in figures(trace.save(tmp_path / "one.trace"), tmp_path / "figures", "png")]
    assert {"mean-map-tiny-llada.png", "distance-tiny-llada.png"} <= set(drawn)


def test_the_command_keeps_all_maps_and_says_the_memory_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sinkscope.cli.app import run

    file = tmp_path / "one.trace"
    words = ["--length", "8", "--steps", "4", "-o", str(file)]
    assert run(["trace", "tiny-llada", "Tom has 3 apples.", "--map", "all", *words]) == 0
    assert "MB of memory (full form, maps of 24 heads)" in capsys.readouterr().err
    assert sk.Trace.load(file).mean_map().shape[:2] == (6, 4)


def test_a_cache_has_the_names_of_transformerlens() -> None:
    model = golden("llada").model
    trace = sk.trace(model, [5, 6, 7], SETTINGS[0], keep=sk.Keep(maps="all"))
    cache = trace.to_cache(-1)
    assert list(cache) == [f"blocks.{layer}.attn.hook_pattern" for layer in range(trace.layers)]
    assert trace.maps is not None and torch.equal(cache["blocks.1.attn.hook_pattern"][0, 2], trace.maps[1 * 4 + 2, -1])
    assert len(trace.str_tokens(0)) == trace.positions
    with pytest.raises(TraceError, match="a step from 0 to 7"):
        trace.to_cache(8)
    with pytest.raises(TraceError, match="heads all kept"):
        sk.trace(model, [5, 6, 7], SETTINGS[0], keep=sk.Keep(maps=((0, 1),))).to_cache(0)
