"""What the process around the library sees: no output unless asked for, and documented environment variables."""

from __future__ import annotations

import logging
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READS = re.compile(r"""(?:environ\.get\(|getenv\(|environ\[)\s*["'](\w+)["'](?!\]\s*=)""")
# Lines of other packages' own loggers, which say what is missing in this machine's builds of them.
FOREIGN = re.compile(r"torchao|_pytree\.py")


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def documented() -> set[str]:
    variables = runpy.run_path(str(ROOT / "docs" / "generate.py"))["VARIABLES"]
    return {name for names in variables for name in names.split(", ")}


def test_every_variable_that_the_package_reads_is_in_the_table() -> None:
    read = {name for path in sources("src/sinkscope", "lab") for name in READS.findall(path.read_text())}
    assert "SINKSCOPE_LOG" in read and read <= documented()


def test_every_variable_of_ours_is_in_the_table_and_the_table_has_no_other() -> None:
    files = [*sources("src/sinkscope", "lab", "tests", "benchmarks", "docs"), ROOT / "Makefile"]
    named = {name for path in files for name in re.findall(r"\bSINKSCOPE_[A-Z]+\b", path.read_text())}
    ours = {name for name in documented() if name.startswith("SINKSCOPE_")}
    assert named - {"SINKSCOPE_SECRET"} == ours  # which a test of the sandbox makes up
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert all(f"`{name}`" in page for name in documented())


def test_the_library_prints_nothing(tmp_path: Path) -> None:
    code = f"""
import sinkscope as sk
model = sk.load("tiny-llada")
prompt = "Tom has 3 apples."
model.generate(prompt, length=4, steps=2)
trace = sk.trace(model, prompt, length=4, steps=2)
trace.sinks(), trace.heads(), trace.to_frame()
with sk.intervene(model, sk.MaskSinks(k=1)), sk.hook(model, "resid_post", lambda activation, context: None):
    model.generate(prompt, length=4, steps=2)
assert trace.show().is_file()
study = sk.Study.from_dict({{
    "name": "silent", "models": ["tiny-llada"], "tasks": [{{"name": "recall", "problems": 1}}], "draws": 100,
    "decode": {{"length": 4, "steps": 2}}, "conditions": ["none", {{"name": "mask_sinks", "k": 1}}]}})
run = sk.run(study, {str(tmp_path / "run")!r}, workers=1)
repr(run), run.cells(), run.summary()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not FOREIGN.search(line)]
    assert (done.stdout, said) == ("", [])


def test_no_module_of_the_library_prints() -> None:
    """Lines that are the answers of a worker, or a log that a command asked for, go to a stream that is named."""
    prints = re.compile(r"^\s*print\((?!.*file=)", re.M)
    wrong = [path for path in sources("src/sinkscope") if prints.search(path.read_text()) and "cli" not in path.parts]
    assert wrong == []


def test_messages_of_a_run_are_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    import sinkscope as sk

    study = sk.Study.from_dict({
        "name": "logged", "models": ["tiny-llada"], "tasks": [{"name": "recall", "problems": 1}], "draws": 100,
        "decode": {"length": 4, "steps": 2}, "conditions": ["none"],
    })  # fmt: skip
    with caplog.at_level(logging.INFO, logger="sinkscope"):
        sk.run(study, tmp_path / "run", workers=1)
    assert ("sinkscope.study.run", "loading tiny-llada") in [(one.name, one.getMessage()) for one in caplog.records]


@pytest.mark.parametrize(("level", "heard"), [("debug", True), ("warning", False), ("nonsense", False)])
def test_the_command_prints_what_is_logged_from_the_level_on(
    level: str, heard: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sinkscope.cli import app

    monkeypatch.setenv("SINKSCOPE_LOG", level)
    log = logging.getLogger("sinkscope")
    before = log.level, list(log.handlers), logging.getLogRecordFactory()
    shown = warnings.showwarning
    try:
        app.prepare()
        logging.getLogger("sinkscope.study.run").info("a line\x1b[2J")
        logging.getLogger("sinkscope.study.run").warning("a warning")
    finally:
        log.setLevel(before[0])
        log.handlers[:] = before[1]
        logging.setLogRecordFactory(before[2])
        warnings.showwarning = shown
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "sinkscope.study.run: a warning"
    assert (len(lines) == 2) == heard and "\x1b" not in "".join(lines)


def test_a_python_without_docstrings_is_refused_in_one_sentence() -> None:
    """transformers parses them when it is imported."""
    words = [sys.executable, "-OO", "-m", "sinkscope", "generate", "tiny-llada", "x"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stderr.splitlines() if not FOREIGN.search(line)]
    assert done.returncode == 2 and len(lines) == 1 and "docstrings" in lines[0] and not done.stdout
