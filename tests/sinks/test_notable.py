"""Heads worth a closer look, by hand."""

import polars as pl

from sinkscope.tracing.heads import notable

COLUMNS = ("layer", "head", "class", "relocating", "presence", "home_early", "home_late", "strength")
ROWS = [
    (0, 0, "static", False, 1.0, 0, 0, 5.0),
    (0, 1, "moving", True, 1.0, 20, 12, 2.0),
    (1, 0, "moving", True, 1.0, 2, 31, 2.0),
    (1, 1, "static", False, 0.9, 1, 1, 7.0),
    (2, 0, "none", False, 0.0, None, None, None),
    (2, 1, "flash", False, 0.4, 3, 30, 9.0),
    (3, 0, "moving", True, 1.0, 7, 10, 1.0),  # no more than a few positions
]


def test_relocating_and_static_heads_take_turns_and_others_come_last() -> None:
    heads = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
    ranked = ((1, 0), (1, 1), (0, 1), (0, 0), (2, 1), (3, 0), (2, 0))
    for count in range(8):
        assert notable(heads, count) == ranked[:count]


def test_static_heads_alone_are_enough() -> None:
    heads = pl.DataFrame(ROWS[:1] + ROWS[3:], schema=COLUMNS, orient="row")
    assert notable(heads, 2) == ((1, 1), (0, 0))
