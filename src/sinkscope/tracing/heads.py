"""The table of heads: how the sinks of each (layer, head) behave, how strong they are, what class that makes, who is notable.

A head is static, moving, flash, split or none, by thresholds that anyone may move. The first that holds names the head:
1. none: no step has a sink.
2. split: masked and committed queries have sinks of their own in at least `split` of the steps that could show it (both
   kinds have `split_queries` queries), and there are at least `split_steps` such steps. Of its own means: the largest
   sink of the one kind is none for the other, and gets as much as `split_support` queries have to give.
3. flash: in at least `flash` of the steps with a sink, the largest one lives for that step only, and the path has no
   trend. A path that moves a little every step has a trend (|correlation with the step| ≥ `trend` over at least
   `trend_steps` steps) and is no flash.
4. static: the home key, the one that is the largest sink most often, is a sink in at least `static` of *all* steps.
5. moving: everything else; the sink stays for some steps, then moves or vanishes.

Beside its class a head may be *relocating*: its largest sink really changes place. Two or more keys were the largest sink,
no key is a sink in `static` of all steps (else that one stands, whatever else comes and goes), and it is no flash. Of moving
heads many are not: their sink only vanishes and comes back, or another key stands all the while. `motion` tells the two
apart: it is the class, with *relocating* or *intermittent* (comes and goes, but stays in place) for moving heads.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import polars as pl
import torch
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.sinks.rules import Rule
from sinkscope.tracing import dynamics
from sinkscope.tracing.sinks import named
from sinkscope.tracing.trace import Trace, single_threaded
from sinkscope.validation import Count, NonNegative, Share, settings

NAMES = ("none", "split", "flash", "static", "moving")


@settings(RuleError)
class Classes:
    """The thresholds between the classes of heads."""

    static: Share = 0.8  # share of all steps
    flash: Share = 0.5  # share of the steps with a sink
    split: Share = 0.5  # share of the steps that could show it
    split_steps: Count = 2
    split_queries: Count = 4  # a single row has a favourite key by nature: a few rows are needed to speak of a kind
    split_support: NonNegative = 2.0  # in column sums: one query alone gives at most 1
    split_prompt: bool = False  # count prompt queries to the committed ones ("unmasked", in the paper's word)
    trend: Share = 0.8
    trend_steps: Count = 6
    direction: Share = 0.5  # |trend| from which a moving head is said to go right or left


def judged(classes: Classes, steps_with_sink: Tensor, measures: Mapping[str, Tensor]) -> dict[str, Any]:
    """class, motion, direction and relocating of each head; measures have one entry per head, NaN where not measured.

    Direction is right, left or wander where a sink moves; None for other heads, and for a sink that only vanishes.
    """
    trend = measures["trend"]
    trending = (trend.abs() >= classes.trend) & (steps_with_sink >= classes.trend_steps)
    flash = (measures["one_step_share"] >= classes.flash) & ~trending
    holds = torch.stack(  # [class, head], in the order of NAMES; comparisons with NaN are False
        [
            steps_with_sink == 0,
            (measures["split_share"] >= classes.split) & (measures["split_steps"] >= classes.split_steps),
            flash,
            measures["home_share"] >= classes.static,
            torch.ones_like(flash),
        ]
    )
    names = [NAMES[i] for i in holds.to(torch.int8).numpy().argmax(0)]
    ways = [_way(classes, one) if name == "moving" else None for name, one in zip(names, trend.tolist(), strict=True)]
    relocating = (measures["main_keys"] >= 2) & (measures["standing"] < classes.static) & ~flash
    moves = ["relocating" if one else "intermittent" for one in relocating.tolist()]
    motions = [move if name == "moving" else name for name, move in zip(names, moves, strict=True)]
    return {"class": names, "motion": motions, "direction": ways, "relocating": relocating.numpy()}


def _way(classes: Classes, trend: float) -> str | None:
    if math.isnan(trend):
        return None
    if abs(trend) < classes.direction:
        return "wander"
    return "right" if trend > 0 else "left"


@single_threaded
def head_dynamics(trace: Trace, rule: Rule | None = None, classes: Classes | None = None) -> pl.DataFrame:
    """One row per (layer, head): class, lives, path, distances, strength, entropy; null where there is nothing to measure.

    Positions and distances are in tokens, times in steps, strength in the rule's unit (column `unit`). The columns are
    explained one by one in docs/reference/sinks.md.
    """
    rule, classes = rule or trace.default_rule, classes or Classes()
    queries, alive = trace.query_count(rule.group), trace.alive()
    unmasked = ["committed", "prompt"] if classes.split_prompt else ["committed"]
    kinds = trace.query_count("masked"), torch.stack([trace.query_count(kind) for kind in unmasked]).sum(0)
    if trace.causal:  # nothing is masked; the frontier is the position that the step decides
        front, right = alive.sum(-1).float(), torch.full((trace.steps,), torch.nan)
    else:
        front, right = dynamics.mask_ends(trace.canvas, trace.mask_id)
    parts: list[dynamics.Measures] = []
    mains, presents, layer_mains = [], [], []
    for layers, scores, marks, (received, masked, *others) in trace.marks_by_layer(rule, "masked", *unmasked):
        main, score, present = dynamics.main_key(scores, marks)
        norms = trace.value_norms
        ratio = torch.full(marks.shape[1:3], torch.nan)
        parts.append(
            {
                "steps_with_sink": present.sum(0),
                "presence": present.float().mean(0),
                **dynamics.lifetimes(marks),
                "one_step_share": dynamics.one_step(marks, main, present),
                "jaccard": dynamics.jaccard(marks),
                **dynamics.walk(main, present),
                **dynamics.stay(marks, main, present),
                **dynamics.centroids(scores, marks),
                **dynamics.places(main, present, trace.blocks, front, right),
                **dynamics.strength(received, marks, score, (queries > 0)[:, None, None], alive),
                "value_ratio": ratio if norms is None else dynamics.value_ratio(norms[:, layers], marks, alive),
                **dynamics.split(
                    rule, (masked, sum(others[1:], others[0])), kinds, classes.split_queries, classes.split_support
                ),
            }
        )
        mains.append(main)
        presents.append(present)
        layer_mains.append(torch.from_numpy(received.mean(2).numpy().argmax(-1)))  # [step, layer]
    measures = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    measures["agreement"] = dynamics.agreement(torch.cat(mains, 1), torch.cat(presents, 1), torch.cat(layer_mains, 1))
    return _frame(measures, rule, classes)


def _frame(measures: dynamics.Measures, rule: Rule, classes: Classes) -> pl.DataFrame:
    layers, heads = measures["presence"].shape
    flat = {name: values.reshape(-1) for name, values in measures.items()}
    steps = flat.pop("steps_with_sink")
    frame = pl.DataFrame(
        {
            "layer": torch.arange(layers).repeat_interleave(heads).numpy(),
            "head": torch.arange(heads).repeat(layers).numpy(),
            **judged(classes, steps, flat),
            **{name: values.numpy() for name, values in flat.items()},
        }
    )
    return frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None)).with_columns(
        pl.col("home", "home_early", "home_late", "longest").cast(pl.Int64),
        pl.col("direction").cast(pl.String),
        **named(rule),
    )


def by_layer(heads: pl.DataFrame) -> pl.DataFrame:
    """Sinks by depth: `head_dynamics` averaged over the heads of each layer, with the share of heads of each kind."""
    means = ["presence", "sinks", "strength", "absorption", "entropy_relative", "lifetime", "agreement", "value_ratio"]
    return (
        heads.group_by("layer")
        .agg(
            *[pl.col(name).mean() for name in means],
            *[(pl.col("class") == name).mean().alias(name) for name in ("static", "moving", "flash", "split", "none")],
            pl.col("relocating").mean(),
            (pl.col("motion") == "intermittent").mean().alias("intermittent"),
            pl.col("unit").first(),
        )
        .sort("layer")
    )


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
    turns = [place for pair in itertools.zip_longest(*first) for place in pair if place is not None]
    return tuple(turns + _ranked(heads.filter(~moves & ~static), stability()))[:count]


def _ranked(heads: pl.DataFrame, score: pl.Expr) -> list[tuple[int, int]]:
    ranked = heads.sort(score.fill_nan(0), "layer", "head", descending=[True, False, False])
    return list(ranked.select("layer", "head").rows())
