"""What a condition costs in likelihood of held-out text."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.interventions.conditions import Condition
from sinkscope.statistics import bootstrap, signed_rank
from sinkscope.study.analysis.answers import Answers, Loaded
from sinkscope.study.analysis.rows import FirstKey, Likelihood
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit


def likelihoods(study: Study, units: Sequence[Unit], load: Loaded) -> list[Likelihood]:
    """Mean log-likelihood a token under each condition, and what the condition costs, paired text by text (nats)."""
    found = {(unit.shown, unit.condition): load(unit) for unit in units if unit.kind == "likelihood"}
    rows = []
    for (model, condition), result in found.items():
        base = found[model, Condition("none")]
        before, after = ([row["value"] for row in one["rows"]] for one in (base, result))
        change = [b - a for a, b in zip(before, after, strict=True)]
        low, high = bootstrap(change, study.draws, study.seed)
        mean_low, mean_high = bootstrap(after, study.draws, study.seed)
        one = Answers(model, "", condition, "")
        one.add({"rows": [], "effect": result["effect"]})
        rows.append(
            Likelihood(
                model=model, condition=condition.to_dict(), label=condition.label, n=len(after),
                tokens=result["tokens"] * len(after), unit="nats a token", value=sum(after) / len(after), low=mean_low,
                high=mean_high, difference=sum(change) / len(change), difference_low=low, difference_high=high,
                p=signed_rank(change), **one.shares(),
            )
        )  # fmt: skip
    return rows


def first_keys(units: Sequence[Unit], load: Loaded) -> list[FirstKey]:
    """Share of attention on key 0, layer by layer, with nothing masked."""
    return [
        FirstKey(unit.shown, load(unit)["first_key"])
        for unit in units
        if unit.kind == "likelihood" and unit.condition == Condition("none")
    ]
