"""Table 1 as a study: the grid, what is written as soon as answers are there, sequential stopping, fast decoding, the shift."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from harness_models import FAMILIES, random_model

import sinkscope as sk
from sinkscope.conditions import Condition
from sinkscope.errors import StudyError, TaskError
from sinkscope.interventions import MaskSinks, intervene
from sinkscope.results.accuracy import measure_shift
from sinkscope.study.run import Run, run
from sinkscope.study.schema import SequentialPlan
from sinkscope.study.table1 import check_fast, grid, table1_study
from sinkscope.study.units.shift import measure_divergence
from sinkscope.tasks.protocol import settings_for

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")


def table(models: list[sk.Model], out: Path, **words: Any) -> tuple[Run, list[dict[str, Any]]]:
    study = table1_study(models, tasks=["sinkscope_logic"], **words)
    done = run(study, out, models={model.name: model for model in models})
    return done, done.results["cells"]


def test_grid_has_every_control() -> None:
    each = [("mask_sinks", "clean"), ("mask_sinks", "as_run"), ("mask_random", "clean")]
    found = [
        (one["name"], one.get("k", 0), one.get("rank"), one.get("rows"))
        for one in grid((1, 5))
        if one.get("for") != "causal" and "above" not in one
    ]
    assert found == [("none", 0, None, None), *((name, k, rank, "all") for k in (1, 5) for name, rank in each)]
    strong = [(one["name"], one.get("of")) for one in grid((1, 5)) if "above" in one]
    assert strong == [("mask_sinks", None), ("mask_random", None), ("attenuate", "sinks"), ("attenuate", "others")]
    causal = [one for one in grid((1,)) if one.get("for") == "causal"]
    assert [(one["positions"], one["since"]) for one in causal[:2]] == [([0], "second"), ([0], "first")]
    assert {one["rows"] for one in causal[2:]} == {"last"}
    with pytest.raises(TaskError, match="at least 1"):
        grid((0,))


def test_table1_of_our_own_tasks_runs_the_grid(tmp_path: Path) -> None:
    models = [random_model(FAMILIES[family](), context=384) for family in ("llama", "llada")]
    own = [Condition.parse("mask_positions:positions=[0,1],since=second")]
    words = {"ks": (1,), "limit": 3, "settings": {"length": 16}, "traced": 1, "conditions": own}
    done, _ = table(models, tmp_path / "t", **words)
    cells = done.results["cells"]
    assert len(cells) == 5 + 10 + 2 * 4 and all(cell["n"] == 3 for cell in cells)
    assert {cell["model"] for cell in cells} == {"test-llama", "test-llada"}
    units = {path.name: path.read_bytes() for path in (tmp_path / "t" / "units").iterdir()}
    again, _ = table(models, tmp_path / "t", **words)
    assert again.results["cells"] == cells
    assert {path.name: path.read_bytes() for path in (tmp_path / "t" / "units").iterdir()} == units


def test_the_noise_of_sampling_is_measured_where_there_is_any(tmp_path: Path) -> None:
    model = random_model(FAMILIES["llada"](), context=384)
    words = {"ks": (), "limit": 3, "traced": 0}
    still, _ = table([model], tmp_path / "still", settings={"length": 16}, **words)
    noisy, _ = table([model], tmp_path / "noisy", settings={"length": 16, "temperature": 1.0}, **words)
    assert [cell["condition"]["name"] for cell in still.results["cells"]] == ["none"]
    assert [cell["condition"]["name"] for cell in noisy.results["cells"]] == ["none", "other_seed"]
    texts = noisy.answers().group_by("condition", maintain_order=True).agg("text")["text"].to_list()
    assert texts[0] != texts[1]


def test_fast_decoding_must_agree_first(tmp_path: Path) -> None:
    model = random_model(FAMILIES["llada"](), context=384)

    def answer(study: sk.Study, name: str) -> Any:
        return run(study, tmp_path / str(study.tasks[0].problems) / name, models={model.name: model}).answers()

    study = table1_study([model], tasks=["sinkscope_logic"], ks=(), settings={"length": 16}, traced=0, batch_size=40)
    with pytest.raises(TaskError, match="does not agree"):  # three problems cannot show it
        check_fast(study, 3, answer, print)
    assert check_fast(study, 80, answer, print).decode["commit"] == "threshold"


def test_shift_of_answers() -> None:
    def made(text: str, tokens: list[int], steps: list[int] | None = None, correct: bool = True) -> dict[str, Any]:
        return {"text": text, "tokens": tokens, "correct": correct, **({} if steps is None else {"steps": steps})}

    before = dict(enumerate([made("ab", [1, 2, 3, 4], [0, 1, 2, 3]), made("c", [7, 8], [0, 1], False)]))
    same = measure_shift(before, before)
    assert (same["changed"], same["first_change"], same["reordered"], same["same_verdict"]) == (0, 1, 0, 0)
    after = dict(enumerate([made("ax", [1, 2, 9, 4], [3, 2, 1, 0]), made("c", [7, 8], [0, 1], False)]))
    found = measure_shift(before, after)
    assert (found["changed"], found["first_change"], found["same_verdict"]) == (0.125, 0.75, 0.5)
    assert found["reordered"] == 0.5  # all pairs of the first, none of the second
    assert measure_shift({0: made("", [])}, {0: made("a", [1])})["changed"] == 1
    assert measure_shift({0: made("a", [1])}, {0: made("b", [2])})["reordered"] is None


@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_divergence_is_nothing_without_masking_and_something_with_it(family: str) -> None:
    model = random_model(FAMILIES[family]())
    settings = settings_for(model, "t", {"length": 8})
    for prompt in ([5, 6, 7, 8, 9], [11, 12, 13]):
        ids = torch.tensor([prompt])
        still = measure_divergence(model, lambda: intervene(model, MaskSinks(k=0)), ids, settings)
        assert still["kl"] == still["flipped"] == 0 and still["commits"] <= 8
        assert measure_divergence(model, lambda: intervene(model, MaskSinks(k=2)), ids, settings)["kl"] > 0
    if family == "llada":
        cached = settings_for(model, "t", {"length": 8, "cache": "prefix"})
        assert measure_divergence(model, lambda: intervene(model, MaskSinks(k=2)), ids, cached)["kl"] is None


def test_a_comparison_stops_when_it_is_decided(tmp_path: Path) -> None:
    """A random model is always wrong: after a few rounds no difference above 20 points is possible."""
    model = random_model(FAMILIES["llama"](), context=384)
    words = {"ks": (1,), "limit": 100, "settings": {"length": 1}, "traced": 0, "batch_size": 10}
    done, _ = table([model], tmp_path / "t", sequential=SequentialPlan(margin=20.0, round=20), **words)
    (none,) = (cell for cell in done.results["cells"] if cell["label"] == "none")
    others = [cell for cell in done.results["cells"] if cell["label"] != "none"]
    assert none["n"] == max(cell["n"] for cell in others)
    assert all(20 <= cell["n"] < 100 and cell["difference"] == 0 for cell in others)
    assert all(cell["sequential"]["decision"] == "inside" for cell in others)
    with pytest.raises(StudyError, match="margin"):
        SequentialPlan(margin=0)
