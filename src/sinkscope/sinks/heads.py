"""The table of heads: how the sinks of each (layer, head) behave, how strong they are, and what class that makes."""

import polars as pl
import torch
from torch import Tensor

from sinkscope.sinks import dynamics, strength
from sinkscope.sinks.classes import Classes, classify, directions, flashes, relocates
from sinkscope.sinks.columns import (
    TraceLike,
    alive_keys,
    columns_by_layer,
    default_rule,
    marks_by_layer,
    missing_keys,
    on_one_core,
    query_count,
    seen_by,
)
from sinkscope.sinks.rules import HeadShare, Rule

Measures = dict[str, Tensor]  # name -> [layer, head]


@on_one_core
def head_dynamics(trace: TraceLike, rule: Rule | None = None, classes: Classes | None = None) -> pl.DataFrame:
    """One row per (layer, head): class, lives, path, distances, strength, entropy; null where there is nothing to measure.

    Positions and distances are in tokens, times in steps, strength in the rule's unit (column `unit`). The columns are
    explained one by one in docs/explanation/sinks.md.
    """
    rule, classes = rule or default_rule(trace), classes or Classes()
    queries, alive = query_count(trace, rule.group), alive_keys(trace)
    missing, seen = missing_keys(trace), seen_by(trace, rule.group)
    unmasked = ["committed", "prompt"] if classes.split_prompt else ["committed"]
    kinds = query_count(trace, "masked"), torch.stack([query_count(trace, kind) for kind in unmasked]).sum(0)
    parts: list[Measures] = []
    mains, presents, layer_mains = [], [], []
    for layers, (received, masked, *others) in columns_by_layer(trace, [rule.group, "masked", *unmasked]):
        scores, marks = rule.scores(received, queries, missing, seen), rule.marks(received, queries, missing, seen)
        main, score, present = dynamics.main_key(scores, marks)
        other = others[0] + others[1] if len(others) > 1 else others[0]
        share, shown = strength.split(rule, (masked, other), kinds, classes.split_queries, classes.split_support)
        norms = trace.value_norms
        ratio = torch.full(marks.shape[1:3], torch.nan)
        parts.append(
            {
                **_behaviour(marks, scores, main, present),
                **_places(trace, main, present),
                **_strength(received, marks, score, queries > 0, alive),
                "value_ratio": ratio if norms is None else strength.value_ratio(norms[:, layers], marks, alive),
                "split_share": share,
                "split_steps": shown,
            }
        )
        mains.append(main)
        presents.append(present)
        layer_mains.append(torch.from_numpy(received.mean(2).numpy().argmax(-1)))  # [step, layer]
    measures = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    measures["agreement"] = strength.agreement(torch.cat(mains, 1), torch.cat(presents, 1), torch.cat(layer_mains, 1))
    return _frame(measures, rule, classes)


def _behaviour(marks: Tensor, scores: Tensor, main: Tensor, present: Tensor) -> Measures:
    births, deaths = dynamics.turnover(marks)
    walk = dynamics.walk(main, present)
    stay = dynamics.stay(marks, main, present)
    early, late = dynamics.homes(main, present, marks.shape[-1])
    spatial, temporal = dynamics.centroids(scores, marks)
    return {
        "steps_with_sink": present.sum(0),
        "presence": present.float().mean(0),
        "births": births,
        "deaths": deaths,
        **_lifetimes(marks),
        "one_step_share": dynamics.one_step(marks, main, present),
        "jaccard": dynamics.jaccard(marks),
        "displacement": walk.displacement,
        "moves": walk.moves,
        "drift": walk.drift,
        "trend": walk.trend,
        "home": torch.where(present.any(0), stay.home.float(), torch.nan),
        "home_share": stay.home_share,
        "home_early": early,
        "home_late": late,
        "main_keys": stay.main_keys,
        "standing": stay.standing,
        "spatial_variance": spatial,
        "temporal_variance": temporal,
    }


def _lifetimes(marks: Tensor) -> Measures:
    """Number, mean and longest of the lives of a head's sinks, and how many of them were flashes of one step."""
    lives = dynamics.lives(marks)
    _, layers, heads, _ = marks.shape
    place, length = lives.layer * heads + lives.head, lives.length
    count = torch.bincount(place, minlength=layers * heads)
    total = torch.bincount(place, length.double(), minlength=layers * heads)
    flashes = torch.bincount(place[length == 1], minlength=layers * heads)
    longest = torch.zeros(layers * heads, dtype=length.dtype).scatter_reduce_(0, place, length, "amax")
    shape = (layers, heads)
    return {
        "lives": count.reshape(shape),
        "lifetime": (total / count).float().reshape(shape),
        "longest": torch.where(count > 0, longest.float(), torch.nan).reshape(shape),
        "flashes": flashes.reshape(shape),
    }


def _places(trace: TraceLike, main: Tensor, present: Tensor) -> Measures:
    if trace.causal:  # nothing is masked; the frontier is the position that the step decides
        front = alive_keys(trace).sum(-1).float()
        right = torch.full_like(front, torch.nan)
    else:
        front = dynamics.frontier(trace.canvas, trace.mask_id)
        right = dynamics.rightmost_mask(trace.canvas, trace.mask_id)
    found = {
        "block": dynamics.block_distance(main, present, trace.blocks),
        "rightmost_mask": dynamics.distance(main, present, right),
        "frontier": dynamics.distance(main, present, front),
    }
    means = {f"to_{name}": mean for name, (mean, _) in found.items()}
    return means | {f"to_{name}_deviation": deviation for name, (_, deviation) in found.items()}


def _strength(received: Tensor, marks: Tensor, score: Tensor, there: Tensor, alive: Tensor) -> Measures:
    mean, peak = strength.strength(score, there)
    entropy, relative = strength.entropy(received, alive, there)
    number = marks.sum(-1).float()
    return {
        "sinks": dynamics.mean_where(number, there[:, None, None].expand_as(number)),
        "strength": mean,
        "strength_peak": peak,
        "absorption": strength.absorption(received, marks, there),
        "entropy": entropy,
        "entropy_relative": relative,
    }


def _frame(measures: Measures, rule: Rule, classes: Classes) -> pl.DataFrame:
    layers, heads = measures["presence"].shape
    flat = {name: values.reshape(-1) for name, values in measures.items()}
    steps = flat.pop("steps_with_sink")
    flash = flashes(classes, flat["one_step_share"], flat["trend"], steps)
    measured = (flat[name] for name in ("split_share", "split_steps", "one_step_share", "trend", "home_share"))
    names = classify(classes, steps, *measured)
    frame = pl.DataFrame(
        {
            "layer": torch.arange(layers).repeat_interleave(heads).numpy(),
            "head": torch.arange(heads).repeat(layers).numpy(),
            "class": names,
            "direction": pl.Series(directions(classes, names, flat["trend"]), dtype=pl.String),
            "relocating": relocates(classes, flat["main_keys"], flat["standing"], flash).numpy(),
            **{name: values.numpy() for name, values in flat.items()},
        }
    )
    return frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None)).with_columns(
        pl.col("home", "home_early", "home_late", "longest").cast(pl.Int64),
        unit=pl.lit(rule.unit),
        group=pl.lit(rule.group),
        rule=pl.lit(rule.name),
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


@on_one_core
def sink_rate(trace: TraceLike, rule: Rule | None = None) -> pl.DataFrame:
    """Share of (layer, head) pairs in which each position is a sink, averaged over the steps in which it exists.

    With the default rule, HeadShare(0.3), this is the metric of Gu et al., one row per position.
    """
    rule = rule or HeadShare()
    alive = alive_keys(trace) & (query_count(trace, rule.group) > 0)[:, None]
    count, heads = torch.zeros(trace.positions), 0
    for _, _, _, marks in marks_by_layer(trace, rule):
        count += marks.sum((0, 1, 2))
        heads += marks.shape[1] * marks.shape[2]
    share = count / (alive.sum(0) * heads)
    return pl.DataFrame({"position": range(trace.positions), "share": share.numpy()}).with_columns(
        pl.col("share").fill_nan(None), rule=pl.lit(rule.name), group=pl.lit(rule.group)
    )
