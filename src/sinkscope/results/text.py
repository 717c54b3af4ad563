"""Numbers, names and tables as text of 80 columns: shares in %, differences in points, intervals in brackets."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from sinkscope.results.rows import Difference, Dynamics, Interval

WIDTH = 80


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def changed(row: Difference) -> str:
    """A difference of accuracies with its interval, as -2.0 [-5.0, -0.1]."""
    return f"{points(row.difference)} [{points(row.difference_low)}, {points(row.difference_high)}]"


def nats(row: Difference) -> str:
    """A difference of log-likelihoods with its interval."""
    return f"{row.difference:+.2f} [{row.difference_low:+.2f}, {row.difference_high:+.2f}]"


def span(found: Interval, scale: float = 1.0) -> str:
    """A value with its interval, as +0.50 [+0.40, +0.60]."""
    return f"{scale * found.value:+.2f} [{scale * found.low:+.2f}, {scale * found.high:+.2f}]"


def chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def rule(row: Dynamics) -> str:
    """The sink rule that a row was made with."""
    return f"{row.rule} {row.epsilon:g} in {row.unit}" if row.epsilon is not None else row.rule


def cut(text: str, most: int) -> str:
    """At most so many characters; of a bracket at the end, which may be all that tells two labels apart, three stay."""
    if len(text) <= most:
        return text
    bracket = f"({text.rpartition(' (')[2][:3]})" if text.endswith(")") and " (" in text and most > 8 else ""
    return f"{text[: most - 1 - len(bracket)]}…{bracket}"


def title(*words: str) -> str:
    """What says anything of model, task and setting."""
    return " · ".join(word for word in words if word)


def paragraph(text: str, indent: int = 4) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))


def aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> Iterator[str]:
    """Names to the left, the other columns to the right; a name for which there is no room has lines of its own."""
    wide = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)][1:]
    room = min(WIDTH - indent - sum(wide), max(len(name) for name, *_ in rows))
    for name, *cells in rows:
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True)).rstrip()
        if len(name) > room:
            yield from (f"{'':{indent}}{part}" for part in textwrap.wrap(name, WIDTH - indent))
        if line or len(name) <= room:
            yield f"{'':{indent}}{'' if len(name) > room else name:<{room}}{line}".rstrip()
