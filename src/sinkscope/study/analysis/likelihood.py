"""What a condition costs in likelihood, of held-out text or of the true answers to problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sinkscope.interventions.conditions import Condition
from sinkscope.statistics import bootstrap, signed_rank
from sinkscope.study.analysis.answers import Answers, Loaded
from sinkscope.study.analysis.rows import FirstKey, Likelihood
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit

Of = Literal["texts", "answers"]
KINDS: Mapping[str, Of] = {"likelihood": "texts", "forced": "answers"}  # kind of unit → what is read


def likelihoods(study: Study, facts: Sequence[ModelInfo], units: Sequence[Unit], load: Loaded) -> list[Likelihood]:
    """Mean log-likelihood per token under each condition, and what the condition costs, paired text by text (nats)."""
    causal = {fact.name: fact.causal for fact in facts}
    found: dict[tuple[str, Condition, Of], list[dict[str, Any]]] = {}
    for unit in units:
        if unit.kind in KINDS:
            found.setdefault((unit.shown, unit.condition, KINDS[unit.kind]), []).append(load(unit))
    rows = []
    for (model, condition, of), results in found.items():
        bases = found[model, Condition("none"), of]
        before, after = ([row["value"] for one in every for row in one["rows"]] for every in (bases, results))
        change = [b - a for a, b in zip(before, after, strict=True)]
        low, high = bootstrap(change, study.draws, study.seed)
        mean_low, mean_high = bootstrap(after, study.draws, study.seed)
        one = Answers(model, "", condition, "")
        for result in results:
            one.add({"rows": [], "effect": result["effect"]})
        rows.append(
            Likelihood(
                model=model, condition=condition.to_dict(), label=condition.label, n=len(after),
                tokens=sum(_tokens(result) for result in results), unit="nats a token", value=sum(after) / len(after), low=mean_low,
                high=mean_high, difference=sum(change) / len(change), difference_low=low, difference_high=high,
                p=signed_rank(change), of=of, causal=causal[model], **one.shares(),
            )
        )  # fmt: skip
    return rows


def _tokens(result: Mapping[str, Any]) -> int:
    """Tokens that were scored: as many of every text, or as many as each answer has."""
    rows = result["rows"]
    return sum(row["scored"] for row in rows) if "tokens" not in result else int(result["tokens"]) * len(rows)


def first_keys(units: Sequence[Unit], load: Loaded) -> list[FirstKey]:
    """Share of attention on key 0, layer by layer, with nothing masked."""
    return [
        FirstKey(unit.shown, load(unit)["first_key"])
        for unit in units
        if unit.kind == "likelihood" and unit.condition == Condition("none")
    ]
