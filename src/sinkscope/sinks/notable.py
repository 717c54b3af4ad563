"""Heads worth a closer look: those whose sink goes far to another place, and those whose sink stays most firmly."""

from __future__ import annotations

import itertools

import polars as pl

FEW = 3  # positions; a sink that moves no further is not called a move here


def relocation() -> pl.Expr:
    """presence × positions between the early and the late home of a relocating head; 0 unless it goes more than FEW."""
    way = (pl.col("home_late") - pl.col("home_early")).abs().fill_null(0)
    return pl.when(pl.col("relocating") & (way > FEW)).then(pl.col("presence") * way).otherwise(0.0)


def stability() -> pl.Expr:
    """presence × strength: a sink that is there at most steps, and takes much."""
    return pl.col("presence").fill_null(0) * pl.col("strength").fill_null(0)


def notable(heads: pl.DataFrame, count: int) -> tuple[tuple[int, int], ...]:
    """(layer, head) of up to `count` heads of a table of `head_dynamics`: relocating and static ones alternate, best first.

    All other heads come after both; of equals the earlier layer and head counts.
    """
    moves, static = relocation() > 0, pl.col("class") == "static"
    first = _ranked(heads.filter(moves), relocation()), _ranked(heads.filter(static), stability())
    turns = itertools.chain.from_iterable(itertools.zip_longest(*first))
    return tuple(
        [place for place in turns if place is not None] + _ranked(heads.filter(~moves & ~static), stability())
    )[:count]


def _ranked(heads: pl.DataFrame, score: pl.Expr) -> list[tuple[int, int]]:
    found = heads.with_columns(score.fill_nan(0).alias("rank")).sort(
        "rank", "layer", "head", descending=[True, False, False]
    )
    return list(found.select("layer", "head").rows())
