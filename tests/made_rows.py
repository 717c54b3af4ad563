"""Rows of results made by hand: whatever a test does not say has a plain value."""

from __future__ import annotations

from typing import Any

from sinkscope.results.rows import (
    TABLES,
    Answered,
    Control,
    Dynamics,
    Heads,
    Interval,
    LayerHeads,
    LikelihoodChange,
    Mechanism,
    PooledCell,
    Tables,
)
from sinkscope.statistics import change_interval


def tables(**rows: list[Any]) -> Tables:
    """Tables of a run; those that are not given are empty."""
    return Tables(**{**{name: [] for name in TABLES}, **rows})


def changes(lost: int, won: int = 0, n: int = 100) -> dict[str, Any]:
    """A comparison in which so many answers were lost and won."""
    low, high = change_interval(lost, won, n)
    return {
        "n": n, "lost": lost, "won": won, "difference": (won - lost) / n, "difference_low": low, "difference_high": high,
        "p": 0.5, "p_holm": 0.5,
    }  # fmt: skip


def control(lost: int, won: int = 0, n: int = 100, mass: float | None = None, **words: Any) -> Control:
    """Sinks against random keys: so many more answers lost under sinks."""
    found = {name: value for name, value in changes(lost, won, n).items() if name != "n"}
    return Control(**{**found, "accuracy": 0.5, "key_share": 0.1, "mass_share": mass, "leak": 0.0, **words})


def cell(
    lost: int = 0, name: str = "mask_sinks", k: int = 1, rows: str | None = "all", accuracy: float = 0.5, n: int = 200,
    controls: dict[str, Control] | None = None, weak: dict[str, float] | None = None, mass: float | None = 0.2,
    causal: bool = False, setting: str = "", model: str = "m", task: str = "all", p_primary: float | None = None,
    won: int = 0, family: str = "llada", **condition: Any,
) -> PooledCell:  # fmt: skip
    """A pooled row; without a task that is strong enough where `accuracy` is below a tenth."""
    rank = None if name in ("none", "noop", "mask_positions") else "clean"
    found = changes(lost, won, n)
    numbers = {
        **found, "correct": round(accuracy * n), "accuracy": accuracy, "low": 0.0, "high": 1.0, "key_share": 0.1,
        "mass_share": mass, "controls": {"count": control(0)} if controls is None else controls,
    }  # fmt: skip
    return PooledCell(
        model=model, family=family, causal=causal, task=task, setting=setting,
        condition={"name": name, "k": k, "rank": rank, "rows": rows, **condition}, label=name, **numbers, leak=0.0,
        confidence=0.5, paper=None, p_primary=p_primary, weak=weak or {},
        able=Answered(**numbers) if accuracy >= 0.1 else None,
    )  # fmt: skip


def none(accuracy: float = 0.5, **words: Any) -> PooledCell:
    return cell(name="none", k=0, rows=None, accuracy=accuracy, controls={}, **words)


def heads(**shares: float) -> dict[str, Any]:
    """Shares of heads by class; what is not said is 0."""
    means = [name for name in Heads.__dataclass_fields__ if name not in SHARES]
    return {**dict.fromkeys(SHARES, 0.0), **dict.fromkeys(means, None), "lifetime": 2.0, "absorption": 0.5, **shares}


SHARES = ("static", "moving", "flash", "split", "none", "left", "right", "wander")


def dynamics(
    setting: str = "", condition: str = "none", model: str = "m", start: float = 0.9, key_0: float = 0.1,
    columns: Heads | None = None, intervals: dict[str, Interval] | None = None, **shares: float,
) -> Dynamics:  # fmt: skip
    made = heads(**(shares or {"static": 1.0}))
    places = {"first": start, "start": start, "prompt": 0.9, "masked": 0.0, "block": 0.0}
    return Dynamics(
        model=model, setting=setting, condition=condition, generations=3, **made, sinks_found=9, non_sinks=0.9,
        places=places, rules=[], layers=[LayerHeads(layer=0, first_key=key_0, **made)], rule="threshold", unit="uniform",
        epsilon=3.0, intervals=intervals, columns=columns,
    )  # fmt: skip


def mechanism(
    gap: float, beyond: float, unit: str = "points", model: str = "m", problems: int = 9, **words: Any
) -> Mechanism:
    """Confidence falls by `gap`, commits come as much later; intervals of ± 0.1."""
    found: dict[str, Any] = {}
    for what, sign in (("confidence", -1), ("delay", 1)):
        for name, value in (("sinks_gap", gap), ("gap_beyond_random", beyond)):
            found[f"{what}_{name}"] = around(sign * value)
    return Mechanism(
        model=model, k=1, problems=problems, unit=unit, confidence_sinks_high=-gap, confidence_sinks_low=0.0, **found, **words
    )  # fmt: skip


def scored(
    nats: float, name: str = "mask_sinks", model: str = "m", causal: bool = False, mass: float = 0.3, **words: Any
) -> LikelihoodChange:
    """A row on the likelihood of true answers: one key per head masked."""
    says = {"name": name, "k": 1, "rank": "clean", "rows": "all", **words}
    return LikelihoodChange(
        model, says, f"{name} {words}", 20, 400, "nats per token", -1.0 + nats, -1.1 + nats, -0.9 + nats, nats, nats - 0.02,
        nats + 0.02, 0.1, 0.02, mass, 0.0, "answers", causal,
    )  # fmt: skip


def around(value: float, width: float = 0.1) -> Interval:
    return Interval(value, value - width, value + width)
