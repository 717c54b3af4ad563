"""Every public name has an example in the reference, and all of them run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import sinkscope as sk

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS / "reference" / "examples.py"


def test_every_public_name_has_an_example_that_uses_it() -> None:
    parts = re.split(r"^# ---- (\S+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sk.__all__) <= set(found)
    uses = {"Trace": "sk.Trace.load", "Model": "model.", "HookContext": "context."}
    assert [name for name in sk.__all__ if uses.get(name, f"sk.{name}") not in found[name]] == []
    for name in ("Call", "Change", "Memory", "Label", "Intervention", "Selector"):
        assert name in found[f"extend.{name}"]
    page = (DOCS / "reference" / "api.md").read_text()
    headings = set(re.findall(r'heading: "sk\.(\w+)"|^### sk\.(\w+)$', page, re.M))
    assert set(sk.__all__) <= {name for pair in headings for name in pair}


def test_the_examples_run(tmp_path: Path) -> None:
    """In a process of their own: they register a family and an intervention."""
    done = subprocess.run([sys.executable, str(EXAMPLES)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "mine" / "results.json").is_file()
