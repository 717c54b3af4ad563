"""Packages of others, as pip would install them: from a folder with a pyproject.toml, or from the guide on extensions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "extend.md"
FILE = re.compile(r"[Ss]ave\s+it\s+as\s+`([\w.-]+)`[^`]*?```\w+\n(.*?)```", re.S)


def section(heading: str) -> str:
    """The text below a heading of the guide."""
    text = PAGE.read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(heading), re.S)


def saved(heading: str, folder: Path) -> Path:
    """The project of a section: every block behind "Save it as `NAME`", and the guide's pyproject.toml with its names."""
    files = FILE.findall(section(heading))
    (module,) = (name.removesuffix(".py") for name, _ in files if name.endswith(".py"))
    project = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    project = project.replace("fade-sinks", module.replace("_", "-")).replace("fade_sinks", module)
    listed = ", ".join(f'"{name}"' for name, _ in files)
    folder.mkdir(parents=True, exist_ok=True)
    project = re.sub(r"only-include = .*", f"only-include = [{listed}]", project)
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    for name, content in files:
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
