"""In the place of every file: a folder, a pipe, a socket, a device, a loop of links, a file that may not be read, odd names.

Pipes matter most: whoever opens one that nobody writes to waits for ever.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract import made, told
from privilege import laid_down

from lab.adaptation import ADAPTERS
from lab.train import main
from made_models import make_llada, save_tokenizer


@pytest.fixture(autouse=True)
def as_anyone() -> Iterator[None]:
    with laid_down():
        yield


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def plug(path: Path) -> None:
    short = Path(os.path.relpath(path))  # a socket's path may have 108 bytes
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    try:
        os.chdir(path.parent)
        server.bind(path.name)
    finally:
        os.chdir(here)
    assert short.exists()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def nowhere(path: Path) -> None:
    path.symlink_to("not-there")


def locked(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(PermissionError):  # os.access does not see that root has laid its privilege down
        path.read_bytes()


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    """A hole of ten gigabytes, which takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(10 << 30)


KINDS = (folder, pipe, plug, device, loop, nowhere, locked, nothing, zeros)


def put(path: Path, kind: Callable[[Path], None]) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("model")
    return make_llada(save_tokenizer(here / "whole", mask_token="<m>", eos_token="</s>"), layers=1, width=16)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("run")
    (here / "small.yaml").write_text(json.dumps({
        "name": "small", "models": [str(model)], "tasks": [{"name": "recall", "problems": 1}], "draws": 100,
        "decode": {"length": 4}, "trace": {"problems": 1, "keep": 1}, "conditions": ["none", {"name": "mask_sinks", "k": 1}],
    }))  # fmt: skip
    made("study", str(here / "small.yaml"), "--workers", "1", "--no-report", "-o", str(here / "run"))
    return here


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_files_that_commands_name(kind: Callable[[Path], None], model: Path, tmp_path: Path) -> None:
    for name, command in (
        ("one.yaml", ["study"]), ("one.trace", ["sinks"]), ("one.trace", ["report"]),
        ("one.trace", ["figures"]), ("one.gguf", ["generate"]), ("one", ["generate"]), ("run", ["report", "--text"]),
        ("run", ["merge"]),
    ):  # fmt: skip
        path = put(tmp_path / name, kind)
        words = [*command, str(path), *(["hello"] if command == ["generate"] else [])]
        assert told(*words).code == 2, words
    assert told(str(put(tmp_path / "recipe.yaml", kind)), run=main).code == 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_files_of_a_checkpoint(kind: Callable[[Path], None], model: Path, tmp_path: Path) -> None:
    for name in (
        "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "special_tokens_map.json", "generation_config.json", "adapter_config.json",
    ):  # fmt: skip
        here = tmp_path / name
        shutil.copytree(model, here)
        put(here / name, kind)
        told("generate", str(here), "--length", "2", "--", "Tom has two")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_files_of_a_run(kind: Callable[[Path], None], finished: Path, tmp_path: Path) -> None:
    unit = min((finished / "run" / "units").iterdir()).name
    trace = min((finished / "run" / "traces").iterdir()).name
    whole = (finished / "run" / "results.json").read_bytes()
    for name in (
        "results.json",
        "run.json",
        "study.yaml",
        "lock",
        f"units/{unit}",
        f"traces/{trace}",
        "results.parquet",
    ):
        run = tmp_path / name.replace("/", "-")
        shutil.copytree(finished / "run", run)
        put(run / name, kind)
        for command in (["report", "--text"], ["report", "-o", str(tmp_path / "page.html")], ["merge"]):
            told(*command, str(run))
        put(run / name, kind)
        found = told("study", str(finished / "small.yaml"), "--workers", "1", "--no-report", "-o", str(run))
        assert found.code == 2 or (run / "results.json").read_bytes() == whole


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_files_of_a_training(kind: Callable[[Path], None], tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(json.dumps({
        "name": "small", "family": "llada", "steps": 1, "batch": 2, "chunks": 1, "data": {"canvas": [12]},
        "shape": {"width": 8, "layers": 1, "heads": 2, "ffn": 8, "positions": 128},
    }))  # fmt: skip
    for name in ("recipe.yaml", "state.safetensors", "curve.jsonl", "tokenizer/tokenizer_config.json"):
        out = tmp_path / name.replace("/", "-") / "out"
        (out / name).parent.mkdir(parents=True)
        (out / "recipe.yaml").write_text("{}")
        put(out / name, kind)
        told(str(recipe), "-o", str(out), run=main)


NAMES = [
    "a\0b",
    "x" * 300,
    "x/" * 3000,
    "\x1b[2J",
    "\udcff",
    "..",
    "/",
    "",
    " ",
    "~nobody/x",
    "a\nb",
    "\u202e",
    "/dev/stdin",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # what lies beside the project may be a model
    for words in (
        ["study", name], ["sinks", name], ["report", name], ["figures", name], ["merge", name],
        ["compare", name, name], ["generate", name, "hello"], ["check", name], ["study", name + ".yaml"],
        ["sinks", name + ".trace"], ["generate", name + ".gguf", "hello"],
        ["trace", name, "hello", "-o", str(tmp_path / "x")],
    ):  # fmt: skip
        if words[0] == "report" and name == "..":
            continue  # a folder that is there, with whatever is in it
        assert told(*words).code == 2 or (words[0] == "check" and name in ("..", "/")), words
    for recipe in (name, name + ".yaml"):
        assert told(recipe, run=main).code == 2


def test_recipes_of_adapters_are_there() -> None:
    """The names above would otherwise be refused for another reason."""
    assert list(ADAPTERS.glob("*.yaml"))
