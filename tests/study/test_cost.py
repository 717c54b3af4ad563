"""The one model of cost: what every kind of unit says that it forwards is what it does, and a core is as fast as measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.decoding.cost import Size
from sinkscope.models.load import load_config_only
from sinkscope.study.engine import Local
from sinkscope.study.plan import forecast, here
from sinkscope.study.problem_sets import run_unit
from sinkscope.study.run import load_facts as models_of
from sinkscope.study.schema import Study
from sinkscope.study.units import TYPICAL_PROMPT, ModelInfo, Unit, kind_of, mechanism, units_of, weigh
from sinkscope.study.units.worker import model_for, model_info

TIMES = Path(__file__).parents[2] / "lab" / "results" / "scheduling-units.json"


@pytest.fixture(scope="module")
def every_kind(small: dict[str, Any], family: dict[str, str]) -> Study:
    conditions = ["none", {"name": "mask_sinks", "k": 1}]
    return Study.from_dict(
        {
            **small,
            "tasks": [{"name": "arithmetic", "problems": 3}],
            "conditions": conditions,
            "trace": {"problems": 2, "keep": 1, "maps": 1},
            "forced": {"models": [family["dream"], family["mmada"]], "problems": 2, "levels": [0.5, 1.0], "conditions": conditions},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(every_kind: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelInfo]:
    found = models_of(every_kind, Local(1), tmp_path_factory.mktemp("facts"), lambda line: None)
    return {info.asked: info for info in found}


def forwards_of(study: Study, unit: Unit, folder: Path) -> int:
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    module: Any = model_for(study, unit).module.base_model
    hook = module.register_forward_pre_hook(note)
    try:
        run_unit(study, unit, folder)
    finally:
        hook.remove()
    return count


def test_units_forward_as_often_as_their_kind_says(
    every_kind: Study, models: dict[str, ModelInfo], tmp_path: Path
) -> None:
    units = units_of(every_kind, list(models.values()))
    assert {unit.kind for unit in units} == {"answers", "mechanism", "trace", "likelihood", "forced"}
    for unit in units:
        planned = sum(
            part.forwards for part in kind_of(unit).workload(every_kind, unit, models[unit.model], TYPICAL_PROMPT)
        )
        made = forwards_of(every_kind, unit, tmp_path)
        if unit.kind == "mechanism":  # three decodes of all steps, and three that end when the model is sure
            steps = unit.decoder.most_steps
            assert 3 * steps + 3 <= made <= 2 * planned
        elif unit.decode.get("family") == "autoregressive":  # a row ends at its end-of-text token
            assert 1 <= made <= 2 * planned + 3  # it is taken to come before the end
        else:
            assert made == planned, unit.id


def test_the_mechanism_decodes_six_times(
    every_kind: Study, models: dict[str, ModelInfo], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []
    decode = mechanism.decode
    monkeypatch.setattr(mechanism, "decode", lambda *given, **words: calls.append(1) or decode(*given, **words))
    unit = next(one for one in units_of(every_kind, list(models.values())) if one.kind == "mechanism")
    run_unit(every_kind, unit, tmp_path)
    assert len(calls) == 6


def test_plan_and_show_count_the_same_units(every_kind: Study, models: dict[str, ModelInfo]) -> None:
    planned, shown = forecast(every_kind), here(every_kind)
    units = units_of(every_kind, list(models.values()))
    assert planned.kinds == shown.kinds and sum(shown.kinds.values()) == len(units)
    assert planned.disk == shown.disk and [one.model for one in shown.models] == [one.model for one in planned.models]
    assert all(model.seconds > 0 for model in shown.models)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada", "tiny-sdar"])
def test_weights_are_within_a_factor_of_two_of_measured_units(name: str) -> None:
    study = Study.load("paper")
    model = load_config_only(name, dtype=torch.float32)
    size = Size.of(model)
    identity = {"name": name, "parameters": size.parameters, "layers": size.layers, "heads": size.heads}
    info = model_info(study, model, name, identity)
    rows = [row for row in json.loads(TIMES.read_text())["units"] if row["unit"]["model"] == name]
    weighed = sum(weigh(study, Unit.from_dict(row["unit"]), info) for row in rows)
    assert 0.5 <= weighed / sum(row["seconds"] for row in rows) <= 2


def test_an_adapter_is_planned_as_the_family_that_it_makes() -> None:
    """It was planned as its base: a diffusion model as an autoregressive one."""
    made = load_config_only("smol-dream")
    assert not made.causal and made.family.name == "dream" and not made.defaults.left_to_right
