"""What came out, on one screen: what ran, the paper's claims, one table, the controls, and where everything else is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from sinkscope import paper
from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.io.progress import clock
from sinkscope.study import vocabulary
from sinkscope.study.analysis.losses import ModelRows, solvable
from sinkscope.study.analysis.verdicts import first_point
from sinkscope.study.analysis.wording import cut, figure
from sinkscope.study.results import Claim, Control, LikelihoodChange, PooledCell, Results

WIDTH = 80
LINES = 42  # the command adds where it wrote the page and the numbers
SMALL = 100_000_000  # parameters below which a model is no language model that anyone would use
# Claims in a few words, by their names.
SHORT = {
    "sinks_exist": "sinks in every DLM", "moving": "DLM sinks move, ARM's stand", "one_sink": "one sink costs a DLM little",
    "arm_sink": "its sink is vital to an ARM", "structural": "sinks are structural", "threshold": "ε = 3 leaves 96 % out",
    "deeper": "deeper: fewer, stronger", "confidence": "less sure, hence later",
}  # fmt: skip
# Of the models scored on true answers, the lines that there is room for.
BY_ANSWERS = ("one_sink", "arm_sink")  # claims that more problems can decide
SHOWN = ("top key", "strong sink", "content key", "random, ≤ its mass", "position 0")


def summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 42 lines of 80 columns; what does not fit is in the full tables, and the summary says how to see them."""
    head = [*_ran(results, seconds), "", *_claims(results.claims or [])]
    if scored := list(_pair(results)):
        head += ["", *scored]
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
    """A line per model: K sinks masked, as many random keys, random keys of their mass; those that do not fit are counted."""
    names = list(dict.fromkeys(cell.model for cell in results.pooled))
    found = {name: _masked_by_k(results, name) for name in names}
    ks = sorted({k for _, rows in found.values() for k in rows})[:3]
    lines = [_line(name, base, rows, ks) for name, (base, rows) in found.items() if rows]
    if not lines:
        yield from _by_condition(results, room)
        return
    wide = 4 * len(ks)
    heads = "".join(f"{k:>4}" for k in ks)
    sinks = f"{f'K={ks[0]} [change]':>15}{heads[4:]}"
    yield f"{'Right answers in %':<18}{'sinks masked':^{len(sinks)}}|{'as many':^{wide}}|{'same mass':^{wide}}| paper,"
    yield f"  {'':<11}{'none':>5}{sinks}|{heads}|{heads}| GSM8K"
    room -= 2
    yield from lines if len(lines) <= room else [*lines[: room - 1], f"  … and {len(lines) - room + 1} lines more"]


def _by_condition(results: Results, room: int) -> Iterator[str]:
    """A line per condition, where a study masks no top keys: right answers of every model, and their change."""
    cells = [row for row in results.pooled if row.setting == results.pooled[0].setting]
    models = list(dict.fromkeys(row.model for row in cells))[:4]
    found = {(row.label, row.model): solvable(row) for row in cells}
    labels = list(dict.fromkeys(row.label for row in cells if not vocabulary.is_untouched(row.condition)))
    if not labels:
        return
    wide = 14
    name = WIDTH - 2 - wide * len(models)
    yield "Right answers in %; in brackets the change, 95 %:"
    shared = _shared(labels)
    head = cut(f"{shared.strip()} …" if shared else "", name - 1)
    yield f"  {head:<{name}}" + "".join(f"{cut(model, wide - 1):>{wide}}" for model in models)
    bases = "".join(f"{_share(found.get(('none', model))):>{wide}}" for model in models)
    yield f"  {'nothing changed':<{name}}{bases}"
    lines = [
        f"  {cut(vocabulary.without_defaults(label.removeprefix(shared)), name - 1):<{name}}"
        + "".join(f"{_changed(found.get((label, m))):>{wide}}" for m in models)
        for label in labels
    ]
    room -= 3
    yield from lines if len(lines) <= room else [*lines[: room - 1], f"  … and {len(lines) - room + 1} lines more"]


def _shared(labels: Sequence[str]) -> str:
    """The words that all labels begin with."""
    words = [label.split(" ") for label in labels]
    same = list(takewhile(lambda place: len(set(place)) == 1, zip(*words, strict=False)))
    return "".join(f"{place[0]} " for place in same) if len(labels) > 1 else ""


def _changed(row: PooledCell | None) -> str:
    if row is None:
        return "–"
    return f"{_share(row)} [{100 * row.difference_low:+.0f},{100 * row.difference_high:+.0f}]"


def _masked_by_k(results: Results, name: str) -> tuple[PooledCell, dict[int, PooledCell]]:
    of = ModelRows(first_point(results.of(name)), 0.0)
    return of.base, {row.condition["k"]: row for row in of.masked()}


def _line(name: str, base: PooledCell, rows: Mapping[int, PooledCell], ks: Sequence[int]) -> str:
    first = rows.get(ks[0])
    told = _changed(first)
    sinks = "".join(f"{_share(rows.get(k)):>4}" for k in ks[1:])
    random = "|".join(
        "".join(f"{_share(rows[k].controls.get(match) if k in rows else None):>4}" for k in ks)
        for match in ("count", "mass")
    )
    line = f"  {cut(name, 11):<11}{100 * base.accuracy:>5.0f}{told:>15}{sinks}|{random}| {_paper(base, ks)}"
    return line.rstrip(" |")


def _share(row: PooledCell | Control | None) -> str:
    return "–" if row is None else f"{100 * row.accuracy:.0f}"


def _paper(row: PooledCell, ks: Sequence[int]) -> str:
    """none → masked on GSM8K, as the paper has them; HumanEval is in the full tables."""
    before, *after = (paper.accuracy(row.family, "arithmetic", k) for k in (0, *ks))
    if before is None or None in after:
        return ""
    return f"{100 * before:.0f}→{' '.join(f'{100 * (one or 0):.0f}' for one in after)}"


def _pair(results: Results) -> Iterator[str]:
    """What one masked key per head costs in the likelihood of true answers, the models side by side."""
    kinds = {row.model: "ARM" if row.causal else "DLM" for row in results.likelihood if row.of == "answers"}
    models = list(kinds)[:2]
    if not models:
        return
    yield "Nats per token of true answers; change [95 %], and share of the attention taken:"
    yield f"  {'one key per head':<18}" + "".join(f"{f'{cut(name, 16)} ({kinds[name]})':>28}" for name in models)
    for name, rows in vocabulary.side_by_side(results.likelihood).items():
        if name in SHOWN:
            yield f"  {name:<18}" + "".join(f"{_nats(rows.get(model)):>28}" for model in models)


def _nats(row: LikelihoodChange | None) -> str:
    if row is None:
        return "–"
    taken = "" if row.mass_share is None else f"{100 * row.mass_share:>4.0f} %"
    return f"{row.difference:+.2f} [{row.difference_low:+.2f},{row.difference_high:+.2f}]{taken}"


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
    undecided = sum(claim.verdict == "undecided" and claim.name in BY_ANSWERS for claim in results.claims or [])
    if undecided:
        yield f"Undecided claims need more problems: sinkscope study {results.run.study} -n 340"
    if folder is not None:
        command = f"sinkscope report {folder} --text --full"
        yield "All tables and verdicts:"
        yield f"  {command if len(command) <= WIDTH - 2 else 'sinkscope report FOLDER --text --full'}"
