"""Activations as shards: what a hook sees, with its step, position, state and token, whole after an interruption."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from sinkscope.errors import ReadingError

PROMPTS = ["Tom has 3 apples.", "Ann has 12 pears. How many are left?", "1 + 2 ="]
SETTINGS = sk.Decode.llada(length=8, block=4, steps=8)
WORDS: dict[str, Any] = {"settings": SETTINGS}


def whole(found: Any) -> dict[str, torch.Tensor]:
    shards = list(found)
    return {name: torch.cat([shard[name] for shard in shards if name in shard]) for name in shards[0]}


@pytest.fixture(scope="module")
def model() -> sk.Model:
    return sk.load("tiny-llada")


def test_vectors_and_what_stands_beside_them(model: sk.Model, tmp_path: Path) -> None:
    found = sk.activations(
        model, PROMPTS, layers=[1, 3], out=tmp_path, batch=2, shard=100_000, dtype=torch.float32, **WORDS
    )
    assert len(found) > 2
    table = whole(found)
    assert set(table) == {"layers.1.resid_post", "layers.3.resid_post", "prompt", "step", "position", "state", "token"}
    assert len({len(values) for values in table.values()}) == 1
    seen: dict[tuple[int, int], torch.Tensor] = {}
    with sk.hook(
        model,
        ["layers.1.resid_post", "layers.3.resid_post"],
        lambda x, c: seen.__setitem__((c.step, c.layer), x[0].clone()),
    ):
        trace = sk.trace(model, PROMPTS[1], SETTINGS)
    for step in range(trace.steps):
        here = (table["prompt"] == 1) & (table["step"] == step)
        assert table["token"][here].tolist() == trace.canvas[step].tolist()
        assert table["position"][here].tolist() == list(range(trace.positions))
        assert bool(((table["state"][here] == 0) == (trace.canvas[step] == trace.mask_id)).all())
        for layer in (1, 3):
            assert torch.allclose(table[f"layers.{layer}.resid_post"][here], seen[step, layer], atol=1e-4)


def test_stopped_and_resumed_gives_the_same(model: sk.Model, tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "layers": [0],
        "where": "z",
        "batch": 1,
        "shard": 50_000,
        "steps": (0.0, 0.5),
        "at": "masked",
        **WORDS,
    }
    expected = whole(sk.activations(model, PROMPTS, out=tmp_path / "a", **words))
    assert int(expected["step"].max()) == 3 and set(expected["state"].tolist()) == {0}

    def stops() -> Any:
        yield from PROMPTS[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sk.activations(model, stops(), out=tmp_path / "b", **words)
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "b").glob("*.safetensors")}
    assert first
    again = whole(sk.activations(model, iter(PROMPTS), out=tmp_path / "b", **words))
    assert all(path.stat().st_mtime_ns == time for path, time in first.items())
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    with pytest.raises(ReadingError, match="places differ"):
        sk.activations(model, PROMPTS, out=tmp_path / "b", **{**words, "layers": [1]})
    with pytest.raises(ReadingError, match="other prompts"):
        sk.activations(model, PROMPTS[::-1], out=tmp_path / "b", **words)
    for wrong in ({"at": "sinks"}, {"steps": (1,)}, {"batch": 0}, {"shard": 0}):
        with pytest.raises(ReadingError):
            sk.activations(model, PROMPTS, out=tmp_path / "c", **{**words, **wrong})


def test_the_example_reconstructs_held_out_vectors_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "tiny-llada", "--prompts", "12", "--epochs", "2", "--out", str(tmp_path / "vectors")]
    monkeypatch.setattr(sys, "argv", ["train_sae.py", *words])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "train_sae.py"), run_name="__main__")
    left = re.findall(
        r"step (\d+): \d+ held-out vectors, share of variance not reconstructed ([\d.]+)", capsys.readouterr().out
    )
    assert [int(step) for step, _ in left] == list(range(len(left))) and len(left) >= 8
    assert all(
        float(share) < 0.9 for _, share in left
    )  # 1 is the mean of the vectors, which an untrained one does not beat
