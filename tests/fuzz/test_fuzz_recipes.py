"""Recipe files: every field of every shipped recipe changed, and text that is hardly YAML."""

from __future__ import annotations

from pathlib import Path

import yaml
from changed_values import changed
from contract import answered, fuzz, told
from hypothesis import given
from hypothesis import strategies as st

from lab.adaptation import ADAPTERS, Adaptation, adaptation_from_dict, find_adaptation
from lab.recipe import RECIPES, Recipe, load_recipe, recipe_from_dict
from lab.train import main
from sinkscope.errors import SinkscopeError

SHIPPED = {path.stem: path.read_text(encoding="utf-8") for path in (*RECIPES.glob("*.yaml"), *ADAPTERS.glob("*.yaml"))}
LINES = st.sampled_from(
    [b"&a [*a, *a]", b"{" * 400, b"- " * 300, b"!!python/object:os.system ", b"\t", b"? [a]: b", b"\x1b[2J", b"\xff", b"\0",
     b"a: &x [1,1,1,1,1,1,1,1]\nb: &y [*x,*x,*x,*x,*x,*x,*x,*x]\nc: &z [*y,*y,*y,*y,*y,*y,*y,*y]\nd: [*z,*z,*z,*z,*z,*z,*z]\n"]
)  # fmt: skip


def read(file: Path) -> Recipe | Adaptation:
    """As `train` reads it."""
    return find_adaptation(file) or load_recipe(file)


def check(file: Path) -> None:
    found = answered(lambda: read(file))
    if isinstance(found, SinkscopeError):
        said = told(str(file), "-o", str(file.parent / "out"), run=main).err
        assert len(said.splitlines()) == 1 and len(said) < 1200 and not (file.parent / "out").exists()
    else:
        make = adaptation_from_dict if isinstance(found, Adaptation) else recipe_from_dict
        assert make(found.to_dict()) == found and yaml.safe_dump(found.to_dict())


@fuzz
@given(data=st.data(), name=st.sampled_from(sorted(SHIPPED)))
def test_a_changed_recipe_is_read_or_refused(data: st.DataObject, name: str, tmp_path: Path) -> None:
    base = yaml.safe_load(SHIPPED[name])
    made = (adaptation_from_dict if "base" in base else recipe_from_dict)(base).to_dict()  # every field, defaults too
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(changed(data, made), allow_unicode=False), encoding="utf-8")
    check(file)


@fuzz
@given(name=st.sampled_from(sorted(SHIPPED)), place=st.integers(0, 900), junk=st.one_of(st.binary(max_size=12), LINES))
def test_damaged_text_is_read_or_refused(name: str, place: int, junk: bytes, tmp_path: Path) -> None:
    data = SHIPPED[name].encode()
    file = tmp_path / "recipe.yaml"
    file.write_bytes(data[:place] + junk + data[place:])
    check(file)
