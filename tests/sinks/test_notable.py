"""Heads worth a closer look, by hand."""

import polars as pl

from sinkscope.sinks import notable

COLUMNS = ("layer", "head", "class", "presence", "trend", "drift", "strength")
ROWS = [
    (0, 0, "static", 1.0, None, None, 5.0),
    (0, 1, "moving", 1.0, 1.0, -4.0, 2.0),
    (1, 0, "moving", 1.0, -0.9, 9.0, 2.0),
    (1, 1, "static", 0.9, 0.1, 0.0, 7.0),
    (2, 0, "none", 0.0, None, None, None),
    (2, 1, "flash", 0.4, None, None, 9.0),
]


def test_moving_and_static_heads_take_turns_and_others_come_last() -> None:
    heads = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
    ranked = ((1, 0), (1, 1), (0, 1), (0, 0), (2, 1), (2, 0))
    for count in range(8):
        assert notable(heads, count) == ranked[:count]


def test_one_class_alone_is_enough() -> None:
    heads = pl.DataFrame(ROWS[:1] + ROWS[3:], schema=COLUMNS, orient="row")
    assert notable(heads, 2) == ((1, 1), (0, 0))
