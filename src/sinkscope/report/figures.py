"""The paper's figures of traces with matplotlib, for print and for notebooks.

Figure 1 `received_map`, 3 `score_histogram`, 4, 6 and 8 `neighbouring_maps`, 5 `head_grid`, 7 `sink_paths`, 10
`epsilon_curve`; ours: `before_after`. Most take an optional `ax` (or make their own) and return it; a notebook shows what
they return. Charts of a study's results are on its page, each with its drawing and its numbers to download.

All have a look that is safe for colour-blind readers. Text stays text in PDF and SVG, and no date or chance gets into a file
(the same run gives the same bytes). A `$` in the name of a model is a dollar sign. Nothing is read as mathematics, so every
axis gets a formatter that writes none.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sinkscope.errors import ReportError
from sinkscope.report.sample import head_classes, head_table, model_of
from sinkscope.sinks import Threshold
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import head_dynamics
from sinkscope.tracing.sinks import histogram, sweep

PAPER_EPSILON, PAPER_SHARE = 3, 96  # Figure 10: epsilon = 3 leaves at least 96 % of the tokens out
SIGNS = {"static": "●", "right": "→", "left": "←", "wander": "↔", "flash": "✦", "split": "◐", "none": ""}

COLOURS = "cividis"
INK, SINK = "#1b1e25", "#d55e00"
# Okabe and Ito's colours, which stay apart for every eye; marks and dashes tell them apart in grey too.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a67c00", "#57606f")
MARKS, DASHES = ("o", "s", "D", "^", "v", "P"), ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 2)))
STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "sinkscope",
    "font.size": 9,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
# Around a function that draws: with the look above, whatever the caller's settings are.
in_style = rc_context(STYLE)  # type: ignore[arg-type]


class ShownFigure(Figure):
    """A figure that a notebook displays as itself, without pyplot."""

    @in_style
    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()


class ShownAxes(Axes):
    """Axes that a notebook displays as their figure."""

    def _repr_png_(self) -> bytes:
        figure = self.get_figure(root=True)
        return ShownFigure._repr_png_(cast(ShownFigure, figure))


def sheet(width: float, height: float) -> ShownFigure:
    return ShownFigure(figsize=(width, height), layout="constrained")


def axes(ax: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    """The axes given, or new ones on a figure of their own; sizes in inches."""
    if ax is not None:
        return ax
    made: Axes = sheet(width, height).add_subplot(axes_class=ShownAxes)
    return made


def look(place: int) -> dict[str, Any]:
    """Colour, mark and dash of the n-th series; no two of 36 share colour and dash, nor colour and mark."""
    turn = (place + place // 6) % 6
    return {"color": LINES[place % 6], "marker": MARKS[turn], "linestyle": DASHES[turn], "markersize": 3.5}


def whole_ticks(ax: Axes, down: bool = True) -> None:
    """Ticks at whole numbers: there is no head 1.5."""
    for axis in (ax.xaxis, ax.yaxis) if down else (ax.xaxis,):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}".replace("-", "\u2212")))


def plain_counts(ax: Axes) -> None:
    """Counts on a logarithmic scale, written out: 1, 10, 100, 1 000."""
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", "\u2009")))
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


# ---- the figures


def _columns(trace: Trace, layer: int | None, head: int | None, group: str) -> torch.Tensor:
    """Scores [step, key] of one head, or the mean over a layer's heads, or over all.

    Column sums of a diffusion model. An autoregressive one reads the prompt in one step and writes one row in each later
    one. Its scores are multiples of the uniform share, which makes all its steps comparable.
    """
    part = trace if layer is None else trace.select(layers=[layer])
    scores = part.scores(group)
    if trace.causal:
        queries, alive, seen = part.rule_columns(group)
        scores = Threshold(unit="uniform", group=group).scores(scores, queries, alive, seen)
    return scores[:, :, head].mean(1) if head is not None else scores.mean((1, 2))


@in_style
def received_map(
    trace: Trace, layer: int | None = None, head: int | None = None, group: str = "all", ax: Axes | None = None
) -> Axes:
    """Figure 1: attention received, step × position, with the largest key of every step.

    Unit: column sums, or multiples of the uniform share for an autoregressive model.
    """
    ax = axes(ax)
    values = _columns(trace, layer, head, group)
    extent = (-0.5, trace.positions - 0.5, trace.steps + 0.5, 0.5)  # steps are counted from 1
    image = ax.imshow(
        values.numpy(), aspect="auto", cmap=COLOURS, interpolation="nearest", extent=extent, norm=PowerNorm(0.5, vmin=0)
    )
    steps = np.arange(trace.steps) + 1
    ax.plot(values.argmax(-1).numpy(), steps, color="white", linewidth=2.6)
    ax.plot(values.argmax(-1).numpy(), steps, color=SINK, linewidth=1.3, label="largest key")
    if 0 < trace.prompt_length < trace.positions:
        ends = ax.axvline(
            trace.prompt_length - 0.5, color="white", linestyle="--", linewidth=1.2, label="end of prompt"
        )
        ends.set_path_effects([withStroke(linewidth=2.8, foreground=INK)])  # seen on the figure and in the legend
    where = "mean of all heads" if layer is None else f"layer {layer}, {'mean' if head is None else f'head {head}'}"
    ax.set(
        xlabel="position",
        ylabel="step" if trace.causal else "denoising step",
        title=f"{model_of(trace)}: {where}, {group} queries",
    )
    whole_ticks(ax)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    unit = "× uniform" if trace.causal else "column sum"
    ax.figure.colorbar(image, ax=ax, label=f"received ({unit})")
    return ax


@in_style
def score_histogram(trace: Trace, unit: str = "sum", bins: int = 50, ax: Axes | None = None) -> Axes:
    """Figure 3: how many (step, layer, head, key) have which score; the count is on a logarithmic scale."""
    ax = axes(ax, 5.0, 3.2)
    table = histogram(trace, bins, unit)
    ax.bar(table["low"], table["count"], table["high"] - table["low"], align="edge", color=LINES[0])
    unit_name = "× uniform" if unit == "uniform" else unit
    ax.set(yscale="log", xlabel=f"score ({unit_name})", ylabel="keys", title=f"{model_of(trace)}: scores of all keys")
    plain_counts(ax)
    whole_ticks(ax, down=False)
    if unit != "mean":
        ax.axvline(1 + PAPER_EPSILON, color=INK, linewidth=0.9, linestyle="--", label="ε = 3 above the mean")
        ax.legend()
    return ax


@in_style
def neighbouring_maps(trace: Trace, step: int = 1, slot: int = 0) -> Figure:
    """Figures 4, 6, 8: a head's whole attention map at two neighbouring steps; needs a trace that kept maps."""
    if trace.maps is None:
        raise ReportError(
            "Whole attention maps were expected, and this trace kept none; record it with keep=sk.Keep(maps=((layer, head),))."
        )
    if not 1 <= step < trace.steps:
        raise ReportError(f"Expected a step from 1 to {trace.steps - 1}, whose map has one before it, got {step}.")
    figure = sheet(7.6, 3.9)
    layer, head = trace.map_heads[slot]
    panels = figure.subplots(1, 2, sharey=True)
    for ax, at in zip(panels, (step - 1, step), strict=True):
        # An autoregressive step after the prompt writes one row: the map so far is all rows that there are.
        weights = trace.maps[slot, : at + 1].float().amax(0) if trace.causal else trace.maps[slot, at].float()
        image = ax.imshow(weights.numpy(), cmap=COLOURS, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        key = int(weights.sum(0).argmax())
        ax.plot([key], [1.025], marker="v", color=SINK, clip_on=False, transform=ax.get_xaxis_transform(), markersize=6)
        ax.set(xlabel=f"key (▾ largest: {key})", ylim=(trace.positions - 0.5, -0.5))
        ax.set_title(f"step {at + 1}", pad=11)
        whole_ticks(ax)
    panels[0].set_ylabel("query")
    figure.colorbar(image, ax=list(panels), label="attention weight", shrink=0.85)
    figure.suptitle(f"{model_of(trace)}: layer {layer}, head {head}")
    return figure


@in_style
def mean_maps(trace: Trace, layer: int, head: int) -> Figure:
    """The mean map of a head over steps, before and after the softmax; needs a trace that kept maps."""
    figure = sheet(7.6, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    pattern = trace.mean_map(layer, head)
    scores = trace.mean_map(layer, head, of="scores")
    shown = [
        ("before the softmax: scores", panels[0].imshow(scores.numpy(), cmap=COLOURS, interpolation="nearest")),
        ("after it: pattern", panels[1].imshow(pattern.numpy(), cmap=COLOURS, norm=PowerNorm(0.5, 0, 1))),
    ]
    for ax, (title, image) in zip(panels, shown, strict=True):
        ax.set(xlabel="key", title=title)
        whole_ticks(ax)
        figure.colorbar(image, ax=ax, shrink=0.75)
    panels[0].set_ylabel("query")
    figure.suptitle(f"{model_of(trace)}: layer {layer}, head {head}, mean of {trace.steps} steps")
    return figure


@in_style
def distance_curve(trace: Trace, layer: int | None = None, ax: Axes | None = None) -> Axes:
    """Attention against the distance of key from query: the mean over heads, a line per layer; needs kept maps."""
    ax = axes(ax)
    table = trace.by_distance(layer)
    means = table.group_by("layer", "distance").agg(pl.col("attention").mean()).sort("layer", "distance")
    for place, (key, own) in enumerate(means.group_by("layer", maintain_order=True)):
        ax.plot(own["distance"], own["attention"], **look(place), label=f"layer {key[0]}")
    ax.set(
        xlabel="distance: key − query",
        ylabel="mean attention weight",
        title=f"{model_of(trace)}: attention against distance",
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    return ax


@in_style
def head_grid(trace: Trace, ax: Axes | None = None) -> Axes:
    """Figure 5: score of each head's largest key, averaged over the steps, in the default rule's unit."""
    ax = axes(ax, 4.6, 3.8)
    rule = trace.default_rule
    scores = rule.scores(trace.scores(), *trace.rule_columns("all"))
    means = scores.amax(-1).mean(0).numpy()  # [layer, head]
    image = ax.imshow(means, cmap=COLOURS, aspect="auto", interpolation="nearest", vmin=0)
    if means.size <= 16 * 16:
        middle = means.max() * 0.55
        # As verdicts have them: of an autoregressive model by the columns so far.
        heads = head_dynamics(trace.cumulative()) if trace.causal else head_table(trace)
        for place, (name, way) in enumerate(head_classes(heads)):
            layer, head = divmod(place, trace.heads_count)
            sign = SIGNS[way or "right"] if name == "moving" else SIGNS[name]
            colour = INK if means[layer, head] > middle else "white"
            ax.text(head, layer, sign, ha="center", va="center", color=colour, fontfamily="DejaVu Sans")
        legend = "● static   → ← ↔ moving   ✦ flash   ◐ split"
        ax.text(
            0.5, -0.2, f"{legend} (columns so far)" if trace.causal else legend, transform=ax.transAxes, ha="center",
            va="top", fontsize=8, fontfamily="DejaVu Sans",
        )  # fmt: skip
    ax.set(xlabel="head", ylabel="layer", title=f"{model_of(trace)}: largest key of each head")
    whole_ticks(ax)
    unit = "× uniform" if rule.unit == "uniform" else rule.unit
    ax.figure.colorbar(image, ax=ax, label=f"mean score ({unit})")
    return ax


@in_style
def sink_paths(traces: Sequence[Trace], layer: int | None = None, ax: Axes | None = None) -> Axes:
    """Figure 7: position of the largest key over the steps, a line per trace."""
    ax = axes(ax, 6.4, 3.6)
    for place, trace in enumerate(traces):
        keys = _columns(trace, layer, None, "all").argmax(-1).numpy()
        done = 100 * (np.arange(trace.steps) + 0.5) / trace.steps
        ax.plot(done, keys, label=model_of(trace), **look(place))
    where = "mean of all heads" if layer is None else f"layer {layer}"
    ax.set(
        xlabel="share of the generation done (%)", ylabel="position", xlim=(0, 100),
        title=f"largest key ({where})",
    )  # fmt: skip
    whole_ticks(ax)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


@in_style
def epsilon_curve(traces: Sequence[Trace], unit: str = "sum", ax: Axes | None = None) -> Axes:
    """Figure 10: share of the keys that are no sinks against epsilon; an autoregressive trace in multiples of uniform."""
    ax = axes(ax, 6.2, 3.4)
    epsilons = [step / 2 for step in range(21)]
    for place, trace in enumerate(traces):
        used = "uniform" if trace.causal and unit == "sum" else unit
        table = sweep(trace, epsilons, (used,))
        name = f"{model_of(trace)} (× uniform)" if used == "uniform" else f"{model_of(trace)} ({used})"
        ax.plot(table["epsilon"], 100 * table["non_sinks"], label=name, **look(place))
    ax.axhline(PAPER_SHARE, color=INK, linewidth=0.8, linestyle=":", label="the paper’s 96 %")
    ax.axvline(PAPER_EPSILON, color=INK, linewidth=0.8, linestyle="--", label="ε = 3")
    ax.set(xlabel="ε", ylabel="non-sinks (% of keys)", title="share of non-sinks")
    whole_ticks(ax)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


@in_style
def before_after(trace: Trace, masked: Trace, layer: int | None = None, head: int | None = None) -> Figure:
    """The same problem as the model is and with its sinks masked: attention received, step × position, side by side."""
    if trace.prompt != masked.prompt:
        raise ReportError("Expected two traces of the same prompt, and theirs differ; trace the same problem twice.")
    figure = sheet(9.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for ax, one, title in zip(panels, (trace, masked), ("nothing masked", "sinks masked"), strict=True):
        received_map(one, layer, head, ax=ax)
        ax.set_title(f"{model_of(one)}: {title}")
    panels[1].set_ylabel("")
    return figure
