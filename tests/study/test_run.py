"""Runs as a whole, on small random models: same results by any way, controls that fail loudly, folders that are guarded."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from made_conditions import make_condition
from sinkscope.errors import StudyError
from sinkscope.study.run import Run, run
from sinkscope.study.schema import Study, shipped
from sinkscope.study.store import Store, digest
from sinkscope.study.units import Unit
from sinkscope.tracing import Trace


@pytest.fixture(scope="module")
def finished(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(study, tmp_path_factory.mktemp("runs") / "small", workers=1)


def test_results_have_the_promised_fields(finished: Run, study: Study) -> None:
    results = json.loads((finished.folder / "results.json").read_text())
    assert results == finished.results == Run.load(finished.folder).results
    assert results["schema"] == 2
    for cell in results["cells"]:
        assert {"model", "task", "condition", "n", "correct", "accuracy", "low", "high", "difference", "p"} <= set(cell)
        assert {"name", "k", "rank", "rows"} <= set(cell["condition"])
        assert cell["low"] <= cell["accuracy"] <= cell["high"] and cell["leak"] == 0
        assert cell["p_holm"] >= cell["p"]
    for row in results["tokens"]:
        assert {"model", "token", "kind", "share", "enrichment"} <= set(row)
    for row in results["verdicts"]:
        assert {"model", "name", "value", "because"} <= set(row) and row["because"].endswith(".")
    names = {(row["model"], row["name"]) for row in results["verdicts"]}
    assert {("small-llada", "sinks_exist"), ("small-llada", "one_sink"), ("small-llama", "arm_sink")} <= names
    # 13 conditions of the autoregressive model and 10 of the other, on two tasks.
    assert len(results["cells"]) == 2 * (13 + 10)


def test_the_table_has_a_row_a_problem_in_the_order_of_the_plan(finished: Run) -> None:
    table = pl.read_parquet(finished.folder / "results.parquet")
    answers = table.filter(pl.col("kind") == "answers")
    assert len(answers) == (5 + 3) * (13 + 10)
    assert answers.group_by("model", "condition", "task", "problem").len()["len"].max() == 1
    cell = next(cell for cell in finished.results["cells"] if cell["condition"]["name"] == "mask_random")
    mine = answers.filter(model=cell["model"], condition=cell["label"], task=cell["task"])
    assert mine["correct"].sum() == cell["correct"] and len(mine) == cell["n"]


def test_what_was_taken_away_is_said(finished: Run) -> None:
    cells = {(c["model"], c["task"], c["label"]): c for c in finished.results["cells"]}
    for model in ("small-llada", "small-llama"):
        one, five = (cells[model, "arithmetic", f"mask sinks K={k} clean by all rows"] for k in (1, 5))
        assert 0 < one["key_share"] < five["key_share"] < 1 and 0 < one["mass_share"] < five["mass_share"] <= 1
        assert cells[model, "arithmetic", "none"]["mass_share"] is None
    count, mass = (
        cells["small-llada", "arithmetic", f"mask random K=5 clean {m} by all rows"] for m in ("count", "mass")
    )
    sinks = cells["small-llada", "arithmetic", "mask sinks K=5 clean by all rows"]
    assert count["key_share"] == pytest.approx(sinks["key_share"])
    assert mass["mass_share"] > count["mass_share"] and mass["key_share"] > count["key_share"]
    assert set(sinks["controls"]) == {"count", "mass"}


def widest(lines: list[str]) -> int:
    """The longest line but for the two that end in the path of a folder."""
    return max(len(line) for line in lines if not line.startswith(("Page:", "Tables:")))


def test_the_summary_fits_one_screen(finished: Run) -> None:
    lines = finished.summary().splitlines()
    assert len(lines) <= 25 and widest(lines) <= 80
    text = "\n".join(lines)
    for part in ("small: small-llama, small-llada, small-text", "a no-op changed 0 of 16", "--text --full"):
        assert part in text
    assert {claim["name"] for claim in finished.results["claims"]} >= {
        "sinks_exist",
        "structural",
        "one_sink",
        "arm_sink",
    }


def test_the_tables_fit_80_columns(finished: Run) -> None:
    text = finished.summary(full=True)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("Table 1.", "Table 2."):
        assert part in text


def test_a_second_run_does_nothing_again(finished: Run, study: Study) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (finished.folder / "units").iterdir()}
    ticks: list[tuple[int, int]] = []
    again = run(study, finished.folder, workers=1, on_progress=lambda done, total: ticks.append((done, total)))
    assert {path.name: path.stat().st_mtime_ns for path in (finished.folder / "units").iterdir()} == before
    assert ticks == [(len(before), len(before))] and again.results == finished.results


def test_two_workers_give_the_same_bytes(finished: Run, small: dict[str, Any], tmp_path: Path) -> None:
    study = Study.from_dict(small)
    apart = run(study, tmp_path / "apart", workers=2)
    for name in ("results.parquet", "results.json"):
        assert (apart.folder / name).read_bytes() == (finished.folder / name).read_bytes()
    kept = sorted(path.name for path in (finished.folder / "traces").iterdir())
    assert kept == sorted(path.name for path in (apart.folder / "traces").iterdir()) and len(kept) == 6
    for name in kept:
        here, there = (Trace.load(run.folder / "traces" / name) for run in (finished, apart))
        assert torch.equal(here.canvas, there.canvas)
        torch.testing.assert_close(here.scores(), there.scores(), atol=1e-2, rtol=1e-2)


def cheap(study: Study, models: list[str]) -> Study:
    """A few units only."""
    keep = tuple(
        one
        for one in study.conditions
        if one.name in ("none", "noop") or (one.name == "mask_sinks" and one.k == 1 and one.get("rank") == "clean")
    )
    made = replace(
        study, conditions=keep, trace=replace(study.trace, problems=0), mechanism=replace(study.mechanism, problems=0)
    )
    return made.changed(models=models, problems=3, tasks=["arithmetic"])


def test_a_changed_study_is_refused_with_a_diff(study: Study, family: dict[str, str], tmp_path: Path) -> None:
    plan = cheap(study, [family["llada"]])
    run(plan, tmp_path / "run", workers=1)
    with pytest.raises(StudyError) as caught:
        run(plan.changed(problems=4), tmp_path / "run", workers=1)
    assert "-- {name: arithmetic, problems: 3" in str(caught.value)
    assert "+- {name: arithmetic, problems: 4" in str(caught.value) and "--out" in str(caught.value)


def test_a_changed_model_is_refused_with_a_diff(study: Study, checkpoint_maker: Any, tmp_path: Path) -> None:
    from sinkscope.study.units.worker import weights_of

    folder = checkpoint_maker(tmp_path / "model", "llada", seed=1)
    plan = cheap(study, [str(folder)])
    run(plan, tmp_path / "run", workers=1)
    checkpoint_maker(tmp_path / "model", "llada", seed=2)
    weights_of.cache_clear()
    with pytest.raises(StudyError, match="models differs") as caught:
        run(plan, tmp_path / "run", workers=1)
    assert "fingerprint" in str(caught.value)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    code = "import sys; from sinkscope.study.store import Store, digest\nwith Store(sys.argv[1]).locked(): print('in')"
    with store.locked():
        held = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert held.returncode != 0 and f"(id {os.getpid()})" in held.stderr and "in" not in held.stdout
    free = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert free.stdout == "in\n"


def tampered(folder: Path, name: str, change: Any) -> None:
    """A unit as it would be stored if something had gone wrong while it was measured."""
    path = next(folder.glob(f"units/*{name}*.json"))
    outcome = json.loads(path.read_text())
    change(outcome["result"])
    outcome["sha256"] = digest(outcome["result"])
    path.write_text(json.dumps(outcome))


def test_the_run_fails_if_masking_nothing_changed_an_answer(
    study: Study, family: dict[str, str], tmp_path: Path
) -> None:
    plan = cheap(study, [family["llada"]])
    run(plan, tmp_path, workers=1)
    tampered(tmp_path, "noop", lambda result: result["rows"][1]["tokens"].reverse())
    with pytest.raises(StudyError, match="masking nothing changed the tokens"):
        run(plan, tmp_path, workers=1)


def test_the_run_fails_if_a_masked_key_still_received_something(
    study: Study, family: dict[str, str], tmp_path: Path
) -> None:
    plan = cheap(study, [family["llada"]])
    run(plan, tmp_path, workers=1)
    tampered(tmp_path, "mask_sinks", lambda result: result["effect"].update(leak=1e-6))
    with pytest.raises(StudyError, match="masked keys received"):
        run(plan, tmp_path, workers=1)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("results.json", "old")
    partial = tmp_path / f"results.json.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(StudyError, match="disk is full"):
        store.write("results.json", "new" * 10_000)
    assert (tmp_path / "results.json").read_text() == "old" and not partial.exists()


UNIT = Unit("answers", "m", make_condition("mask_sinks", 1, "clean", "all"), "", "recall", 0, 4, 0, {"length": 8}, "m")
OTHERS = [replace(UNIT, model="n"), replace(UNIT, last=3), replace(UNIT, decode={"length": 9})]  # the same file name


@pytest.mark.parametrize(
    "held",
    [
        "null", "[]", "7", "{}", '{"result": null}', '{"result": {}}', '{"result": {"ro', "",
        json.dumps({"unit": UNIT.to_dict(), "result": {}}), json.dumps({"result": {"rows": []}}),
        *(json.dumps({"unit": other.to_dict(), "result": {"rows": []}}) for other in OTHERS),
    ],
)  # fmt: skip
def test_a_unit_file_without_its_own_result_is_not_done(tmp_path: Path, held: str) -> None:
    assert {other.id for other in OTHERS} == {UNIT.id}
    store = Store(tmp_path)
    store.save(UNIT, {"rows": []})
    assert store.find(UNIT) is not None
    (tmp_path / "units" / f"{UNIT.id}.json").write_text(held)
    assert store.find(UNIT) is None
    with pytest.raises(StudyError, match="run the study again"):
        store.load(UNIT)


def test_a_file_with_another_units_result_is_run_again(study: Study, family: dict[str, str], tmp_path: Path) -> None:
    plan = cheap(study, [family["llada"]])
    before = run(plan, tmp_path, workers=1)
    none, masked = (next((tmp_path / "units").glob(f"answers*__{name}*.json")) for name in ("none", "mask_sinks"))
    whole = masked.read_bytes()
    masked.write_bytes(none.read_bytes())
    assert run(plan, tmp_path, workers=1).results == before.results and masked.read_bytes() == whole


def test_a_unit_in_which_one_number_was_changed_is_run_again(
    study: Study, family: dict[str, str], tmp_path: Path
) -> None:
    plan = cheap(study, [family["llada"]])
    before = run(plan, tmp_path, workers=1)
    path = next((tmp_path / "units").glob("*mask_sinks*.json"))
    whole = path.read_bytes()
    outcome = json.loads(whole)
    outcome["result"]["rows"][0]["correct"] = not outcome["result"]["rows"][0]["correct"]
    path.write_text(json.dumps(outcome))
    assert run(plan, tmp_path, workers=1).results == before.results and path.read_bytes() == whole


def test_a_damaged_unit_is_run_again(study: Study, family: dict[str, str], tmp_path: Path) -> None:
    plan = cheap(study, [family["llada"]])
    before = run(plan, tmp_path, workers=1)
    path = next((tmp_path / "units").glob("*mask_sinks*.json"))
    whole = path.read_bytes()
    path.write_text("null")
    assert run(plan, tmp_path, workers=1).results == before.results and path.read_bytes() == whole


@pytest.mark.parametrize("name", ["run.json", "results.json"])
@pytest.mark.parametrize("held", ["[]", "null", "3", '{"schema": ', "[" * 100_000])
def test_a_damaged_file_of_a_run_is_told(tmp_path: Path, name: str, held: str) -> None:
    (tmp_path / "study.yaml").write_text("x")
    (tmp_path / name).write_text(held)
    begin = functools.partial(Store(tmp_path).open, "x", {"models": ["a"], "versions": {}, "seed": 0})
    read = begin if name == "run.json" else functools.partial(Run.load, tmp_path)
    with pytest.raises(StudyError, match=f"{name} is damaged"):
        read()


@pytest.mark.parametrize("number", ["3", '"1"', "null", "true"])
def test_a_run_of_another_schema_is_told(tmp_path: Path, number: str) -> None:
    (tmp_path / "study.yaml").write_text("x")
    for name in ("run.json", "results.json"):
        (tmp_path / name).write_text(f'{{"schema": {number}, "cells": []}}')
    with pytest.raises(StudyError, match=r"results\.json must have schema 2"):
        Run.load(tmp_path)
    with pytest.raises(StudyError, match=r"run\.json must have schema"):
        Store(tmp_path).open("x", {"models": ["a"], "versions": {}, "seed": 0})


def test_a_lock_that_is_a_link_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for there in (True, False):
        folder = tmp_path / f"run-{there}"
        folder.mkdir()
        if there:
            target.write_text("keep me")
        else:
            target.unlink()
        (folder / "lock").symlink_to(target)
        with pytest.raises(StudyError, match=r"lock is a link|cannot be used"), Store(folder).locked():
            pass
        assert target.exists() == there and (not there or target.read_text() == "keep me")


@pytest.mark.parametrize("name", ["units", "traces", "results.json", "run.json", "units/a.json"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    (outside / "folder").mkdir(parents=True)
    (outside / "a.json").write_text("{}")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(outside / ("a.json" if "." in name else "folder"))
    with pytest.raises(StudyError, match="leads out of the run folder"), Store(folder).locked():
        pass


def test_a_lock_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(StudyError, match="cannot be used"), Store(tmp_path).locked():
        pass


def test_a_study_whose_models_are_all_left_out_is_refused(small: dict[str, Any], tmp_path: Path) -> None:
    from sinkscope.study.plan import here

    missing = {**small["likelihood"], "models": [str(tmp_path / "nowhere")]}
    study = Study.from_dict({**small, "models": [], "likelihood": missing})
    with pytest.raises(StudyError, match="all were left out"):
        run(study, tmp_path / "run", workers=1)
    assert not (tmp_path / "run" / "run.json").exists()  # the folder is free for when the model is there
    with pytest.raises(StudyError, match=r"all were left out .*nowhere"):
        here(study)


def test_a_condition_with_many_positions_runs(study: Study, family: dict[str, str], tmp_path: Path) -> None:
    plan = cheap(study, [family["llada"]]).to_dict()
    plan["conditions"] = ["none", {"name": "mask_positions", "positions": list(range(120))}]
    made = run(Study.from_dict(plan), tmp_path, workers=1)
    assert len(made.results["cells"]) == 2


def test_an_unknown_model_in_a_worker_and_an_unknown_engine(study: Study, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="engine"):
        run(study, tmp_path, engine="cloud")


@pytest.mark.parametrize("name", sorted(set(shipped()) - {"paper", "quick", "keep", "small"}))
def test_every_shipped_study_runs(name: str, family: dict[str, str], tmp_path: Path) -> None:
    study = Study.load(name)
    reduced = replace(study, trace=replace(study.trace, problems=1, keep=0, maps=0), draws=100, tasks=study.tasks[:3])
    causal = "tiny-llama" in study.models
    # What commits by confidence alone never ends on the random Dream of the tests, which chooses its mask token.
    model = family["llada" if study.decode.get("commit") == "threshold" else "dream"]
    made = run(
        reduced.changed(models=[model, *([family["llama"]] if causal else [])], problems=2),
        tmp_path,
        workers=1,
    )
    assert made.results["verdicts"] and max(map(len, made.summary(full=True).splitlines())) <= 80
    short = made.summary().splitlines()
    assert len(short) <= 25 and widest(short) <= 80
    settings = {cell["setting"] for cell in made.results["cells"]}
    assert len(settings) == len(study.settings())
    if name == "cut":
        assert any(row["name"] == "recovers" for row in made.results["claims"])
    if name == "thresholds":
        assert {row["unit"] for row in made.results["curves"]} == {"sum", "percent", "uniform"}
