"""What came out, in at most 25 lines: the findings, what the paper reports, one table, and where everything else is."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from sinkscope.conditions import Condition
from sinkscope.progress import clock
from sinkscope.results import series
from sinkscope.results.findings import Finding, list_findings
from sinkscope.results.matrix import SHORT, matrix_lines
from sinkscope.results.model_rows import first_point, without_weak_tasks
from sinkscope.results.rows import Claim, LikelihoodChange, PooledCell, Results
from sinkscope.results.text import WIDTH, aligned, cut, nats, percent

LINES = 25
SHOWN_MODELS = 2  # side by side in the table


def write_summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 25 lines of 80 columns; the full tables have the rest."""
    findings = list_findings(results)
    head = [*_title(results, seconds), *_findings(findings)]
    tail = [*_controls(results), *_untested(results.claims), *_places(results, folder)]
    table = list(_table(results, LINES - len(head) - len(tail) - 1))
    if not findings and results.claims:
        table = list(matrix_lines(results.claims))
    return "\n".join([*head, *([""] if table else []), *table, *tail]) + "\n"


def _title(results: Results, seconds: float | None) -> Iterator[str]:
    run = results.run
    names = [str(model.get("name")) for model in run.models]
    took = "" if seconds is None else f" in {clock(seconds)} (m:ss)"
    yield cut(f"{run.study}: {', '.join(names)}; {run.units} units{took}.", WIDTH)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for number, one in enumerate(findings, 1):
        yield from textwrap.wrap(f"{number}. {one.sentence}", WIDTH, subsequent_indent="   ")
    if findings:
        yield from textwrap.wrap(f"The paper: {'; '.join(one.paper for one in findings)}.", WIDTH)


def _table(results: Results, room: int) -> Iterator[str]:
    """A line per condition, two models side by side: accuracy or likelihood, and the attention removed."""
    scored = [row for row in results.likelihood if row.of == "answers" or not row.causal]
    of_texts = any(row.of == "texts" for row in scored)  # of models that answer no problems
    pooled = [] if of_texts else [without_weak_tasks(row) for row in first_point(results).pooled]
    rows: list[PooledCell | LikelihoodChange] = [*(pooled or scored)]
    changed = [row for row in rows if not series.is_untouched(row.condition)]
    changed.sort(key=lambda row: series.masked_key(row.condition) != ("strong sink", None))
    if not changed or room < 3:
        return
    models = _first_models(rows)
    values = {(row.label, row.model): _value(row) for row in rows}
    names = series.short_names({row.label: row.condition for row in changed}, any(row.causal for row in rows))
    plain = {"none": "nothing masked"} if pooled else {}
    lines = [
        (name, *(values.get((label, model), "–") for model in models)) for label, name in {**plain, **names}.items()
    ]
    if pooled:
        yield "Accuracy in % [change, 95 %], attention removed:"
    else:
        yield f"Nats per token of {'held-out text' if of_texts else 'true answers'}: change [95 %], attention removed:"
    shown = list(aligned([("", *(cut(model, 20) for model in models)), *lines]))
    if len(shown) > room - 1:
        shown = [*shown[: room - 2], f"  … and {len(shown) - room + 2} lines more"]
    yield from shown


def _first_models(rows: Sequence[PooledCell | LikelihoodChange]) -> list[str]:
    """The first autoregressive and the first diffusion model; the first two where there is one kind only."""
    kinds = {row.model: row.causal for row in rows}
    first = [next((model for model, causal in kinds.items() if causal is kind), None) for kind in (True, False)]
    both = [model for model in first if model is not None]
    return both if len(both) == SHOWN_MODELS else list(kinds)[:SHOWN_MODELS]


def _value(row: PooledCell | LikelihoodChange) -> str:
    removed = "" if row.mass_share is None or row.label == "none" else f"{percent(row.mass_share):>6}"
    if isinstance(row, PooledCell):
        change = f" [{100 * row.difference_low:+.0f},{100 * row.difference_high:+.0f}]"
        return f"{100 * row.accuracy:.0f}{'' if row.label == 'none' else change}{removed}"
    return f"{row.value:.2f}" if row.label == "none" else f"{nats(row)}{removed}"


def _controls(results: Results) -> Iterator[str]:
    noop = sum(cell.n for cell in results.cells if cell.condition["name"] == "noop")
    masked = [
        cell for cell in results.cells
        if cell.mass_share is not None and cell.condition["name"] != "noop"
        and Condition.from_dict(cell.condition).must_take_effect
    ]  # fmt: skip
    checks = [f"a no-op changed 0 of {noop} answers"] if noop else []
    checks += [f"masked keys received 0 in {len(masked)} cells"] if masked else []
    if checks:
        yield f"Checks: {'; '.join(checks)}."


def _untested(claims: Sequence[Claim]) -> Iterator[str]:
    yield from textwrap.wrap(untested_sentence(claims), WIDTH)


def untested_sentence(claims: Sequence[Claim]) -> str:
    """Claims of the paper that no model of the run was tested for, and the command that tests them; empty if there is none."""
    tested = {row.name for row in claims if row.verdict != "no test"}
    missing = [short for name, short in SHORT.items() if name not in tested]
    return f"Not tested here: {', '.join(missing)} (sinkscope study tiny)." if missing else ""


def _places(results: Results, folder: Path | None) -> Iterator[str]:
    if folder is None:
        return
    for line in (f"Page:   {activation()}sinkscope view {folder}", f"Tables: sinkscope report {folder} --text --full"):
        yield line if len(line) <= WIDTH else f"{line[:8]}{line[8:].replace(activation(), '')}"


def activation() -> str:
    """What comes before the first command, where this program is not on the PATH: its environment is activated."""
    script = Path(sys.executable).with_name("activate")
    if shutil.which("sinkscope") or not script.is_file():
        return ""
    here = Path.cwd()
    return f". {script.relative_to(here) if script.is_relative_to(here) else script} && "
