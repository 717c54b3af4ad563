"""Figures of a study's results, for print: masking curves (Table 1), tokens (Table 2), classes of heads, mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sinkscope import paper
from sinkscope.errors import ReportError
from sinkscope.report.drawing import DASHES, INK, LINES, axes, in_style, sheet, whole_ticks
from sinkscope.report.roles import NAMES, with_roles
from sinkscope.sinks.classes import NAMES as CLASSES

Rows = Sequence[dict[str, Any]]

# The same look for a role on every figure: sinks, its controls, its variants.
LOOKS: dict[str, dict[str, Any]] = {
    "sinks": {"color": LINES[0], "marker": "o", "linestyle": "-"},
    "count": {"color": LINES[1], "marker": "s", "linestyle": "--"},
    "mass": {"color": LINES[5], "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "as_run": {"color": LINES[2], "marker": "^", "linestyle": "-."},
    "other_rows": {"color": LINES[3], "marker": "D", "linestyle": DASHES[4]},
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


@in_style
def masking_curves(cells: Rows, task: str | None = None) -> Figure:
    """Table 1 as curves: change of accuracy against K, sinks, controls and the paper's marks, a panel per model."""
    tasks = list(dict.fromkeys(cell["task"] for cell in cells))
    if not tasks or (task is not None and task not in tasks):
        raise ReportError(f"Expected cells of the task {task or '(any)'}, and there are {', '.join(tasks) or 'none'}.")
    chosen = task or ("all" if "all" in tasks else tasks[0])
    shown = [cell for cell in with_roles(list(cells)) if cell["task"] == chosen]
    models = list(dict.fromkeys(cell["model"] for cell in shown))
    figure = sheet(2.9 * len(models), 3.6)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    entries: dict[str, Line2D] = {}
    for ax, model in zip(panels, models, strict=True):
        mine = [cell for cell in shown if cell["model"] == model]
        for role, shown_as in LOOKS.items():
            line = sorted((c for c in mine if c["role"] == role), key=lambda cell: int(cell["condition"].get("k") or 0))
            if line:
                _curve(ax, line, role)
                entries.setdefault(NAMES[role], Line2D([], [], markersize=4, **shown_as))
        for benchmark in _benchmarks(chosen):
            if _paper_marks(ax, mine, model, benchmark):
                name = f"paper, {paper.BENCHMARK_NAMES[benchmark]}"
                entries.setdefault(name, Line2D([], [], linestyle="none", markersize=5, **PAPER_LOOKS[benchmark]))
        ax.axhline(0, color=INK, linewidth=0.7)
        ax.set(xlabel="keys masked per head (K)", title=model, xticks=[0, 1, 5, 10])
        whole_ticks(ax, across=False)
        ax.set_xticks([0, 1, 5, 10], labels=["0", "1", "5", "10"])
    panels[0].set_ylabel(f"change of accuracy, points ({chosen})")
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(4, len(entries)))
    return figure


def _curve(ax: Axes, line: Rows, role: str) -> None:
    start = [] if role == "position" else [0.0]
    ks = [*start, *(cell["condition"].get("k") or 1 for cell in line)]
    drops = [*start, *(100 * cell["difference"] for cell in line)]
    low = [*start, *(100 * (cell["difference"] - cell.get("difference_low", cell["difference"])) for cell in line)]
    high = [*start, *(100 * (cell.get("difference_high", cell["difference"]) - cell["difference"]) for cell in line)]
    ax.errorbar(ks, drops, yerr=np.maximum(0, [low, high]), label=NAMES[role], markersize=4, capsize=2, **LOOKS[role])


def _benchmarks(task: str) -> list[str]:
    if task == "all":
        return list(paper.BENCHMARK_NAMES)
    return [name for name in paper.BENCHMARK_NAMES if name in (task, paper.BENCHMARKS.get(task))]


def _paper_marks(ax: Axes, cells: Rows, model: str, benchmark: str) -> bool:
    family = str(cells[0].get("family") or next((name for name in paper.MODELS if name in model.lower()), ""))
    values = paper.TABLE_1.get((family, benchmark))
    if values is None:
        return False
    ks = [k for k in values if k]
    ax.plot(ks, [100 * (values[k] - values[0]) for k in ks], linestyle="none", markersize=5, **PAPER_LOOKS[benchmark])
    return True


@in_style
def token_bars(tokens: Rows, most: int = 6) -> Figure:
    """Table 2: share of the sinks that each token is, beside its share of the canvas, a panel per model."""
    models = list(dict.fromkeys(row["model"] for row in tokens))
    figure = sheet(2.9 * len(models), 0.32 * most + 1.3)
    ring: list[Line2D] = []
    for ax, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        rows = sorted((row for row in tokens if row["model"] == model), key=lambda row: -row["share"])[:most]
        place = np.arange(len(rows))
        shares = np.array([100 * row["share"] for row in rows])
        reach = np.array([[100 * (row["share"] - (row.get("low") or row["share"])) for row in rows],
                          [100 * ((row.get("high") or row["share"]) - row["share"]) for row in rows]])  # fmt: skip
        bar = ax.barh(place, shares, xerr=np.maximum(0, reach), color=LINES[0], height=0.62, capsize=2, ecolor=INK)
        known = [(i, 100 * row["base"]) for i, row in enumerate(rows) if row.get("base") is not None]
        (tick,) = ax.plot([b for _, b in known], [i for i, _ in known], "|", color=LINES[1], markersize=13, mew=2.2)
        known = [
            (i, share) for i, row in enumerate(rows) if (share := _paper_share(model, str(row["token"]))) is not None
        ]
        if known:
            ring = ax.plot([100 * b for _, b in known], [i for i, _ in known], "o", color=INK, mfc="none", markersize=7)
        ax.set_yticks(place, labels=[_short(str(row["token"])) for row in rows], fontfamily="DejaVu Sans")
        ax.invert_yaxis()
        ax.set(xlabel="% of sinks", title=model)
        whole_ticks(ax, down=False)
    names = ["share of sinks, 95 % interval", "share of the canvas", "the paper’s share of sinks"]
    signs = [bar, tick, *ring]
    figure.legend(signs, names[: len(signs)], loc="outside lower center", ncols=3)
    return figure


def _paper_share(model: str, token: str) -> float | None:
    """The share that the paper's Table 2 gives this token, for a model of that family."""
    family = next((name for name in paper.MODELS if name in model.lower()), "")
    return next((s for name, s in paper.TABLE_2.get(family, ()) if token in (name, *PAPER_TOKENS.get(name, ()))), None)


def _short(token: str) -> str:
    text = token.replace("\n", "⏎").strip() or "␣"
    return text if len(text) <= 16 else f"{text[:15]}…"


@in_style
def class_bars(rows: Rows, ax: Axes | None = None) -> Axes:
    """Share of heads by what their largest sink does, a bar per model."""
    order = [name for name in ("static", "moving", "flash", "split", "none") if name in CLASSES]
    ax = axes(ax, 6.4, 0.45 * len(rows) + 1.3)
    place, left = np.arange(len(rows)), np.zeros(len(rows))
    colours = dict(zip(order, (LINES[0], LINES[1], LINES[2], LINES[3], "#d7dae0"), strict=True))
    hatches = dict(zip(order, ("", "//", "..", "xx", ""), strict=True))
    for name in order:
        shares = np.array([100 * float(row.get(name) or 0) for row in rows])
        ax.barh(
            place,
            shares,
            left=left,
            color=colours[name],
            hatch=hatches[name],
            edgecolor="white",
            label=name,
            height=0.66,
        )
        left += shares
    ax.set_yticks(place, labels=[str(row["model"]) for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="heads (%)", xlim=(0, 100))
    whole_ticks(ax, down=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5)
    return ax


@in_style
def mechanism_gaps(rows: Rows) -> Figure:
    """Confidence lost where tokens looked at the masked keys, minus where they did not: sinks beside random keys."""
    units = list(dict.fromkeys(str(row.get("unit", "")) for row in rows))
    figure = sheet(4.4 * len(units), 0.42 * max(1, len(rows)) + 1.6)
    kinds = (("sinks", "confidence_sinks_gap", -0.14), ("count", "confidence_random_gap", 0.14))
    for ax, unit in zip(figure.subplots(1, len(units), squeeze=False)[0], units, strict=True):
        mine, factor = [row for row in rows if str(row.get("unit", "")) == unit], 100 if unit == "points" else 1
        for role, name, shift in kinds:
            some = [
                (i + shift, row[name]) for i, row in enumerate(mine) if (row.get(name) or {}).get("value") is not None
            ]
            value = np.array([factor * gap["value"] for _, gap in some])
            reach = np.array(
                [[factor * (gap["value"] - gap["low"]), factor * (gap["high"] - gap["value"])] for _, gap in some]
            )
            shown = {
                "color": LOOKS[role]["color"],
                "marker": LOOKS[role]["marker"],
                "markersize": 4,
                "linestyle": "none",
            }
            ax.errorbar(value, [y for y, _ in some], xerr=np.maximum(0, reach).T, capsize=2, label=NAMES[role], **shown)
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_yticks(range(len(mine)), labels=[f"{row['model']}, K = {row['k']}" for row in mine])
        ax.invert_yaxis()
        ax.set(xlabel=f"gap in confidence ({unit})")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
