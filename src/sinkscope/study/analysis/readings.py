"""What is read off without grading an answer.

The likelihood of text and of true answers, attention on key 0, and whether confidence is lost, and the commit late, where
a token looked at the sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sinkscope.interventions.conditions import Condition
from sinkscope.statistics import bootstrap, signed_rank
from sinkscope.study.analysis.accuracy import Loaded, shares
from sinkscope.study.results import FirstKey, Interval, LikelihoodChange, Mechanism
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit

Of = Literal["texts", "answers"]
READ: Mapping[str, Of] = {"likelihood": "texts", "forced": "answers"}  # kind of unit → what is read


def likelihoods(
    study: Study, models: Sequence[ModelInfo], units: Sequence[Unit], load: Loaded
) -> list[LikelihoodChange]:
    """Mean log-likelihood per token under each condition, and what the condition costs, paired text by text (nats)."""
    causal = {model.name: model.causal for model in models}
    found: dict[tuple[str, Condition, Of], list[dict[str, Any]]] = {}
    for unit in units:
        if unit.kind in READ:
            found.setdefault((unit.shown, unit.condition, READ[unit.kind]), []).append(load(unit))
    rows = []
    for (model, condition, of), results in found.items():
        bases = found[model, Condition("none"), of]
        before, after = ([row["value"] for one in every for row in one["rows"]] for every in (bases, results))
        change = [b - a for a, b in zip(before, after, strict=True)]
        difference_low, difference_high = bootstrap(change, study.draws, study.seed)
        low, high = bootstrap(after, study.draws, study.seed)
        # As many tokens of every text, or as many as each answer has.
        tokens = sum(row.get("scored") or result["tokens"] for result in results for row in result["rows"])
        taken = shares(result["effect"] for result in results)
        rows.append(
            LikelihoodChange(
                model=model, condition=condition.to_dict(), label=condition.label, n=len(after), unit="nats per token",
                tokens=tokens, value=sum(after) / len(after), low=low, high=high,
                difference=sum(change) / len(change), difference_low=difference_low, difference_high=difference_high,
                p=signed_rank(change), of=of, causal=causal[model], **taken,
            )
        )  # fmt: skip
    return rows


def first_keys(units: Sequence[Unit], load: Loaded) -> list[FirstKey]:
    """Share of attention on key 0, layer by layer, with nothing masked."""
    plain = [unit for unit in units if unit.kind == "likelihood" and unit.condition == Condition("none")]
    return [FirstKey(unit.shown, load(unit)["first_key"]) for unit in plain]


def mechanisms(study: Study, units: Sequence[Unit], load: Loaded) -> list[Mechanism]:
    """Confidence and commit delay in the half of the positions that depended more on the masked keys, and in the other."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    units_of: dict[str, str] = {}
    for unit in units:
        if unit.kind == "mechanism":
            units_of[unit.shown] = "nats" if unit.decode.get("confidence") == "entropy" else "points"
            rows = [row for row in load(unit)["rows"] if row["positions"] >= 2]
            found.setdefault((unit.shown, unit.condition.k), []).extend(rows)
    return [
        Mechanism(model, k, len(rows), units_of[model], **_halves(study, rows)) for (model, k), rows in found.items()
    ]


def _halves(study: Study, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of both halves, and the gaps between them under sinks and random keys, problem by problem."""
    if not rows:
        return {}
    names = [name for name in rows[0] if name.startswith(("dependence", "confidence", "delay"))]
    entry: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in names}
    for what in ("confidence", "delay"):
        sinks, random = _gaps(rows, what)
        entry[f"{what}_sinks_gap"] = _mean(study, sinks)
        entry[f"{what}_random_gap"] = _mean(study, random)
        entry[f"{what}_gap_beyond_random"] = _mean(study, sinks - random)
    free = [row for row in rows if "free_delay_sinks" in row]
    if not free:
        return entry
    # Where the number of commits per step is free: of all positions, between the halves, and of the last one.
    sinks, random = _gaps(free, "free_delay")
    entry["free_problems"] = len(free)
    entry["free_delay_sinks_gap"] = _mean(study, sinks)
    entry["free_delay_gap_beyond_random"] = _mean(study, sinks - random)
    for what in ("free_delay", "free_steps"):
        sinks, random = (np.array([row[f"{what}_{keys}"] for row in free]) for keys in ("sinks", "random"))
        entry[f"{what}_sinks"] = _mean(study, sinks)
        entry[f"{what}_beyond_random"] = _mean(study, sinks - random)
    entry["free_delay_random"] = _mean(study, np.array([row["free_delay_random"] for row in free]))
    return entry


def _gaps(rows: Sequence[Mapping[str, Any]], what: str) -> list[npt.NDArray[np.float64]]:
    """The half that looked more less the other, a number per problem: under sinks, and under random keys."""
    return [
        np.array([row[f"{what}_{keys}_high"] - row[f"{what}_{keys}_low"] for row in rows])
        for keys in ("sinks", "random")
    ]


def _mean(study: Study, values: npt.NDArray[np.float64]) -> Interval:
    low, high = bootstrap(values.tolist(), study.draws, study.seed)
    return Interval(float(values.mean()), low, high)
