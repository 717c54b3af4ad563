"""Packages of others, as pip would install them: from a folder with a pyproject.toml, or from a how-to page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def saved(page: str, folder: Path) -> Path:
    """The project of a page: its pyproject.toml, and every block behind "Save it as `NAME`"."""
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(blocks(page, "toml")[0], encoding="utf-8")
    for name, content in re.findall(r"[Ss]ave\s+it\s+as\s+`([\w.-]+)`[^`]*?```\w+\n(.*?)```", text, re.S):
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def built(project: Path, out: Path) -> Path:
    """Where the project's wheel was unpacked: modules, data and entry points."""
    start = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", start, str(out)], cwd=project, check=True, capture_output=True, text=True
    )
    site = out / "site"
    zipfile.ZipFile(out / done.stdout.split()[-1]).extractall(site)
    return site


def with_path(site: Path) -> dict[str, str]:
    """The environment of a process that finds the package."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *([before] if before else [])])}
