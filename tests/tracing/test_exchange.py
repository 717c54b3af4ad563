"""A trace handed to others: a frame of received attention, maps for other viewers, files."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import sinkscope as sk
from sinkscope.errors import TraceError
from sinkscope.interventions.hooks import find_places

PROMPT = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
HEADS = ((1, 0), (1, 3), (4, 0), (4, 3))


@pytest.fixture(scope="module")
def model() -> sk.Model:
    return sk.load("tiny-llada")


@pytest.fixture(scope="module")
def trace(model: sk.Model) -> sk.Trace:
    return sk.trace(model, PROMPT, length=8, steps=4, keep=sk.Keep(maps=HEADS))


def test_the_frame_has_what_every_key_received(trace: sk.Trace) -> None:
    frame = trace.to_frame()
    scores = trace.scores()
    assert frame.height == scores.numel()
    assert torch.equal(torch.from_numpy(frame["received"].to_numpy().copy()), scores.flatten())
    row = frame.row(5 + 3 * trace.positions, named=True)
    assert (row["step"], row["layer"], row["head"], row["position"]) == (0, 0, 3, 5)
    assert row["id"] == trace.canvas[0, 5] and row["token"] == trace.vocabulary[row["id"]][0]
    assert set(frame["unit"]) == {"sum"} and set(frame["group"]) == {"all"}


def test_the_frame_leaves_out_keys_that_do_not_exist_yet() -> None:
    trace = sk.trace(sk.load("tiny-llama"), PROMPT, length=4)
    counts = trace.to_frame(group="committed", unit="mean").group_by("step", maintain_order=True).len()["len"]
    heads = trace.layers * trace.heads_count
    assert counts.to_list() == [heads * (trace.prompt_length + step) for step in range(trace.steps)]


def test_a_map_is_softmax_and_its_columns_are_what_was_received(trace: sk.Trace) -> None:
    assert trace.maps is not None and trace.map_heads == HEADS
    maps = trace.maps[2:, 2].float()  # of layer 4
    assert maps.shape == (2, trace.positions, trace.positions)
    assert torch.allclose(maps.sum(-1), torch.ones(2, trace.positions), atol=2e-3)
    assert torch.allclose(maps.sum(-2), trace.scores()[2, 4, [0, 3]], atol=2e-2)


def _changed(trace: sk.Trace, path: Path, **changes: str) -> Path:
    """The trace's file with other metadata."""
    with safe_open(str(trace.save(path)), framework="pt") as file:
        metadata = {**(file.metadata() or {}), **changes}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, str(path), metadata)
    return path


@pytest.mark.parametrize("schema", ["1", "3"])
def test_a_trace_of_another_schema_is_refused(trace: sk.Trace, tmp_path: Path, schema: str) -> None:
    with pytest.raises(TraceError, match=f"schema '{schema}', and this version reads 2"):
        sk.Trace.load(_changed(trace, tmp_path / "other", schema=schema))


def test_a_newer_setting_is_not_called_damage(trace: sk.Trace, tmp_path: Path) -> None:
    with safe_open(str(trace.save(tmp_path / "one")), framework="pt") as file:
        header = json.loads(file.metadata()["header"])
    header["settings"]["of_tomorrow"] = 1
    path = _changed(trace, tmp_path / "newer", sinkscope="99.0", header=json.dumps(header))
    with pytest.raises(TraceError, match=r"written by sinkscope 99\.0 .*of_tomorrow.*update sinkscope"):
        sk.Trace.load(path)
    path = _changed(trace, tmp_path / "same", header=json.dumps(header))
    with pytest.raises(TraceError, match="damaged"):
        sk.Trace.load(path)


def test_a_trace_of_an_older_writer_opens(trace: sk.Trace, tmp_path: Path) -> None:
    """Files of the first versions do not name their writer."""
    path = tmp_path / "older"
    with safe_open(str(trace.save(path)), framework="pt") as file:
        metadata = {name: text for name, text in (file.metadata() or {}).items() if name != "sinkscope"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, str(path), metadata)
    assert sk.Trace.load(path).to_frame().equals(trace.to_frame())


def test_sinks_are_written_as_csv(trace: sk.Trace, tmp_path: Path) -> None:
    from sinkscope.cli.app import run as command

    file = trace.save(tmp_path / "one.safetensors")
    assert command(["sinks", str(file), "--csv", str(tmp_path / "sinks.csv"), "--json"]) == 0
    assert pl.read_csv(tmp_path / "sinks.csv").height == trace.sinks().height


def test_the_names_of_the_page_are_places(model: sk.Model) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "activations.md").read_text()
    rows = re.findall(r"^\| `(blocks\.3\.[\w.]+)` \| `(layers\.3\.\w+)` \|", page, re.M)
    assert len(rows) == 8
    for theirs, ours in rows:
        found = [(one.layer, one.name, one.part) for name in (theirs, ours) for one in find_places(model.module, name)]
        assert found[0] == found[1]
    for theirs in ("blocks.3.hook_resid_mid", "blocks.3.attn.hook_attn_scores"):
        with pytest.raises(sk.SinkscopeError):
            find_places(model.module, theirs)


@pytest.mark.parametrize("page", ["guides/studies", "guides/activations"])
def test_the_lines_of_a_page_run(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "importlib_metadata", importlib.metadata)
    if page == "guides/activations":
        pytest.importorskip("bertviz", reason="bertviz is not installed")
        pytest.importorskip("circuitsvis", reason="circuitsvis is not installed")
    monkeypatch.chdir(Path(__file__).parents[2])
    text = Path("docs", f"{page}.md").read_text()
    names: dict[str, object] = {}
    for lines in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(lines, page, "exec"), names)
