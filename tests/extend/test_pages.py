"""Every section of the guide on extensions, as pasted: its files are built into a wheel, its lines run, its study is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import sinkscope as sk
from made_packages import blocks, built, saved
from sinkscope.errors import PluginError

TEMPLATE = Path(__file__).parents[2] / "examples" / "sinkscope-template" / "src" / "sinkscope_template"
PAGES = {
    "Task": ["counting.py"],
    "Condition that changes decode settings": ["warmer.py"],
    "Intervention": ["fade_sinks.py"],
    "Sink rule": ["near_top.py"],
    "Model family": ["two_way.py"],
    "Commit rule": ["leftmost.py"],
    "Evaluation protocol": ["protocols.py", "two-way-authors.yaml"],
}
Install = Callable[[Path], None]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_when_pasted(
    page: str, tmp_path: Path, installed: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = saved(page, tmp_path / "project")
    for name in PAGES[page]:  # the template and the page show the same
        assert (project / name).read_text() == (TEMPLATE / name).read_text()
    installed(built(project, tmp_path / "wheel"))
    monkeypatch.chdir(tmp_path)
    for lines in [one for one in blocks(page, "python") if one not in {path.read_text() for path in project.iterdir()}]:
        exec(compile(lines, page, "exec"), {})
        assert capsys.readouterr().out.strip()
    for text in blocks(page, "yaml"):
        values = yaml.safe_load(text)
        if "conditions" in values:
            assert sk.Study.from_dict(values).name == values["name"]


def write_package(folder: Path, name: str, lines: str) -> None:
    """A package of one module, as pip would leave it."""
    (folder / f"{name}.py").write_text(lines)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sinkscope.plugins]\nmine = {name}\n")


@pytest.mark.parametrize("kind", ["tasks", "families", "rules", "commit_rules", "protocols"])
def test_a_package_that_cannot_be_imported_is_one_sentence(kind: str, tmp_path: Path, installed: Install) -> None:
    write_package(tmp_path, "broken", "raise RuntimeError('half\\nwritten')")
    installed(tmp_path)
    uses = {
        "tasks": lambda: sk.tasks.problems("mine", 1),
        "families": lambda: sk.load("tiny-llada"),
        "rules": lambda: sk.Study.from_dict({**STUDY, "rules": [{"rule": "mine"}]}),
        "commit_rules": lambda: sk.Study.from_dict({**STUDY, "decode": {"commit": "mine"}}),
        "protocols": lambda: __import__("sinkscope.tasks.protocol").tasks.protocol.protocol_for("a/b"),
    }
    for _ in range(2):  # the second time too
        with pytest.raises(PluginError, match=r"broken-thing .* mine = broken") as caught:
            uses[kind]()
        assert "\n" not in str(caught.value)
    # What asks for a name that is there needs no such package.
    next(sk.tasks.problems("arithmetic", 1))
    sk.Decode.llada(length=8)
    sk.Threshold(3)


STUDY = {
    "name": "one",
    "models": ["tiny-llada"],
    "tasks": [{"name": "arithmetic", "problems": 1}],
    "conditions": ["none"],
}


def test_a_package_may_ask_a_registry_while_it_is_imported(tmp_path: Path, installed: Install) -> None:
    lines = "import sinkscope as sk\nfrom sinkscope.extend import Task, register_task, same_final\n"
    lines += "known = sk.tasks.TASKS.names()\nregister_task(Task('asks', None, same_final))"
    write_package(tmp_path, "asks", lines)
    installed(tmp_path)
    assert "asks" in sk.tasks.TASKS.names()


def test_a_name_that_is_taken_is_told_with_the_package(tmp_path: Path, installed: Install) -> None:
    lines = "from sinkscope.extend import *\n@register_commit_rule('quota')\nclass Mine(CommitRule): pass"
    write_package(tmp_path, "taken", lines)
    installed(tmp_path)
    with pytest.raises(PluginError, match=r"package taken.*'quota' exists already"):
        sk.Decode.llada(8, commit="mine")
