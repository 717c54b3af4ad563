"""The atlas: entries in atlas/, checked one by one, and the page that compares them with the paper and with each other.

`python -m lab.atlas` checks every entry and writes docs/reference/atlas.md; `--check` writes nothing. Files named behind it are
checked alone: `python -m lab.atlas entry.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sinkscope import paper
from sinkscope.errors import StudyError
from sinkscope.files import read_object, short
from sinkscope.results import series as vocabulary
from sinkscope.results.atlas import SCHEMA, controls_of, digest_of, figures
from sinkscope.results.claim_tests import Test
from sinkscope.results.claims import STATEMENTS
from sinkscope.results.rows import ClaimVerdict, Interval

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "atlas"
PAGE = ROOT / "docs" / "reference" / "atlas.md"
LARGEST = 4 << 20  # bytes of an entry
SAME = 2e-6  # what rounding may change
# Claims that a statistic is below its limit.
BELOW = (
    "sinks_move", "arm_sink", "deeper_fewer", "confidence", "beyond_control", "tasks_differ", "weakened", "held", "settings_differ",
)  # fmt: skip
FROM_ROWS = ("strong_sink", "one_sink", "arm_sink")  # claims about a row of the table, where their unit is points
DECIMALS = 500  # problems from which on a tenth of a point is shown
KS = (1, 5, 10)  # of the paper
SIZES = {100e6: "miniature", 1e9: "small", float("inf"): "full size"}  # up to so many parameters


# ---- the schema of an entry


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EntryModel(_Part):
    """The checkpoint: `fingerprint` is the hash of its weights, `revision` the commit that was asked for."""

    name: str
    family: str
    causal: bool
    parameters: int
    layers: int
    heads: int
    dtype: str
    fingerprint: str
    revision: str | None
    settings: dict[str, dict[str, Any]]  # of decoding, by point of the sweep or by benchmark


class EntryRow(_Part):
    """One model, task and condition; rates and differences are shares, `control` is the label of its random control."""

    model: str
    task: str
    setting: str
    label: str
    condition: dict[str, Any]
    n: int
    right: int
    rate: float
    low: float
    high: float
    lost: int
    won: int
    difference: float
    difference_low: float
    difference_high: float
    p: float
    mass_share: float | None
    leak: float
    hides: bool  # the condition hides keys, which must then receive nothing
    control: str | None


class EntryClaim(_Part):
    name: str
    model: str
    paper_model: str | None
    condition: str
    verdict: ClaimVerdict
    estimate: float
    low: float
    high: float
    limit: float
    unit: str
    n: int


class EntryControl(_Part):
    """no-op: answers that changed; took effect: rows in which hidden keys received attention; random keys: rows without."""

    name: Literal["no-op", "took effect", "random keys"]
    model: str
    rows: int
    failed: int
    held: bool


class Entry(_Part):
    schema_number: Literal[1] = Field(alias="schema")
    kind: Literal["study", "table1"]
    name: str
    models: list[EntryModel]
    protocol: dict[str, Any]
    versions: dict[str, str]
    device: dict[str, Any]
    claims: list[EntryClaim]
    controls: list[EntryControl]
    rows: list[EntryRow]
    digest: str

    def plain(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True)


# ---- what is refused


def read_entry(path: Path) -> Entry:
    """An entry as it was written; `problems` says whether its figures hold."""
    found = read_object(path, LARGEST, StudyError)
    if found.get("schema") != SCHEMA:
        came = short(repr(found.get("schema")), 40)
        raise StudyError(f"{path} must have schema {SCHEMA}, not {came}; export the run with this version.")
    try:
        return Entry.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise StudyError(f"{path} is no entry: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def problems(entry: Entry) -> list[str]:
    """What does not hold: figures that do not follow from the counts, controls that failed, another digest."""
    found = [*_whole(entry), *(wrong for row in entry.rows for wrong in _row(row, entry))]
    found += [
        f"{one.model}: the control {one.name} did not hold in {one.failed} of {one.rows} rows"
        for one in entry.controls
        if not one.held
    ]
    found += [
        f"{claim.model}, {claim.name}: the claim does not follow from its interval, or from its row"
        for claim in entry.claims
        if not _holds(claim, entry)
    ]
    return found


def _whole(entry: Entry) -> Iterator[str]:
    content = entry.plain()
    if content.pop("digest") != digest_of(content):
        yield "the digest is not that of the content"
    names = [one.name for one in entry.models]
    if not entry.rows or len(set(names)) < len(names):
        yield "it has no rows, or a model twice"
    keys = [(row.model, row.task, row.setting, row.label) for row in entry.rows]
    asked = {key[0] for key in keys}
    if len(set(keys)) < len(keys) or not asked <= set(names):
        yield "a row is a duplicate, or its model is not listed"
    if content["controls"] != [one for name in names for one in controls_of(name, content["rows"])]:
        yield "the controls are not those that follow from the rows"
    if without := sorted(asked - {one.model for one in entry.controls}):
        yield f"{without[0]} was run without any control"


def _row(row: EntryRow, entry: Entry) -> Iterator[str]:
    where = f"{row.model}, {row.task}, {row.label}"
    place = (row.model, row.task, row.setting, "none")
    base = next((one for one in entry.rows if (one.model, one.task, one.setting, one.label) == place), None)
    if base is None or not 0 <= row.right <= row.n <= base.n or row.n == 0 or min(row.lost, row.won) < 0:
        yield f"{where}: the counts cannot be, or there is no unmasked row"
        return
    # Of a run that was stopped early the unmasked row may have more problems than this one.
    grew = bool(entry.protocol.get("sequential")) and row.n < base.n
    if not grew and (base.n, base.right + row.won - row.lost) != (row.n, row.right):
        yield f"{where}: right answers are not those of the unmasked row, less those lost, plus those won"
    found = figures(row.n, row.right, row.lost, row.won)
    if wrong := [name for name, value in found.items() if abs(value - getattr(row, name)) > SAME]:
        yield f"{where}: {wrong[0]} does not follow from the counts"


def _holds(claim: EntryClaim, entry: Entry) -> bool:
    above = claim.name not in BELOW
    found = Interval(claim.estimate, claim.low, claim.high)
    test = Test(claim.name, claim.condition, found, claim.limit, above, claim.unit, claim.n)
    if not claim.low <= claim.estimate <= claim.high or claim.verdict not in ("no test", test.verdict):
        return False
    if claim.name not in STATEMENTS or claim.name not in FROM_ROWS or claim.unit != "points":
        return claim.name in STATEMENTS
    rows = [row for row in entry.rows if (row.model, row.label, row.n) == (claim.model, claim.condition, claim.n)]
    ours = [[100 * one for one in (row.difference, row.difference_low, row.difference_high)] for row in rows]
    given = (claim.estimate, claim.low, claim.high)
    return any(all(abs(a - b) <= 200 * SAME for a, b in zip(given, one, strict=True)) for one in ours)


# ---- the page


def page(entries: Mapping[str, Entry]) -> str:
    """Entries by the size of their models; claims and Table 1 with the paper's figures beside them."""
    parts = [
        "# Atlas",
        "",
        "<!-- Written by `python -m lab.atlas` from atlas/*.json: add an entry there, then run it. -->",
        "",
        "Every entry is one run, exported by `sinkscope export` and checked here: its schema, its controls, and that every "
        "rate, interval and claim follows from the counts. [How to add yours](../guides/studies.md#share-a-result).",
        "",
        "Models are marked by size: *miniature* below 100 M parameters, *small* below 1 B, *full size* from there on. A "
        "miniature shows that an effect can occur. It does not show that it occurs in a model of 8 B.",
        "",
    ]
    if not any(_size(model) == "full size" for entry in entries.values() for model in entry.models):
        parts += ['!!! note "No full-size model yet"', "    Anyone who has the GPU can add the first one.", ""]
    return "\n".join([*parts, *_table_1(entries), *_claims(entries), *_entries(entries)])


def _size(model: EntryModel) -> str:
    return next(name for most, name in SIZES.items() if model.parameters < most)


def _shown_size(model: EntryModel) -> str:
    count = model.parameters
    return f"{_size(model)}, {count / 1e9:.1f} B" if count >= 1e9 else f"{_size(model)}, {count / 1e6:.3g} M"


def _largest_first(entries: Mapping[str, Entry]) -> list[tuple[str, Entry, EntryModel]]:
    found = [(name, entry, model) for name, entry in entries.items() for model in entry.models]
    return sorted(found, key=lambda one: (-one[2].parameters, one[2].name, one[0]))


def _table_1(entries: Mapping[str, Entry]) -> Iterator[str]:
    yield "## Masked sinks, beside the paper's Table 1"
    yield ""
    yield (
        "Change of right answers in points, with its 95 % interval, paired with the unmasked run on the same problems. K keys "
        "per head are masked: its top keys, or random ones: as many (same count), or what draws the same attention (same mass). "
        "Sinks are ranked on unmasked attention, an autoregressive model's "
        "by its last row. The paper's change stands below, for the model and benchmark that ours stand for: read its "
        "direction, not its size."
    )
    found = _largest_first(entries)
    for name in dict.fromkeys(model.name for _, _, model in found):
        mine = [(entry, which, model) for entry, which, model in found if model.name == name]
        lines = [line for entry, which, model in mine for line in _measured(entry, which, model)]
        if lines:
            family = paper.family(name)
            stands = f"; stands for {paper.MODELS[family]}" if family else ""
            yield from ("", f"### {name} ({_shown_size(mine[0][2])}{stands})", "")
            yield "| entry | task | keys | unmasked | " + " | ".join(f"K = {k}" for k in KS) + " |"
            yield "|---|---|---|---|" + "---|" * len(KS)
            yield from lines
            yield from _of_the_paper(family)
    yield ""


def _measured(name: str, entry: Entry, model: EntryModel) -> Iterator[str]:
    """Two lines per task: the sinks by K, and their random controls."""
    rows = {(row.task, row.label): row for row in entry.rows if row.model == model.name and not row.setting}
    masked = [row for row in rows.values() if _is_ranked_as_theirs(row, model)]
    for task in dict.fromkeys(row.task for row in masked):
        base = rows[task, "none"]
        by_k = {int(row.condition["k"]): row for row in masked if row.task == task}
        random = {k: rows[task, row.control] for k, row in by_k.items() if row.control}
        matched = {row.condition.get("match") or "count" for row in random.values()}
        for keys, found in (("sinks", by_k), (f"random, same {' or '.join(sorted(matched))}", random)):
            if found:
                cells = [_change(found[k]) if k in found else "" for k in KS]
                yield f"| {name} | {task} | {keys} | {100 * base.rate:.0f} % of {base.n} | {' | '.join(cells)} |"


def _change(row: EntryRow) -> str:
    digits = 0 if row.n < DECIMALS else 1
    shown = [f"{100 * one:+.{digits}f}" for one in (row.difference, row.difference_low, row.difference_high)]
    shown = ["0" if float(one) == 0 else one.replace("-", "−") for one in shown]
    return f"{shown[0]} ({shown[1]}\u00a0…\u00a0{shown[2]})"


def _is_ranked_as_theirs(row: EntryRow, model: EntryModel) -> bool:
    plain = vocabulary.is_plain_masking(row.condition) and row.condition.get("rank") == "clean"
    return plain and row.condition.get("rows") == ("last" if model.causal else "all") and row.condition["k"] in KS


def _of_the_paper(family: str) -> Iterator[str]:
    for (theirs, benchmark), by_k in paper.TABLE_1.items():
        if theirs == family:
            changes = [round(100 * (by_k[k] - by_k[0])) for k in KS]
            cells = " | ".join(f"*{one:+d}*".replace("-", "−") if one else "*0*" for one in changes)
            shown = paper.BENCHMARK_NAMES[benchmark]
            yield f"| *the paper* | *{shown}* | *sinks* | *{100 * by_k[0]:.0f} %* | {cells} |"


def _claims(entries: Mapping[str, Entry]) -> Iterator[str]:
    yield "## The paper's claims, model by model"
    yield ""
    yield (
        "A claim is supported or contradicted where the whole 95 % interval lies on one side of its limit. Rows of the same "
        "model from different entries stand under each other."
    )
    for claim, text in ((name, one.sentence) for name, one in STATEMENTS.items()):
        rows = [
            (name, model, one)
            for name, entry, model in _largest_first(entries)
            for one in entry.claims
            if one.name == claim and one.model == model.name
        ]
        if not rows:
            continue
        yield from ("", f"### {text}", "")
        yield "| model | verdict | estimate (95 %) | limit | n | condition | entry |"
        yield "|---|---|---|---|---|---|---|"
        for name, model, one in rows:
            figure = f"{one.estimate:.3g} ({one.low:.3g}\u00a0…\u00a0{one.high:.3g}) {one.unit}".replace("-", "−")
            whose = f"**{model.name}**, {_shown_size(model)}"
            verdict = f"**{one.verdict}**" if one.verdict in ("supports", "contradicts") else one.verdict
            cells = [whose, verdict, figure, f"{one.limit:.3g}", str(one.n), _condition(one.condition), name]
            yield "| " + " | ".join(cells) + " |"
    yield ""


def _condition(label: str) -> str:
    return "" if label == "none" else vocabulary.without_defaults(label)


def _entries(entries: Mapping[str, Entry]) -> Iterator[str]:
    yield from ("## Entries", "")
    yield "| entry | models: first digits of the weights' hash | protocol, device, versions | controls that held | digest |"
    yield "|---|---|---|---|---|"
    for name, entry in entries.items():
        models = ", ".join(f"{one.name} (`{one.fingerprint[:8]}`{_revision(one)})" for one in entry.models)
        held = {one.name: 0 for one in entry.controls}
        for one in entry.controls:
            held[one.name] += one.rows
        versions = {one: entry.versions.get(one) for one in ("sinkscope", "torch", "transformers")}
        run = [entry.kind, _words(entry.protocol), _words(entry.device) or "device not recorded", _words(versions)]
        controls = ", ".join(f"{what} ({rows} rows)" for what, rows in held.items())
        cells = [f"`atlas/{name}.json`", models, "; ".join(run), controls, f"`{entry.digest[:12]}`"]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _revision(model: EntryModel) -> str:
    return f", revision {model.revision[:12]}" if model.revision else ""


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, {}, [], ""))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.atlas", description=__doc__)
    parser.add_argument("entries", nargs="*", type=Path, help="check these alone")
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    entries, wrong = {}, []
    for path in asked.entries or sorted(FOLDER.glob("*.json")):
        try:
            entries[path.stem] = read_entry(path)
            wrong += [f"{path}: {line}" for line in problems(entries[path.stem])]
        except StudyError as error:
            wrong.append(str(error))
    print("\n".join(wrong) or f"{len(entries)} entries hold")
    if not wrong and not asked.entries:
        text = page(entries)
        if asked.check and (not PAGE.is_file() or PAGE.read_text() != text):
            print(f"{PAGE.name} is out of date: run python -m lab.atlas")
            return 1
        if not asked.check:
            PAGE.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
