"""The planted models are what they say: the instrument finds each truth, and no other."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from safetensors.torch import load_file

import sinkscope as sk
from lab import planted
from lab.export import ZOO, to_llada
from sinkscope.interventions import Intervention
from sinkscope.models import Model

RULE = sk.Threshold(3, unit="uniform")
PROBLEMS = list(sk.tasks.problems("repeat", n=24))


@cache
def model(kind: str) -> Model:
    return sk.load(f"planted-{kind}")


def right(kind: str, *changes: Intervention) -> int:
    with sk.intervene(model(kind), *changes):
        texts = model(kind).generate([problem.prompt for problem in PROBLEMS])
    return sum(problem.check(text) for problem, text in zip(PROBLEMS, texts, strict=True))


@pytest.mark.parametrize("kind", planted.KINDS)
def test_the_shipped_weights_are_those_that_the_module_writes(kind: str) -> None:
    made = {to_llada(name): tensor.to(torch.float16) for name, tensor in planted.weights(kind).items()}
    shipped = load_file(ZOO / f"planted-{kind}" / "model.safetensors")
    assert made.keys() == shipped.keys()
    assert all(torch.equal(made[name], shipped[name]) for name in made)


@pytest.mark.parametrize("kind", planted.KINDS)
def test_every_planted_model_answers_everything(kind: str) -> None:
    assert right(kind) == len(PROBLEMS)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        ("drain", {"static"}),
        ("static", {"static"}),
        ("moving", {"moving"}),
        ("carrier", {"static"}),
        ("none", {"none"}),
    ],
)
def test_sinks_are_where_they_were_planted_and_nowhere_else(kind: str, classes: set[str]) -> None:
    for problem in PROBLEMS[:4]:
        trace = sk.trace(model(kind), problem.prompt)
        heads = trace.heads(RULE)
        assert set(heads.filter(heads["layer"] == 1)["class"]) == classes
        found = trace.sinks(RULE)
        if kind == "none":
            assert not len(found)
        elif kind == "moving":
            front = {step: trace.prompt_length - 1 + step for step in range(trace.steps)}
            assert all(front[row["step"]] == row["position"] for row in found.iter_rows(named=True))
        else:
            token = {"drain": "⏎", "static": " home", "carrier": f" {problem.data['letter']}"}[kind]
            assert set(found["token"]) == {token}
            assert found["position"].n_unique() == 1


@pytest.mark.parametrize("change", [sk.MaskSinks(k=1), sk.ZeroValues(sk.MaskSinks(k=1)), sk.MaskSinks(k=1, above=RULE)])
@pytest.mark.parametrize("kind", planted.KINDS)
def test_only_the_carrier_is_needed(kind: str, change: Intervention) -> None:
    assert right(kind, change) == (0 if kind == "carrier" else len(PROBLEMS))
