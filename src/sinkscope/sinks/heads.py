"""The table of heads: how the sinks of each (layer, head) behave, how strong they are, what class that makes, who is notable."""

import itertools

import polars as pl
import torch

from sinkscope.sinks import dynamics
from sinkscope.sinks.classes import Classes, judged
from sinkscope.sinks.columns import TraceColumns, alive_keys, default_rule, marks_by_layer, on_one_core, query_count
from sinkscope.sinks.dynamics import Measures
from sinkscope.sinks.rules import Rule
from sinkscope.sinks.tables import named


@on_one_core
def head_dynamics(trace: TraceColumns, rule: Rule | None = None, classes: Classes | None = None) -> pl.DataFrame:
    """One row per (layer, head): class, lives, path, distances, strength, entropy; null where there is nothing to measure.

    Positions and distances are in tokens, times in steps, strength in the rule's unit (column `unit`). The columns are
    explained one by one in docs/explanation/sinks.md.
    """
    rule, classes = rule or default_rule(trace), classes or Classes()
    queries, alive = query_count(trace, rule.group), alive_keys(trace)
    unmasked = ["committed", "prompt"] if classes.split_prompt else ["committed"]
    kinds = query_count(trace, "masked"), torch.stack([query_count(trace, kind) for kind in unmasked]).sum(0)
    if trace.causal:  # nothing is masked; the frontier is the position that the step decides
        front, right = alive.sum(-1).float(), torch.full((trace.steps,), torch.nan)
    else:
        front, right = dynamics.mask_ends(trace.canvas, trace.mask_id)
    parts: list[Measures] = []
    mains, presents, layer_mains = [], [], []
    for layers, scores, marks, (received, masked, *others) in marks_by_layer(trace, rule, "masked", *unmasked):
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


def _frame(measures: Measures, rule: Rule, classes: Classes) -> pl.DataFrame:
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
