"""Run folders from elsewhere: unit files, run.json, results.json, study.yaml and the table, changed and then used.

A study that goes on in such a folder ends with the results it would have had, or refuses; what reads a run refuses too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from changed_values import changed
from contract import fuzz, made, told
from hypothesis import given
from hypothesis import strategies as st

from made_models import make_llada, save_tokenizer

READERS = (
    ("report", "--text"),
    ("report", "--text", "--full"),
    ("report", "--text", "--json"),
    ("report", "-o", "page.html"),
    ("figures", "--format", "svg", "-o", "drawn"),
    ("compare",),
    ("merge",),
)
BYTES = st.one_of(st.binary(max_size=12), st.sampled_from([b"[" * 50_000, b"{", b"\x00", b"1e999", b"\xff\xfe"]))


class Folder:
    """A finished run that can be spoilt and made whole again."""

    def __init__(self, folder: Path, study: Path) -> None:
        self.run, self.study = folder / "run", study
        made(*self.words)
        self.kept = folder / "kept"
        shutil.copytree(self.run, self.kept)
        self.units = sorted(path.name for path in (self.run / "units").glob("*.json"))
        self.results = (self.run / "results.json").read_bytes()

    @property
    def words(self) -> tuple[str, ...]:
        return "study", str(self.study), "--workers", "1", "--no-report", "--json", "-o", str(self.run)

    def restore(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.kept, self.run)

    def used(self, words: tuple[str, ...]) -> None:
        """A command that reads the run."""
        named = [str(self.run)] + ([str(self.kept)] if words[0] == "compare" else [])
        into = {"page.html": str(self.run / "page.html"), "drawn": str(self.run / "drawn")}
        told(words[0], *(into.get(word, word) for word in words[1:]), *named)

    def resumed(self) -> None:
        found = told(*self.words)
        assert found.code == 2 or (self.run / "results.json").read_bytes() == self.results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    here = tmp_path_factory.mktemp("runs")
    model = make_llada(save_tokenizer(here / "model", mask_token="<m>", eos_token="</s>"), layers=1, width=16)
    study = here / "small.yaml"
    study.write_text(json.dumps({
        "name": "small", "models": [str(model)], "tasks": [{"name": "recall", "problems": 2}], "draws": 100,
        "decode": {"length": 4}, "trace": {"problems": 1, "keep": 1},
        "conditions": ["none", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}],
    }))  # fmt: skip
    return Folder(here, study)


@fuzz
@given(data=st.data())
def test_a_changed_unit_is_measured_again(data: st.DataObject, folder: Folder) -> None:
    folder.restore()
    path = folder.run / "units" / data.draw(st.sampled_from(folder.units))
    if data.draw(st.integers(0, 4)):
        path.write_text(json.dumps(changed(data, json.loads(path.read_text()))))
    else:
        held = path.read_bytes()
        place = data.draw(st.integers(0, len(held)))
        path.write_bytes(held[:place] + data.draw(BYTES) + held[place + data.draw(st.integers(0, 9)) :])
    if data.draw(st.booleans()):
        folder.used(("merge",))
        assert (folder.run / "results.json").read_bytes() == folder.results
    folder.resumed()


@fuzz
@given(data=st.data(), name=st.sampled_from(["run.json", "results.json"]), words=st.sampled_from(READERS))
def test_a_changed_file_is_used_or_refused(
    data: st.DataObject, name: str, words: tuple[str, ...], folder: Folder
) -> None:
    folder.restore()
    path = folder.run / name
    if data.draw(st.integers(0, 7)):
        path.write_text(json.dumps(changed(data, json.loads(path.read_text()))))
    else:
        held = path.read_bytes()
        place = data.draw(st.integers(0, len(held)))
        path.write_bytes(held[:place] + data.draw(BYTES) + held[place:])
    folder.used(words)
    if not data.draw(st.integers(0, 3)):
        folder.resumed()


@fuzz
@given(data=st.data(), words=st.sampled_from(READERS))
def test_a_damaged_plan_or_table(data: st.DataObject, words: tuple[str, ...], folder: Folder) -> None:
    folder.restore()
    path = folder.run / data.draw(st.sampled_from(["study.yaml", "results.parquet"]))
    held = path.read_bytes()
    place = data.draw(st.integers(0, len(held)))
    path.write_bytes(held[:place] + data.draw(BYTES) + held[place + data.draw(st.integers(0, 50)) :])
    folder.used(words)
    if not data.draw(st.integers(0, 3)):
        folder.resumed()
