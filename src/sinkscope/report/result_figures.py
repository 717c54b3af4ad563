"""Figures of a study's results, for print: masking curves (Table 1), tokens (Table 2), classes of heads, mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sinkscope import paper
from sinkscope.errors import ReportError
from sinkscope.report.drawing import DASHES, INK, LINES, axes, in_style, look, sheet, whole_ticks
from sinkscope.report.overview import cell_rows, class_rows
from sinkscope.study.results import Cell, Dynamics, Mechanism, TokenShare
from sinkscope.study.vocabulary import role_name

Values = npt.NDArray[np.float64]

# The same look for a role on every figure: sinks, its controls, its variants.
LOOKS: dict[str, dict[str, Any]] = {
    "sinks": {"color": LINES[0], "marker": "o", "linestyle": "-"},
    "count": {"color": LINES[1], "marker": "s", "linestyle": "--"},
    "mass": {"color": LINES[5], "marker": "o", "linestyle": DASHES[5], "markerfacecolor": "white"},
    "as_run": {"color": LINES[2], "marker": "^", "linestyle": ":"},
    "other_rows": {"color": LINES[3], "marker": "D", "linestyle": "-."},
    "position": {"color": LINES[4], "marker": "X", "linestyle": "none"},
}
PAPER_LOOKS: dict[str, dict[str, Any]] = {
    "gsm8k": {"color": INK, "marker": "D", "markerfacecolor": "none"},
    "humaneval": {"color": INK, "marker": "x"},
}

# How our vocabularies write the tokens that the paper's Table 2 names.
PAPER_TOKENS = {
    "mask": ("<|mdm_mask|>", "<|mask|>"),
    "start-header": ("<|start_header_id|>",),
    "end-header": ("<|end_header_id|>",),
    "start-of-text": ("<|startoftext|>",),
    "end-of-text": ("<|endoftext|>",),
}
CLASS_LOOKS = {
    "static": (LINES[0], ""),
    "moving": (LINES[1], "//"),
    "flash": (LINES[2], ".."),
    "split": (LINES[3], "xx"),
    "none": ("#d7dae0", ""),
}
SHARES = ("share", "low", "high", "base")


@in_style
def masking_curves(cells: Sequence[Cell], task: str | None = None) -> Figure:
    """Table 1 as curves: change of accuracy against K, sinks, controls and the paper's marks, a panel per model."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    if not tasks or (task is not None and task not in tasks):
        raise ReportError(f"Expected cells of the task {task or '(any)'}, and there are {', '.join(tasks) or 'none'}.")
    chosen = task or ("all" if "all" in tasks else tasks[0])
    shown = [cell for cell in cell_rows(cells) if cell["task"] == chosen]
    models = list(dict.fromkeys(cell["model"] for cell in shown))
    others = dict.fromkeys(cell["role"] for cell in shown if cell["role"] not in (None, "", *LOOKS))
    looks = LOOKS | {role: look(place) for place, role in enumerate(others, len(LOOKS))}
    figure = sheet(2.9 * len(models), 3.6)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    entries: dict[str, Line2D] = {}
    for ax, model in zip(panels, models, strict=True):
        mine = [cell for cell in shown if cell["model"] == model]
        for role, own in looks.items():
            line = [cell for cell in mine if cell["role"] == role]
            if line:
                drawn = {"markersize": 4, **own}
                _curve(ax, sorted(line, key=lambda cell: int(cell["condition"]["k"])), role, drawn)
                entries.setdefault(role_name(role), Line2D([], [], **drawn))
        for benchmark, name in paper.BENCHMARK_NAMES.items():
            values = paper.TABLE_1.get((paper.family(model), benchmark))
            if values is not None and (chosen == "all" or benchmark in (chosen, paper.BENCHMARKS.get(chosen))):
                marks: dict[str, Any] = {"linestyle": "none", "markersize": 5, **PAPER_LOOKS[benchmark]}
                ks = [k for k in values if k]
                ax.plot(ks, [100 * (values[k] - values[0]) for k in ks], **marks)
                entries.setdefault(f"paper, {name}", Line2D([], [], **marks))
        ax.axhline(0, color=INK, linewidth=0.7)
        ax.set(xlabel="keys masked per head (K)", title=model)
        whole_ticks(ax, across=False)
        ax.set_xticks([0, 1, 5, 10], labels=["0", "1", "5", "10"])
    panels[0].set_ylabel(f"change of accuracy, points ({chosen})")
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(4, len(entries)))
    return figure


def _curve(ax: Axes, line: Sequence[Mapping[str, Any]], role: str, look: Mapping[str, Any]) -> None:
    start = [] if role == "position" else [0.0]
    ks = [*start, *(cell["condition"]["k"] or 1 for cell in line)]
    names = ("difference", "difference_low", "difference_high")
    change, low, high = (np.array([*start, *(100 * cell[name] for cell in line)]) for name in names)
    ax.errorbar(ks, change, yerr=_reach(change, low, high), label=role_name(role), capsize=2, **look)


def _reach(value: Values, low: Values, high: Values) -> Values:
    """Of error bars, below and above."""
    reach: Values = np.maximum(0, [value - low, high - value])
    return reach


@in_style
def token_bars(tokens: Sequence[TokenShare], most: int = 6) -> Figure:
    """Table 2: share of the sinks that each token is, beside its share of the canvas, a panel per model.

    The paper's share stands beside it where the model stands for one of the paper's.
    """
    models = list(dict.fromkeys(row.model for row in tokens))
    figure = sheet(2.9 * len(models), 0.32 * most + 1.3)
    ring: list[Line2D] = []
    for ax, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        rows = sorted((row for row in tokens if row.model == model), key=lambda row: -row.share)[:most]
        place = np.arange(len(rows))
        share, low, high, base = (100 * np.array([getattr(row, name) for row in rows]) for name in SHARES)
        bar = ax.barh(place, share, xerr=_reach(share, low, high), color=LINES[0], height=0.62, capsize=2, ecolor=INK)
        (tick,) = ax.plot(base, place, "|", color=LINES[1], markersize=13, mew=2.2)
        theirs = {i: _paper_share(paper.family(model), row.token) for i, row in enumerate(rows)}
        if known := {i: 100 * share for i, share in theirs.items() if share is not None}:
            ring = ax.plot(list(known.values()), list(known), "o", color=INK, mfc="none", markersize=7)
        ax.set_yticks(place, labels=[_short(row.token) for row in rows], fontfamily="DejaVu Sans")
        ax.invert_yaxis()
        ax.set(xlabel="% of sinks", title=model)
        whole_ticks(ax, down=False)
    names = ["share of sinks, 95 % interval", "share of the canvas", "the paper’s share of sinks"]
    signs = [bar, tick, *ring]
    figure.legend(signs, names[: len(signs)], loc="outside lower center", ncols=3)
    return figure


def _paper_share(family: str, token: str) -> float | None:
    """The share that the paper's Table 2 gives this token, for a model of that family."""
    return next((s for name, s in paper.TABLE_2.get(family, ()) if token in (name, *PAPER_TOKENS.get(name, ()))), None)


def _short(token: str) -> str:
    text = token.replace("\n", "⏎").strip() or "␣"
    return text if len(text) <= 16 else f"{text[:15]}…"


@in_style
def class_bars(dynamics: Sequence[Dynamics], ax: Axes | None = None) -> Axes:
    """Share of heads by what their largest sink does, a bar per model."""
    rows = class_rows(dynamics)
    ax = axes(ax, 6.4, 0.45 * len(rows) + 1.3)
    place, left = np.arange(len(rows)), np.zeros(len(rows))
    for name, (colour, hatch) in CLASS_LOOKS.items():
        shares = np.array([100 * row[name] for row in rows])
        ax.barh(place, shares, left=left, color=colour, hatch=hatch, edgecolor="white", label=name, height=0.66)
        left += shares
    ax.set_yticks(place, labels=[str(row["model"]) for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="heads (%)", xlim=(0, 100))
    whole_ticks(ax, down=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5)
    return ax


@in_style
def mechanism_gaps(rows: Sequence[Mechanism]) -> Figure:
    """Confidence lost where tokens looked at the masked keys, minus where they did not: sinks beside random keys."""
    units = list(dict.fromkeys(row.unit for row in rows))
    figure = sheet(4.4 * len(units), 0.42 * max(1, len(rows)) + 1.6)
    for ax, unit in zip(figure.subplots(1, len(units), squeeze=False)[0], units, strict=True):
        mine, factor = [row for row in rows if row.unit == unit], 100 if unit == "points" else 1
        for role, name, shift in (("sinks", "confidence_sinks_gap", -0.14), ("count", "confidence_random_gap", 0.14)):
            some = [(i + shift, gap) for i, row in enumerate(mine) if (gap := getattr(row, name)) is not None]
            ends = ("value", "low", "high")
            value, low, high = (factor * np.array([getattr(gap, end) for _, gap in some]) for end in ends)
            drawn = {**LOOKS[role], "markersize": 4, "linestyle": "none"}
            reach = _reach(value, low, high)
            ax.errorbar(value, [y for y, _ in some], xerr=reach, capsize=2, label=role_name(role), **drawn)
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_yticks(range(len(mine)), labels=[f"{row.model}, K = {row.k}" for row in mine])
        ax.invert_yaxis()
        ax.set(xlabel=f"gap in confidence ({unit})")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
