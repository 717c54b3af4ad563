"""The atlas: our entries hold, its page is theirs, and an entry in which anything was changed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.atlas import FOLDER, PAGE, main, page, problems, read_entry
from sinkscope.errors import StudyError
from sinkscope.results.atlas import digest_of, to_json

Change = Callable[[dict[str, Any]], object]


def changed(path: Path, change: Change, sealed: bool = True) -> Path:
    """An entry in which something is another; sealed: with the digest of what is there now, as a forger would have it."""
    entry = json.loads((FOLDER / "tiny-paper.json").read_text())
    change(entry)
    if sealed:
        entry["digest"] = digest_of({name: value for name, value in entry.items() if name != "digest"})
    path.write_text(json.dumps(entry))
    return path


def masked(entry: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in entry["rows"] if row["condition"]["name"] == "mask_sinks" and row["lost"])


def noop(entry: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in entry["rows"] if row["label"] == "noop")


def cost(entry: dict[str, Any]) -> dict[str, Any]:
    return next(claim for claim in entry["claims"] if claim["name"] == "one_sink")


def test_our_entries_hold_and_the_page_is_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    entries = {path.stem: read_entry(path) for path in sorted(FOLDER.glob("*.json"))}
    assert len(entries) >= 7 and PAGE.read_text() == page(entries)
    assert all((FOLDER / f"{name}.json").read_text() == to_json(entry.plain()) for name, entry in entries.items())


FORGED: dict[str, Change] = {
    "a rate": lambda entry: masked(entry).update(rate=masked(entry)["rate"] + 0.1),
    "an interval": lambda entry: masked(entry).update(high=masked(entry)["high"] - 0.01),
    "a count": lambda entry: masked(entry).update(right=masked(entry)["right"] + 1),
    "a lost answer": lambda entry: masked(entry).update(lost=masked(entry)["lost"] - 1),
    "more right than asked": lambda entry: masked(entry).update(right=masked(entry)["n"] + 1),
    "a p": lambda entry: masked(entry).update(p=1.0),
    "a verdict": lambda entry: cost(entry).update(verdict="supports"),
    "the figure of a claim": lambda entry: cost(entry).update(estimate=0.0, low=-1.0, high=1.0, verdict="supports"),
    "a claim of nobody": lambda entry: cost(entry).update(name="invented"),
    "keys that leak": lambda entry: masked(entry).update(leak=0.1),
    "a no-op that changed answers": lambda entry: noop(entry).update(lost=1, won=1),
    "no random control": lambda entry: masked(entry).update(control=None),
    "a control that failed": lambda entry: entry["controls"][0].update(held=False, failed=1),
    "no controls": lambda entry: entry.update(controls=[]),
    "no unmasked row": lambda entry: entry.update(rows=[row for row in entry["rows"] if row["label"] != "none"]),
    "a row twice": lambda entry: entry["rows"].append(entry["rows"][3]),
    "a model that is not listed": lambda entry: masked(entry).update(model="another"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_entry_is_refused(what: str, tmp_path: Path) -> None:
    path = changed(tmp_path / "entry.json", FORGED[what])
    assert problems(read_entry(path))
    assert main([str(path)]) == 1


def test_a_figure_that_was_edited_is_found_by_the_digest_too(tmp_path: Path) -> None:
    path = changed(tmp_path / "entry.json", lambda entry: entry["versions"].update(torch="9.9"), sealed=False)
    assert problems(read_entry(path)) == ["the digest is not that of the content"]


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(schema=2), lambda entry: entry.pop("schema"), lambda entry: entry.pop("controls"),
        lambda entry: entry.update(prompt="What is 2 + 2?"), lambda entry: masked(entry).update(text="4"),
        lambda entry: masked(entry).update(n="100"), lambda entry: masked(entry).update(rate=float("nan")),
    ],
)  # fmt: skip
def test_another_schema_is_refused(change: Change, tmp_path: Path) -> None:
    path = changed(tmp_path / "entry.json", change)
    with pytest.raises(StudyError):
        read_entry(path)
    assert main([str(path)]) == 1
