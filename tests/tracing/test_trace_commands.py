"""`sinkscope trace` and `sinkscope sinks`, end to end, on the golden checkpoints and on a causal one made here."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as sk
from golden_sets import HERE
from made_models import save_tokenizer
from sinkscope.cli.app import run

IDS = f"@{Path(__file__).with_name('ids.json')}"  # the golden checkpoints have no tokenizer


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_golden_checkpoints(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.trace"
    assert run(["trace", str(HERE / family), IDS, "--length", "8", "--steps", "8", "-o", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 8
    parquet = tmp_path / "all.parquet"
    words = ["sinks", str(file), "--epsilon", "2", "--unit", "sum", "--top", "3", "--parquet", str(parquet), "--json"]
    assert run(words) == 0
    said = json.loads(capsys.readouterr().out)
    expected = sk.Trace.load(file).sinks(sk.Threshold(2, unit="sum"))
    assert said["count"] == expected.height > 0 and said["unit"] == "sum" and len(said["strongest"]) == 3
    assert pl.read_parquet(parquet).equals(expected)
    assert run(["sinks", str(file)]) == 0
    assert "unit sum" in capsys.readouterr().out.replace("\n", " ")


def test_a_causal_checkpoint_and_hostile_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = LlamaConfig(
        vocab_size=19, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=18, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(tmp_path / "causal"))
    save_tokenizer(tmp_path / "causal", eos_token="[red]\x1b[31m<e>")
    file = tmp_path / "deep" / "one.trace"
    assert run(["trace", str(tmp_path / "causal"), "Tom has two apples", "--length", "6", "-o", str(file)]) == 0
    assert run(["sinks", str(file), "--epsilon", "0.1", "--unit", "uniform"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "strongest" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sinks", "nowhere.trace"], "there is none"),
        (["sinks", str(HERE / "llada" / "golden.safetensors")], "another kind"),
        (["trace", str(HERE / "llada"), " "], "empty"),
        (["trace", str(HERE / "llada"), "hello"], "without a tokenizer"),
        (["trace", str(HERE / "llada"), IDS, "--map", "x"], "LAYER.HEAD"),
        (["trace", str(HERE / "llada"), IDS, "--length", "8", "--form", "full", "--budget", "0"], "needs"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--epsilon", "-1"], ["--unit", "metres"], ["--group", "nobody"], ["--rule", "none"]]
)
def test_bad_rules(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.trace"
    assert run(["trace", str(HERE / "llada"), IDS, "--length", "4", "--block", "4", "-o", str(file), "--json"]) == 0
    capsys.readouterr()
    assert run(["sinks", str(file), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
