"""Natural solutions are scored as the harness scores them, and files of another form are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sinkscope as sk
from lab.experiments.solutions import main, solutions


def test_an_arms_value_is_the_chain_rule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pairs = [("Tom has 9 apples.", "Tom has 9."), ("Ann buys 2 pens.", "2 pens.")]
    model = sk.load("tiny-llama")
    found = solutions(model, "tiny-llama", pairs)
    plain = []
    for question, answer in pairs:
        context = model.encode(question + "\n", chat=False)[0].tolist()
        scored = model.require_tokenizer()(answer, add_special_tokens=False)["input_ids"]
        logits = model.logits(torch.tensor([context + scored]))[0].log_softmax(-1)
        plain.append(float(logits[len(context) - 1 : -1].gather(-1, torch.tensor(scored)[:, None]).mean()))
    assert found.value == pytest.approx(sum(plain) / 2, abs=1e-5) and found.exact
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs), encoding="utf-8")
    assert main(["tiny-llama", "tiny-dream", "--file", str(file), "-n", "2", "--out", str(tmp_path / "o.json")]) == 0
    assert "tiny-dream: -" in capsys.readouterr().out
    assert [row["exact"] for row in json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))] == [True, False]


@pytest.mark.parametrize("text", ["", "[]\n{}\n", "{\n", '{"question": 1, "answer": "a"}\n' * 3])
def test_another_file_is_refused_in_a_sentence(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(text, encoding="utf-8")
    assert main(["tiny-llama", "--file", str(file), "-n", "2"]) == 1
    assert capsys.readouterr().err.startswith("pairs.jsonl must hold")
