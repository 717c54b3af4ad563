"""The study of quantised weights: cells are kept and not measured again, and the page has a row for each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import sinkscope as sk
from lab.experiments import quantised

pytest.importorskip("torchao")


def test_cells_are_kept_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cells"

    def run(count: int) -> None:
        command = [
            "x",
            "tiny-llama",
            "tiny-llada",
            "-n",
            str(count),
            "--weights",
            "float32",
            "int4",
            "--out",
            str(folder),
        ]
        monkeypatch.setattr(sys, "argv", command)
        quantised.main()

    run(2)
    first = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert len(first) == 2 * 2 * 4
    monkeypatch.setattr(quantised, "load_as", lambda *_: pytest.fail("a cell that is there was measured again"))
    run(2)
    assert {path.name: path.read_text() for path in folder.glob("*.json")} == first
    written = folder.with_suffix(".md").read_text()
    assert written.count("| tiny-llada | int4 |") == 4 and written.count("| tiny-llama | float32 |") == 4
    assert written.count("of the strong sinks stay. Masking strong sinks changes") == 2  # int4 of both models
    monkeypatch.undo()
    same = quantised.Cell(folder, "tiny-llada", "float32", "sinks").rows[0]
    assert same["logit_max"] == 0 and same["sinks_new"] == 0
    assert quantised.Cell(folder, "tiny-llada", "int4", "sinks").rows[0]["logit_max"] > 0


def test_only_the_linear_weights_differ() -> None:
    plain, four = sk.load("tiny-llada"), quantised.load_as("tiny-llada", "int4")
    half = quantised.load_as("tiny-llada", "bfloat16")
    for (name, one), other, rounded in zip(
        plain.module.named_parameters(), four.module.parameters(), half.module.parameters(), strict=True
    ):
        linear = "_proj" in name
        assert torch.equal(one, other) != linear and other.dtype == torch.float32, name
        assert not linear or torch.equal(one.bfloat16().float(), rounded)
