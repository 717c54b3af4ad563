"""Sinks of generations that really ran: the golden checkpoints of LLaDA and Dream, and a causal one made here."""

from pathlib import Path

import polars as pl
import pytest
import torch
from slow_heads import slow_head

from made_models import make_causal
from sinkscope.decoding.settings import Decode
from sinkscope.models import load
from sinkscope.sinks import HeadShare, Threshold
from sinkscope.tracing import Trace, trace
from sinkscope.tracing.heads import head_dynamics
from sinkscope.tracing.recorder import Keep
from sinkscope.tracing.sinks import find, histogram, sweep
from sinkscope.tracing.sinks import token_shares as shares

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = {"llada": Decode.llada(16, block=8, steps=16), "dream": Decode.dream(16, steps=16, temperature=0.0)}


@pytest.fixture(scope="module", params=["llada", "dream"])
def taken(request: pytest.FixtureRequest) -> Trace:
    model = load(GOLDEN / request.param)
    ids = torch.arange(3, 15)[None]
    kept = trace(model, ids, SETTINGS[request.param], keep=Keep(dtype=torch.float32, value_norms=True))
    assert isinstance(kept, Trace)
    return kept


def test_the_table_of_heads_equals_plain_loops(taken: Trace) -> None:
    rule = Threshold(3, unit="sum")
    table = head_dynamics(taken, rule)
    assert len(table) == 3 * 4
    for row in table.iter_rows(named=True):
        for name, value in slow_head(taken, rule, row["layer"], row["head"]).items():
            assert row[name] == (value if value is None else pytest.approx(value, rel=1e-3, abs=1e-3)), name
    assert (table["value_ratio"].drop_nulls() > 0).all()


def test_the_tables_agree_with_each_other(taken: Trace) -> None:
    sinks, heads = find(taken), head_dynamics(taken)
    assert len(sinks) > 0  # the golden weights attend peakily
    assert (heads["lives"] * heads["lifetime"]).sum() == pytest.approx(len(sinks))
    assert (heads["sinks"] * taken.steps).sum() == pytest.approx(len(sinks))
    steps_with_sink = sinks.select("step", "layer", "head").n_unique()
    assert steps_with_sink == pytest.approx((heads["presence"] * taken.steps).sum())
    at_3 = sweep(taken).filter((pl.col("epsilon") == 3) & (pl.col("unit") == "sum"))
    assert at_3["sinks"].item() == len(sinks)
    assert histogram(taken)["count"].sum() == at_3["keys"].item()
    assert shares(taken)["sinks"].sum() == len(sinks)
    assert shares(taken)["share"].sum() == pytest.approx(1)


def test_the_trace_answers_itself_and_its_mask_is_known_without_a_tokenizer(taken: Trace) -> None:
    assert taken.sinks(Threshold(3, unit="sum")).equals(find(taken))
    assert taken.heads().equals(head_dynamics(taken))
    assert taken.tokens().equals(shares(taken))
    assert set(taken.tokens()["kind"]) == {"mask", "unknown"}


def test_an_autoregressive_generation(tmp_path: Path) -> None:
    model = load(make_causal(tmp_path / "causal"))
    kept = trace(model, torch.arange(3, 12)[None], Decode.autoregressive(8))
    assert isinstance(kept, Trace)
    table = find(kept, HeadShare(0.3))
    # No key is a sink before it exists, and each row's shares are really shares.
    assert (table["position"] < 9 + table["step"]).all()
    assert table["score"].max() <= 1.001
    assert len(table) > 0
    heads = head_dynamics(kept)
    assert heads["unit"].unique().to_list() == ["uniform"]
    assert (heads["entropy_relative"] <= 1.0001).all()
    assert heads["split_share"].null_count() == len(heads)
    assert histogram(kept)["count"].sum() == 2 * 4 * sum(range(9, 9 + kept.steps))
