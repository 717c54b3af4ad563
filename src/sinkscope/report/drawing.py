"""What all figures for print share: a look that is safe for colour-blind readers, and figures that notebooks show.

Text stays text in PDF and SVG, and no date or chance gets into a file (the same run gives the same bytes). A `$` in the
name of a model is a dollar sign. Nothing is read as mathematics, so every axis gets a formatter that writes none.
"""

from __future__ import annotations

import io
from typing import Any, cast

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

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
