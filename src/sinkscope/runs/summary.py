"""What came out, on one screen: what ran, the paper's claims, one table, the controls, and where everything else is."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.io.progress import clock
from sinkscope.runs import matrix
from sinkscope.study import vocabulary
from sinkscope.study.analysis.model_rows import first_point, solvable
from sinkscope.study.results import Claim, LikelihoodChange, PooledCell, Results
from sinkscope.study.schema import shipped
from sinkscope.study.text import WIDTH, aligned, cut, nats

LINES = 38  # the command adds where it wrote the page and the numbers
SMALL = 100_000_000  # parameters below which a model is no language model that anyone would use
CONCLUSION = 4  # lines
# Claims about what masking costs, and the keys that are masked.
KEYS = {"strong_sink": "its strong sinks", "one_sink": "its top keys", "arm_sink": "its sinks"}
# Of the models scored on true answers, the lines that there is room for, most wanted first.
SHOWN = ("top key", "strong sink", "random, ≤ its mass", "content key", "position 0")


def summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 40 lines of 80 columns; what does not fit is in the full tables, and the summary says how to see them."""
    claims = results.claims or []
    head = [*_conclusion(results), "", *_ran(results, seconds), "", *matrix.lines(claims)]
    tail = ["", *_controls(results), *_more(results, folder)]
    room = LINES - len(head) - len(tail) - 1
    table = list(_pair(results, room)) or list(_table(results, room))
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
            f"{small} of {len(sizes)} models have less than {SMALL / 1e6:.0f} M parameters: the claims in miniature.", WIDTH
        )  # fmt: skip


def _conclusion(results: Results) -> Iterator[str]:
    """How the cells are spread, the contrast, then what masking sinks costs where it was tested, the paper's models first."""
    claims = results.claims or []
    if not claims:
        return
    found = [row for row in matrix.cells(claims).values() if row.name in KEYS and row.verdict != "no test"]
    found.sort(key=lambda row: row.paper_model is None)
    told = matrix.counted(claims) + contrast(results.likelihood)
    first: dict[str, Claim] = {}
    for row in found:
        first.setdefault(row.model, row)
    for row in first.values():
        taken = "" if row.dose is None else f", which take {100 * row.dose:.0f} % of its attention"
        more = f"{told} {row.model} without {KEYS[row.name]}{taken}: {matrix.figure(row)}, n = {row.n}."
        if len(textwrap.wrap(more, WIDTH)) > CONCLUSION:
            break
        told = more
    yield from textwrap.wrap(told, WIDTH)


def kinds_of(rows: Sequence[LikelihoodChange]) -> dict[str, str]:
    """Model → ARM or DLM."""
    return {row.model: "ARM" if row.causal else "DLM" for row in rows if row.of == "answers"}


def contrast(rows: Sequence[LikelihoodChange]) -> str:
    """The paper's contrast in one sentence, where an autoregressive and a diffusion model were scored on the same answers."""
    kinds = {kind: model for model, kind in reversed(kinds_of(rows).items())}
    top = vocabulary.side_by_side(rows).get("top key", {})
    if set(kinds) != {"ARM", "DLM"} or not set(kinds.values()) <= set(top):
        return ""
    arm, dlm = (f"{kinds[kind]} {nats(top[kinds[kind]])}" for kind in ("ARM", "DLM"))
    return f" Without the top key of every head, in nats per token of true answers: {arm}, {dlm}."


def _table(results: Results, room: int) -> Iterator[str]:
    """A line per condition, small K first: right answers of every model, and their change; what does not fit is counted."""
    cells = [row for row in first_point(results).pooled if row.condition.get("rank") != "as_run"]
    cells.sort(key=lambda row: row.condition.get("k") or 1)
    models = list(dict.fromkeys(row.model for row in cells))[:4]
    found = {(row.label, row.model): solvable(row) for row in cells}
    changes = {row.label: row.condition for row in cells if not vocabulary.is_untouched(row.condition)}
    if not changes:
        return
    names = {"none": "nothing changed", **vocabulary.short_names(changes, any(row.causal for row in cells))}
    rows = [(name, *(_right(found.get((label, model))) for model in models)) for label, name in names.items()]
    yield "Right answers in %; in brackets the change, 95 %:"
    lines = list(aligned([("", *(cut(model, 12) for model in models)), *rows]))
    room -= 1
    yield from lines if len(lines) <= room else [*lines[: room - 1], f"  … and {len(lines) - room + 1} lines more"]


def _right(row: PooledCell | None) -> str:
    if row is None:
        return "–"
    change = f" [{100 * row.difference_low:+.0f},{100 * row.difference_high:+.0f}]"
    return f"{100 * row.accuracy:.0f}{'' if row.label == 'none' else change}"


def _pair(results: Results, room: int) -> Iterator[str]:
    """What one masked key per head costs in the likelihood of true answers, the models side by side."""
    kinds = kinds_of(results.likelihood)
    models = list(kinds)[:2]
    if not models:
        return
    yield "Nats per token of true answers; change [95 %], and share of the attention taken:"
    yield f"  {'one key per head':<18}" + "".join(f"{f'{cut(name, 16)} ({kinds[name]})':>28}" for name in models)
    found = vocabulary.side_by_side(results.likelihood)
    for name in [name for name in SHOWN if name in found][: room - 2]:
        rows = found[name]
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
    if folder is not None:
        for told in (
            f"Open the page: {activation()}sinkscope view {folder}",
            f"All tables:    sinkscope report {folder} --text --full",
        ):
            yield told if len(told) <= WIDTH else told.replace(str(folder), "FOLDER")
    needed = [row.needed for row in results.claims or [] if row.needed]
    if needed:
        study = results.run.study if results.run.study in shipped() else f"{results.run.study}.yaml"
        yield "Undecided claims need more problems:"
        yield cut(f"               sinkscope study {study} -n {max(needed)} -o FOLDER", WIDTH)


def activation() -> str:
    """What comes before the first command, where this program is not on the PATH: its environment is activated."""
    script = Path(sys.executable).with_name("activate")
    if shutil.which("sinkscope") or not script.is_file():
        return ""
    here = Path.cwd()
    return f". {script.relative_to(here) if script.is_relative_to(here) else script} && "
