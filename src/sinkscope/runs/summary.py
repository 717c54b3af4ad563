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
CONCLUSION = 4  # lines
# Claims about what masking costs, and the keys that are masked.
KEYS = {"strong_sink": "its strong sinks", "one_sink": "its top keys", "arm_sink": "its sinks"}
# Of the conditions scored on true answers, the first that there is room for.
SHOWN = ("top key", "strong sink", "random, ≤ its mass", "content key")
SMALL = 100_000_000  # parameters below which a model is no language model that anyone would use


def summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 40 lines of 80 columns; what does not fit is in the full tables, and the summary says how to see them."""
    claims = results.claims or []
    head = [*_conclusion(results), "", *_ran(results, seconds), "", *matrix.lines(claims)]
    tail = ["", *_controls(results), *_more(results, folder)]
    room = LINES - len(head) - len(tail) - 1
    table = list(_table(results, room))
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


def _conclusion(results: Results) -> list[str]:
    """How the cells are spread, the contrast, then what masking sinks costs where it was tested, the paper's models first."""
    claims = results.claims or []
    if not claims:
        return []
    found = [row for row in matrix.cells(claims).values() if row.name in KEYS and row.verdict != "no test"]
    found.sort(key=lambda row: row.paper_model is None)
    lines = textwrap.wrap(matrix.counted(claims) + contrast(results.likelihood), WIDTH)
    first: dict[str, Claim] = {}
    for row in found:
        first.setdefault(row.model, row)
    for row in first.values():
        taken = "" if row.dose is None else f", which take {100 * row.dose:.0f} % of its attention"
        more = f"{row.model} without {KEYS[row.name]}{taken}: {matrix.figure(row)} (n={row.n})."
        longer = textwrap.wrap(" ".join([*lines, more]), WIDTH)
        if len(longer) > CONCLUSION:
            break
        lines = longer
    return lines


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
    """A line per condition, small K first, the models side by side; conditions that do not fit are counted.

    What is shown of each is its likelihood of true answers, where that was scored, else its right answers.
    """
    scored = [row for row in results.likelihood if row.of == "answers"]
    rows: list[PooledCell | LikelihoodChange] = [*scored] or [solvable(row) for row in first_point(results).pooled]
    rows = [row for row in rows if row.condition.get("rank") != "as_run"]
    changed = [row for row in rows if not vocabulary.is_untouched(row.condition)]
    changed.sort(key=lambda row: row.condition.get("k") or 1)
    if not changed:
        return
    models = list(dict.fromkeys(row.model for row in rows))[: 2 if scored else 4]
    told = {(row.label, row.model): _told(row) for row in rows}
    names = vocabulary.short_names({row.label: row.condition for row in changed}, any(row.causal for row in rows))
    if scored:  # few lines are left beside eight models: the strong sinks and their control come before the rest
        names = dict(sorted(names.items(), key=lambda one: [not one[1].startswith(name) for name in SHOWN]))
    else:
        names = {"none": "nothing changed", **names}
    lines = [(name, *(told.get((label, model), "–") for model in models)) for label, name in names.items()]
    if scored:
        yield "Nats per token of true answers: change [95 %], and share of the attention taken:"
    else:
        yield "Right answers in %; in brackets the change, 95 %:"
    shown = list(aligned([("", *(cut(model, 12) for model in models)), *lines]))
    room -= 1
    if len(shown) > room:
        shown = shown[:room] if scored else [*shown[: room - 1], f"  … and {len(shown) - room + 1} lines more"]
    yield from shown


def _told(row: PooledCell | LikelihoodChange) -> str:
    if isinstance(row, PooledCell):
        change = f" [{100 * row.difference_low:+.0f},{100 * row.difference_high:+.0f}]"
        return f"{100 * row.accuracy:.0f}{'' if row.label == 'none' else change}"
    taken = "" if row.mass_share is None else f"{100 * row.mass_share:>4.0f} %"
    return f"{row.value:.2f}" if row.label == "none" else f"{nats(row)}{taken}"


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
