"""Heads worth a closer look: the one whose sink goes furthest one way, and the one whose sink stays most firmly."""

from __future__ import annotations

import itertools

import polars as pl


def motion() -> pl.Expr:
    """presence × trend² × |drift| of a moving head: its sink is there at most steps, keeps to one way, and goes far."""
    return pl.col("presence") * pl.col("trend").fill_null(0) ** 2 * pl.col("drift").abs().fill_null(0)


def stability() -> pl.Expr:
    """presence × strength: a sink that is there at most steps, and takes much."""
    return pl.col("presence").fill_null(0) * pl.col("strength").fill_null(0)


def notable(heads: pl.DataFrame, count: int) -> tuple[tuple[int, int], ...]:
    """(layer, head) of up to `count` heads of a table of `head_dynamics`: moving and static ones by turns, best first.

    Heads of neither class come after both; of equals the earlier layer and head counts.
    """
    moving = _ranked(heads.filter(pl.col("class") == "moving"), motion())
    static = _ranked(heads.filter(pl.col("class") == "static"), stability())
    other = _ranked(heads.filter(~pl.col("class").is_in(["moving", "static"])), stability())
    turns = itertools.chain.from_iterable(itertools.zip_longest(moving, static))
    return tuple([place for place in turns if place is not None] + other)[:count]


def _ranked(heads: pl.DataFrame, score: pl.Expr) -> list[tuple[int, int]]:
    found = heads.with_columns(score.fill_nan(0).alias("rank")).sort(
        "rank", "layer", "head", descending=[True, False, False]
    )
    return list(found.select("layer", "head").rows())
