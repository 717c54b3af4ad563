"""The likelihood of true answers under a condition, against plain forwards of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from made_conditions import make_condition
from sinkscope.conditions import Condition
from sinkscope.errors import StudyError
from sinkscope.study.problem_sets import ProblemSets, run_unit
from sinkscope.study.schema import Study
from sinkscope.study.units import Unit
from sinkscope.study.units.likelihood import _ids

NONE = make_condition("none")
ENTRIES: list[Any] = [
    "none", "noop", {"name": "mask_sinks", "k": 1},
    {"name": "mask_positions", "positions": [0], "since": "second", "for": "causal"},
]  # fmt: skip


def study(**more: Any) -> Study:
    plan = {"models": ["tiny-llama", "tiny-dream"], "problems": 3, "levels": [0.5, 1.0], "conditions": ENTRIES, **more}
    return Study.from_dict(
        {"name": "t", "models": [], "tasks": [{"name": "arithmetic", "problems": 3}], "conditions": ["none"], "forced": plan}
    )  # fmt: skip


def unit(model: str, condition: Condition = NONE) -> Unit:
    return Unit("forced", model, condition, task="arithmetic", last=3, shown=model)


def test_an_arms_answer_has_the_likelihood_of_a_plain_forward_without_and_with_a_hidden_key() -> None:
    made, model = study(), sk.load("tiny-llama")
    hidden = next(condition for condition in made.forced.conditions if condition.name == "mask_positions")
    for condition in (NONE, hidden):
        rows = run_unit(made, unit("tiny-llama", condition), Path())["rows"]
        for row, problem in zip(rows, ProblemSets(made).make_job(unit("tiny-llama")).prompts, strict=True):
            prompt, answer = _ids(model, problem)
            ids = torch.tensor([prompt + answer])
            seen = torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
            if condition == hidden:
                seen[len(prompt) - 1 :, 0] = False
            bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
            with torch.inference_mode():
                logits = model.module(ids, attention_mask=bias, use_cache=False).logits[0].log_softmax(-1)
            plain = logits[len(prompt) - 1 : -1].gather(-1, torch.tensor(answer)[:, None]).mean()
            assert row["problem"] == problem.number and row["scored"] == len(answer)
            assert row["value"] == pytest.approx(float(plain), abs=1e-5)


def test_a_diffusion_models_answer_has_the_likelihood_of_plain_forwards_at_its_mask_levels() -> None:
    made, model = study(levels=[1.0]), sk.load("tiny-dream")
    assert model.mask_id is not None and model.shift
    rows = run_unit(made, unit("tiny-dream"), Path())["rows"]
    for row, problem in zip(rows, ProblemSets(made).make_job(unit("tiny-dream")).prompts, strict=True):
        prompt, answer = _ids(model, problem)
        logits = model.logits(torch.tensor([prompt + [model.mask_id] * len(answer)]))[0].clone()
        if model.valid_vocab_size is not None:
            logits[:, model.valid_vocab_size :] = -torch.inf
        plain = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(answer)[:, None]).mean()
        assert row["value"] == pytest.approx(float(plain), abs=1e-5)


def test_masking_takes_effect_in_the_second_look_alone_and_levels_are_the_same_for_all_conditions() -> None:
    made = study()
    before = run_unit(made, unit("tiny-dream"), Path())
    masked = run_unit(made, unit("tiny-dream", make_condition("noop")), Path())
    assert [row["value"] for row in masked["rows"]] == [row["value"] for row in before["rows"]]
    sinks = run_unit(made, unit("tiny-dream", made.forced.conditions[2]), Path())
    assert sinks["effect"]["leak"] == 0 and sinks["effect"]["keys"] > 0
    # one key of each head and level, of a canvas of so many: the first look is not counted
    model = sk.load("tiny-dream")
    canvases = [
        sum(map(len, _ids(model, problem))) for problem in ProblemSets(made).make_job(unit("tiny-dream")).prompts
    ]
    heads = model.config.num_hidden_layers * model.config.num_attention_heads
    assert sinks["effect"]["keys_seen"] == sum(canvases) * heads * 2
    assert sinks["effect"]["keys"] == 3 * heads * 2


def test_a_study_of_true_answers_alone_runs_and_says_what_it_read(tmp_path: Path) -> None:
    run = sk.run(study(), out=tmp_path / "run", workers=1)
    found = {(row["model"], row["label"]): row for row in run.results["likelihood"]}
    assert len(found) == 7  # four conditions of the ARM, three of the DLM
    assert {row["of"] for row in found.values()} == {"answers"}
    assert found["tiny-llama", "noop"]["difference"] == 0
    assert found["tiny-dream", "none"]["n"] == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"conditions": ["noop"]}, "forced must have none among"),
        ({"models": ["tiny-llama", "tiny-llama"]}, "must be unique"),
        ({"levels": [0.0]}, "forced.levels"),
        ({"levels": []}, "forced.levels"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused_in_a_sentence(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(StudyError, match=says):
        study(**changed)


def test_a_model_is_measured_in_one_way_only() -> None:
    values = study().to_dict()
    with pytest.raises(StudyError, match="each in one place alone"):
        Study.from_dict({**values, "models": ["tiny-llama"]})
    assert Study.from_dict(values) == study()
    assert study().changed(models=["tiny-dream"]).forced.models == ("tiny-dream",)
