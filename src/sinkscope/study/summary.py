"""What came out, on one screen: what ran, the paper's claims, one table, the controls, and where everything else is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from sinkscope import paper
from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.study.analysis.agreement import figure
from sinkscope.study.analysis.losses import Model
from sinkscope.study.analysis.results import Results
from sinkscope.study.analysis.rows import Claim, PooledCell
from sinkscope.study.progress import clock

WIDTH = 80
LINES = 42  # the command adds where it wrote the page and the numbers
SMALL = 100_000_000  # parameters below which a model is no language model that anyone would use
# Claims in a few words, by their names.
SHORT = {
    "sinks_exist": "sinks in every DLM", "moving": "DLM sinks move, ARM's stand", "one_sink": "one sink costs a DLM little",
    "arm_sink": "its sink is vital to an ARM", "structural": "sinks are structural", "threshold": "ε = 3 leaves 96 % out",
    "deeper": "deeper: fewer, stronger", "confidence": "less sure, hence later",
}  # fmt: skip


def summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 42 lines of 80 columns; what does not fit is in the full tables, and the summary says how to see them."""
    head = [*_ran(results, seconds), "", *_claims(results.claims or [])]
    tail = ["", *_controls(results), *_more(results, folder)]
    table = list(_table(results, LINES - len(head) - len(tail) - 1))
    return "\n".join([*head, *([""] if table else []), *table, *tail]) + "\n"


def _ran(results: Results, seconds: float | None) -> Iterator[str]:
    run = results.run
    names = [str(model.get("name")) for model in run.models]
    took = "" if seconds is None else f", {clock(seconds)} (m:ss)"
    yield from textwrap.wrap(f"{run.study}: {', '.join(names)}; {run.units} units{took}.", WIDTH)
    sizes = [int(model.get("identity", {}).get("parameters") or 0) for model in run.models]
    if sizes and min(sizes) < SMALL:
        small = sum(size < SMALL for size in sizes)
        yield from textwrap.wrap(
            f"{small} of {len(sizes)} models are small ({min(sizes) / 1e6:.1f} M parameters and more): a test of the "
            "instrument, and of the claims in miniature.", WIDTH,
        )  # fmt: skip


def _claims(claims: list[Claim]) -> Iterator[str]:
    if not claims:
        yield "The paper's claims were not judged in this run."
        return
    yield "The paper's claims, and this run (intervals are 95 %):"
    for claim in claims:
        short = SHORT.get(claim.name, claim.name)
        line = f"  {claim.verdict:<15}{short}: {claim.figure}"
        if len(line) <= WIDTH:
            yield line
        else:
            yield f"  {claim.verdict:<15}{short}:"
            yield f"  {'':<15}{figure(claim.figure)}"


def _table(results: Results, room: int) -> Iterator[str]:
    """A line per model and K; those that do not fit are counted."""
    rows = [row for name in dict.fromkeys(cell.model for cell in results.pooled) for row in _model(results, name)]
    if not rows:
        return
    yield "Right answers in %, all tasks that a model can do; in brackets the change."
    yield f"  {'':<16}{'':>3}{'':>6}{'':>19}{'random keys':>16}{'paper: GSM8K':>16}"
    yield f"  {'':<16}{'K':>3}{'none':>6}{'sinks masked':>19}{'as many':>9}{'mass':>7}{'HumanEval':>16}"
    room -= 3
    yield from rows if len(rows) <= room else [*rows[: room - 1], f"  … and {len(rows) - room + 1} lines more"]


def _model(results: Results, name: str) -> Iterator[str]:
    pooled = [row for row in results.pooled if row.model == name]
    of = Model(name, {"pooled": [row for row in pooled if row.setting == pooled[0].setting]}, 0.0)
    for place, row in enumerate(of.masked()):
        told = f"{100 * row.accuracy:.0f} [{100 * row.difference_low:+.0f}, {100 * row.difference_high:+.0f}]"
        count, mass = (
            f"{100 * row.controls[match].accuracy:.0f}" if match in row.controls else "–" for match in ("count", "mass")
        )
        first = (_cut(name, 16), f"{100 * of.base.accuracy:.0f}") if place == 0 else ("", "")
        k = row.condition["k"]
        yield f"  {first[0]:<16}{k:>3}{first[1]:>6}{told:>19}{count:>9}{mass:>7}{_paper(row):>16}".rstrip()


def _paper(row: PooledCell) -> str:
    """none → masked, on both benchmarks."""
    found = []
    for task in paper.BENCHMARKS:
        before, after = (paper.accuracy(row.family, task, k) for k in (0, row.condition["k"]))
        if before is not None and after is not None:
            found.append(f"{100 * before:.0f}→{100 * after:.0f}")
    return " ".join(found)


def _controls(results: Results) -> Iterator[str]:
    noop = sum(cell.n for cell in results.cells if cell.condition["name"] == "noop")
    masked = sum(
        cell.mass_share is not None and cell.condition["name"] != "noop"
        and condition_from_dict(cell.condition).must_take_effect for cell in results.cells
    )  # fmt: skip
    told = [f"masking nothing changed none of {noop} answers"] if noop else []
    told += [f"masked keys received exactly 0 in {masked} cells"] if masked else []
    if told:
        yield from textwrap.wrap(f"Controls held: {'; '.join(told)}.", WIDTH)


def _more(results: Results, folder: Path | None) -> Iterator[str]:
    undecided = sum(claim.verdict == "undecided" for claim in results.claims or [])
    if undecided:
        yield f"Undecided claims need more problems: sinkscope study {results.run.study} -n 340"
    if folder is not None:
        command = f"sinkscope report {folder} --text --full"
        yield "All tables and verdicts:"
        yield f"  {command if len(command) <= WIDTH - 2 else 'sinkscope report FOLDER --text --full'}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
