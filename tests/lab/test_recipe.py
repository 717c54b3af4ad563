"""Recipes say what is wrong with them in one sentence."""

import pytest

from lab.errors import TrainingError
from lab.recipe import Recipe, load_recipe, recipe_from_dict, recipe_names
from lab.train import train
from sinkscope.errors import SinkscopeError
from sinkscope.tasks import KINDS


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_ships_can_be_read_and_written(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe_from_dict(recipe.to_dict()) == recipe
    assert set(recipe.data.kinds) <= {*KINDS, "pictures", "needle", "errands"}
    if recipe.start is not None:
        assert recipe.start in recipe_names()


def test_the_four_are_there():
    assert {"tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada"} <= set(recipe_names())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"family": "gpt"}, "family must be one of llama"),
        ({"variant": "odd"}, "variant must be one of"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch": 8, "chunks": 3}, "multiple of chunks"),
        ({"colour": "red"}, "unknown fields colour"),
        ({"shape": {"width": 33}}, "even multiple of heads"),
        ({"shape": 3}, "must be a mapping"),
        ({"optimiser": {"matrices": "sgd"}}, "muon or adamw"),
        ({"name": None, "family": "llama"}, None),
    ],
)
def test_bad_values(change, says):
    values = {"name": "x", "family": "llada", "steps": 1, **change}
    if says is None:
        del values["name"]
        says = "not complete"
    with pytest.raises(TrainingError, match=says):
        recipe_from_dict(values)


def test_bad_files(tmp_path):
    with pytest.raises(TrainingError, match="no recipe is called 'tiny-gpt'"):
        load_recipe("tiny-gpt")
    for text in ("{", "- 1", "\x00"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(TrainingError):
            load_recipe(tmp_path / "x.yaml")
    with pytest.raises(TrainingError, match="cannot be read"):
        load_recipe(tmp_path / "none.yaml")


def test_an_unknown_kind_is_told_before_anything_is_written(tmp_path):
    recipe = recipe_from_dict({"name": "x", "family": "llada", "steps": 1, "data": {"kinds": {"chess": 1}}})
    with pytest.raises(SinkscopeError, match="chess"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_dream_and_llama_shift_and_only_llama_is_causal():
    made = {f: Recipe("x", f, 1) for f in ("llama", "llada", "dream", "mmada")}
    assert [f for f, r in made.items() if r.shift] == ["llama", "dream"]
    assert [f for f, r in made.items() if r.causal] == ["llama"]
