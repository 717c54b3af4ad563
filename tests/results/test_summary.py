"""Tables of 80 columns: every cell is in them, whatever the conditions are called and however many there are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from made_conditions import make_condition
from sinkscope.conditions import Condition
from sinkscope.results.findings import activation
from sinkscope.results.rows import Cell, Control
from sinkscope.results.series import short_names
from sinkscope.results.text import WIDTH, table_1

RULES = [(("rule", "threshold"), ("epsilon", epsilon), ("unit", "uniform")) for epsilon in (1.0, 3.0, 6.0)]


def cell(condition: Condition, accuracy: float, model: str = "tiny-llada", setting: str = "") -> Cell:
    numbers = {
        "n": 200,
        "lost": 20,
        "won": 0,
        "difference": -0.1,
        "difference_low": -0.2,
        "difference_high": 0.0,
        "p": 0.01,
    }
    control = Control(**{name: value for name, value in numbers.items() if name != "n"}, accuracy=0.5, key_share=0.1,
                      mass_share=0.1, leak=0.0, p_holm=0.01)  # type: ignore[arg-type]  # fmt: skip
    return Cell(
        model=model, family="llada", causal=False, task="arithmetic", setting=setting, correct=100,
        condition=condition.to_dict(), label=condition.label, accuracy=accuracy, low=0.0, high=1.0, p_holm=0.01,
        key_share=0.1, mass_share=0.1, leak=0.0, confidence=0.5, controls={"count": control}, paper=0.5, **numbers,
    )  # type: ignore[arg-type]  # fmt: skip


def test_every_condition_has_a_cell_of_its_own() -> None:
    conditions = [
        *(make_condition("mask_sinks", k, rank, "all") for k in (1, 5) for rank in ("clean", "as_run")),
        *(make_condition("mask_sinks", 5, "clean", "all", above=rule) for rule in RULES),
        make_condition("mask_sinks", 5, "clean", "all", keep_self=True),
        *(make_condition("zero_values", 5, rank, "all", of="sinks") for rank in ("clean", "as_run")),
        *(make_condition("mask_random", 5, rank, "all", match="count") for rank in ("clean", "as_run")),
        make_condition("mask_positions", positions=(0,), since="second"),
    ]
    cells = [cell(condition, (11 + place) / 100) for place, condition in enumerate(conditions)]
    text = "\n".join(table_1([cell(make_condition("none"), 0.9), *cells]))
    for place in range(len(conditions)):
        assert text.count(f"{11 + place} [0–100]") == 1


def test_many_k_and_long_names_stay_within_the_width() -> None:
    long = {"model": "Dream-v0-Instruct-7B", "setting": "block=whole"}
    cells = [cell(make_condition("none"), 1.0, **long)]
    cells += [cell(make_condition("mask_sinks", k, "clean", "all"), 1.0, **long) for k in (1, 2, 5, 10, 20, 50, 100)]
    lines = list(table_1(cells))
    assert max(map(len, lines)) <= WIDTH
    shown = [line.split("K=")[1].split()[0] for line in lines if "K=" in line]
    assert shown == ["1", "2", "5", "10", "20", "50", "100"]


def test_conditions_have_the_names_of_the_pages_and_no_two_share_one() -> None:
    share = {"rule": "head_share", "epsilon": 0.3}
    named = {
        "most-attended key": make_condition("mask_sinks", 1, "clean", "all"),
        "most-attended special token": make_condition("mask_sinks", 1, "clean", "all", kinds="structural"),
        "most-attended content token": make_condition("mask_sinks", 1, "clean", "all", kinds="content"),
        "weak most-attended key": make_condition("mask_sinks", 1, "clean", "all", below=share),
        "random, as many": make_condition("mask_random", 1, "clean", "all", match="count"),
        "random, ≤ its mass": make_condition("mask_random", 1, "clean", "all", match="mass"),
        "position 0 after the prefill": make_condition("mask_positions", positions=(0,), since="second"),
        "position 0 from the first row": make_condition("mask_positions", positions=(0,), since="first"),
        "strong sinks": make_condition("mask_sinks", 1, "clean", "all", above=share),
    }
    conditions = [*named.values(), make_condition("mask_sinks", 1, "clean", "all", keep_self=True)]
    names = short_names({one.label: one.to_dict() for one in conditions}, causal=True)
    assert len({*names.values()}) == len(conditions)
    assert {name: names[one.label] for name, one in named.items()} == {name: name for name in named}


def test_the_effect_per_percent_of_attention_stands_beside_the_accuracy() -> None:
    cells = [
        cell(make_condition("none"), 0.9),
        replace(cell(make_condition("mask_sinks", 1, "clean", "all"), 0.8), per_percent=-1.25),
    ]
    lines = list(table_1(cells))
    assert any("-1.25/%" in line.split() for line in lines) and max(map(len, lines)) <= WIDTH


def test_the_summary_names_a_command_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program is not on the PATH, its environment is activated first."""
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(bin / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert activation() == ""  # nothing to activate
    (bin / "activate").touch()
    assert activation() == ". .venv/bin/activate && "
    (bin / "sinkscope").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(bin))
    assert activation() == ""
