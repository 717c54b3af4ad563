"""The paper's figures with matplotlib, for print: each is a function of a trace (or several), for notebooks too.

Figure 1 `received_map`, 3 `score_histogram`, 4 and 6 `neighbouring_maps`, 5 `head_grid`, 7 `sink_paths`, 10 `epsilon_curve`,
and the masking curves of Table 1 `masking_curves`. All take an optional `ax` (or make their own) and return it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import ReportError
from sinkscope.sinks import default_rule, histogram, sweep
from sinkscope.sinks.columns import missing_keys, query_count, seen_by
from sinkscope.tracing import Trace

COLOURS = "cividis"
INK, SINK = "#1b1e25", "#c2410c"
LINES = ("#2f5bb7", "#b45309", "#0f766e", "#9d2f8a", "#4d7c0f", "#57606f")
MARKS, DASHES = ("o", "s", "D", "^", "v", "P"), ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 2)))


def _axes(ax: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    return ax if ax is not None else Figure(figsize=(width, height), layout="constrained").subplots()


def _name(trace: Trace) -> str:
    return str(trace.model.get("name", "model"))


def _columns(trace: Trace, layer: int | None, head: int | None, group: str) -> torch.Tensor:
    """Column sums [step, key] of one head, or the mean over a layer's heads, or over all."""
    part = trace if layer is None else trace.select(layers=[layer])
    scores = part.scores(group)
    return scores[:, :, head].mean(1) if head is not None else scores.mean((1, 2))


def received_map(
    trace: Trace, layer: int | None = None, head: int | None = None, group: str = "all", ax: Axes | None = None
) -> Axes:
    """Figure 1: attention received, step × position, with the largest key of every step; unit: column sums."""
    ax = _axes(ax)
    values = _columns(trace, layer, head, group)
    image = ax.imshow(values.sqrt().numpy(), aspect="auto", cmap=COLOURS, interpolation="nearest")
    ax.plot(values.argmax(-1).numpy(), np.arange(trace.steps), color=SINK, linewidth=1, label="largest key")
    if 0 < trace.prompt_length < trace.positions:
        ax.axvline(trace.prompt_length - 0.5, color="white", linestyle=":", linewidth=1)
    where = "mean of all heads" if layer is None else f"layer {layer}, {'mean' if head is None else f'head {head}'}"
    ax.set(xlabel="position", ylabel="denoising step", title=f"{_name(trace)}: {where}, {group} queries")
    bar = ax.figure.colorbar(image, ax=ax, label="received (column sum)")
    ticks = [tick for tick in (0.25, 1, 2, 4, 8, 16, 32, 64) if tick <= float(values.max())]
    bar.set_ticks([tick**0.5 for tick in ticks], labels=[f"{tick:g}" for tick in ticks])
    return ax


def score_histogram(trace: Trace, unit: str = "sum", bins: int = 50, ax: Axes | None = None) -> Axes:
    """Figure 3: how many (step, layer, head, key) have which score; the count is on a logarithmic scale."""
    ax = _axes(ax, 5.0, 3.2)
    table = histogram(trace, bins, unit)
    ax.bar(table["low"], table["count"], table["high"] - table["low"], align="edge", color=LINES[0])
    ax.set(yscale="log", xlabel=f"score ({unit})", ylabel="keys", title=_name(trace))
    return ax


def neighbouring_maps(trace: Trace, step: int = 1, slot: int = 0) -> Figure:
    """Figures 4 and 6: a head's whole attention map at two neighbouring steps; needs a trace that kept maps."""
    if trace.maps is None:
        raise ReportError(
            "Whole attention maps were expected, and this trace kept none; record it with keep=sk.Keep(maps=((layer, head),))."
        )
    if not 1 <= step < trace.steps:
        raise ReportError(f"Expected a step from 1 to {trace.steps - 1}, whose map has one before it, got {step}.")
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    layer, head = trace.map_heads[slot]
    for ax, at in zip(figure.subplots(1, 2, sharey=True), (step - 1, step), strict=True):
        ax.imshow(trace.maps[slot, at].float().sqrt().numpy(), cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
        ax.set(xlabel="key", title=f"step {at + 1}")
    figure.axes[0].set_ylabel("query")
    figure.suptitle(f"{_name(trace)}: layer {layer}, head {head}")
    return figure


def head_grid(trace: Trace, ax: Axes | None = None) -> Axes:
    """Figure 5: score of each head's largest key, averaged over the steps, in the default rule's unit."""
    ax = _axes(ax, 4.4, 3.6)
    rule = default_rule(trace)
    scores = rule.scores(trace.scores(), query_count(trace, "all"), missing_keys(trace), seen_by(trace, "all"))
    image = ax.imshow(scores.amax(-1).mean(0).numpy(), cmap=COLOURS, aspect="auto", interpolation="nearest")
    ax.set(xlabel="head", ylabel="layer", title=f"{_name(trace)}: largest key")
    ax.figure.colorbar(image, ax=ax, label=f"mean score ({rule.unit})")
    return ax


def sink_paths(traces: Sequence[Trace], layer: int | None = None, ax: Axes | None = None) -> Axes:
    """Figure 7: position of the largest key over the steps, a line a trace."""
    ax = _axes(ax)
    for place, trace in enumerate(traces):
        keys = _columns(trace, layer, None, "all").argmax(-1).numpy()
        done = 100 * (np.arange(trace.steps) + 0.5) / trace.steps
        look: dict[str, Any] = {"color": LINES[place % 6], "marker": MARKS[place % 6], "linestyle": DASHES[place % 6]}
        ax.plot(done, keys, markersize=3, label=_name(trace), **look)
    where = "mean of all heads" if layer is None else f"layer {layer}"
    ax.set(xlabel="share of the generation done (%)", ylabel="position", title=f"largest key ({where})")
    ax.legend()
    return ax


def epsilon_curve(traces: Sequence[Trace], unit: str = "sum", ax: Axes | None = None) -> Axes:
    """Figure 10: share of the keys that are no sinks against epsilon; an autoregressive trace in multiples of uniform."""
    ax = _axes(ax, 5.0, 3.2)
    epsilons = [step / 2 for step in range(21)]
    for place, trace in enumerate(traces):
        used = "uniform" if trace.causal and unit == "sum" else unit
        table = sweep(trace, epsilons, (used,))
        look: dict[str, Any] = {"color": LINES[place % 6], "linestyle": DASHES[place % 6], "marker": MARKS[place % 6]}
        ax.plot(table["epsilon"], 100 * table["non_sinks"], markersize=3, label=f"{_name(trace)} ({used})", **look)
    ax.axhline(96, color=INK, linewidth=0.7, linestyle=":")
    ax.set(xlabel="ε", ylabel="non-sinks (% of keys)", title="share of non-sinks (dotted: the paper's 96 %)")
    ax.legend()
    return ax


def masking_curves(cells: Sequence[dict[str, Any]], task: str | None = None) -> Figure:
    """Table 1 as curves: change of accuracy against K, sinks and the random control, a panel a model."""
    tasks = list(dict.fromkeys(cell["task"] for cell in cells))
    if not tasks or (task is not None and task not in tasks):
        raise ReportError(f"Expected cells of the task {task or '(any)'}, and there are {', '.join(tasks) or 'none'}.")
    chosen = task or ("all" if "all" in tasks else tasks[0])
    shown = [cell for cell in cells if cell["task"] == chosen]
    models = list(dict.fromkeys(cell["model"] for cell in shown))
    figure = Figure(figsize=(3.2 * len(models), 3.2), layout="constrained")
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for ax, model in zip(panels, models, strict=True):
        for place, (name, label) in enumerate((("mask_sinks", "sinks masked"), ("mask_random", "random keys masked"))):
            line = sorted(
                (cell for cell in shown if cell["model"] == model and _is(cell["condition"], name)),
                key=lambda cell: cell["condition"]["k"],
            )
            if line:
                _curve(ax, line, label, place)
        ax.axhline(0, color=INK, linewidth=0.7)
        ax.set(xlabel="keys masked (K)", title=model, xticks=[0, 1, 5, 10])
    panels[0].set_ylabel(f"change of accuracy, points ({chosen})")
    panels[0].legend()
    return figure


def _is(condition: dict[str, Any], name: str) -> bool:
    usual = {"rank": "clean", "rows": "all", "match": "count", "above": None}
    return condition["name"] == name and all((condition.get(word) or value) == value for word, value in usual.items())


def _curve(ax: Axes, line: list[dict[str, Any]], label: str, place: int) -> None:
    ks = [0, *(cell["condition"]["k"] for cell in line)]
    drops = [0.0, *(100 * cell["difference"] for cell in line)]
    low = [0.0, *(100 * (cell["difference"] - cell.get("difference_low", cell["difference"])) for cell in line)]
    high = [0.0, *(100 * (cell.get("difference_high", cell["difference"]) - cell["difference"]) for cell in line)]
    look: dict[str, Any] = {"color": LINES[place], "marker": MARKS[place], "linestyle": DASHES[place]}
    ax.errorbar(ks, drops, yerr=np.maximum(0, [low, high]), label=label, markersize=4, capsize=2, **look)
