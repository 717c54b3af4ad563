"""From a finished run to scores, card, table of sinks and figure, on a model that has learned nothing."""

import json

from lab import card, evaluate
from lab.experiments import curves, sinks_table
from lab.train import train


def test_a_run_becomes_scores_a_card_and_tables(small, tmp_path, capsys):
    run = tmp_path / "run"
    model = train(small(steps=3), run, quiet=True)
    scores = tmp_path / "scores.json"
    words = ["-n", "2", "--kinds", "recall", "planning", "--set", "length=8", "steps=8", "--out", str(scores)]
    assert evaluate.main([str(model), *words]) == 0
    found = json.loads(scores.read_text())
    assert [row["kind"] for row in found] == ["recall", "planning"]
    assert all(row["n"] == 2 and 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in found)

    zoo, results = tmp_path / "zoo", tmp_path / "results"
    assert card.main([str(run), "--scores", str(scores), "--zoo", str(zoo), "--results", str(results)]) == 0
    text = (zoo / "small" / "README.md").read_text()
    assert "| recall | 2 |" in text
    assert "3 of 3 steps" in text
    assert (zoo / "small" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()

    row, *_ = sinks_table.sinks_of(zoo / "small", per_kind=1)
    assert row.traces == 6
    assert 0 <= row.present <= 1
    assert abs(sum(row.classes.values()) - 1) < 1e-6
    assert "| small | sum | 6 |" in sinks_table.markdown([row])

    assert curves.main([str(results / "small.jsonl"), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "| small | 3 |" in capsys.readouterr().out


def test_bad_input_is_one_sentence(tmp_path, capsys):
    assert evaluate.main([str(tmp_path), "-n", "1"]) == 1
    assert evaluate.main([str(tmp_path), "--set", "length"]) == 1
    assert curves.main([str(tmp_path / "none.jsonl")]) == 1
    assert sinks_table.main([str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 4


def test_a_model_that_copies_the_answers_scores_all():
    class Parrot:
        def __init__(self, asked):
            self.known = {problem.prompt: problem.answer for problem in asked}

        def generate(self, prompts, **_):
            return [self.known[prompt] for prompt in prompts]

    from sinkscope.tasks import KINDS, problems

    asked = [problem for kind in KINDS for problem in problems(kind, n=5, seed=3)]
    assert all(evaluate.solve(Parrot(asked), asked, batch=7))
    wrong = Parrot(asked)
    wrong.known[asked[3].prompt] = "#### nothing"
    assert evaluate.solve(wrong, asked, batch=7) == [i != 3 for i in range(len(asked))]
