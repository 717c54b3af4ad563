"""Which kind of head: static, moving, flash, split or none, by stated thresholds that anyone may move.

The first of these that holds names the head:
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
heads many are not: their sink only vanishes and comes back, or another key stands all the while.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.fields import check_fields, number, whole

NAMES = ("none", "split", "flash", "static", "moving")
Share = Annotated[float, number(0, 1)]
Count = Annotated[int, whole(1)]


@dataclass(frozen=True)
class Classes:
    """The thresholds between the classes of heads."""

    static: Share = 0.8  # share of all steps
    flash: Share = 0.5  # share of the steps with a sink
    split: Share = 0.5  # share of the steps that could show it
    split_steps: Count = 2
    split_queries: Count = 4  # a single row has a favourite key by nature: a few rows are needed to speak of a kind
    split_support: Annotated[float, number(0)] = 2.0  # in column sums: one query alone gives at most 1
    split_prompt: bool = False  # count prompt queries to the committed ones ("unmasked", in the paper's word)
    trend: Share = 0.8
    trend_steps: Count = 6
    direction: Share = 0.5  # |trend| from which a moving head is said to go right or left

    def __post_init__(self) -> None:
        check_fields(self, RuleError)


def judged(classes: Classes, steps_with_sink: Tensor, measures: Mapping[str, Tensor]) -> dict[str, Any]:
    """class, direction and relocating of each head; all measures are vectors with one entry per head, NaN where not measured.

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
    return {"class": names, "direction": ways, "relocating": relocating.numpy()}


def _way(classes: Classes, trend: float) -> str | None:
    if math.isnan(trend):
        return None
    if abs(trend) < classes.direction:
        return "wander"
    return "right" if trend > 0 else "left"
