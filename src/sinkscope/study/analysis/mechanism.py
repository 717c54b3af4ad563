"""What the two halves of the positions say: is confidence lost, and the commit late, where a token looked at the sinks?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkscope.statistics import bootstrap
from sinkscope.study.analysis.answers import Loaded
from sinkscope.study.analysis.rows import Interval
from sinkscope.study.analysis.rows_traced import Mechanism
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit


def mechanisms(study: Study, units: Sequence[Unit], load: Loaded) -> list[Mechanism]:
    """Confidence and commit delay in the half of the positions that depended more on the masked keys, and in the other."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    units_of: dict[str, str] = {}
    for unit in units:
        if unit.kind == "mechanism":
            units_of[unit.shown] = "nats" if unit.decode.get("confidence") == "entropy" else "points"
            rows = [row for row in load(unit)["rows"] if row["positions"] >= 2]
            found.setdefault((unit.shown, unit.condition.k), []).extend(rows)
    made = []
    for (model, k), rows in found.items():
        entry: dict[str, Any] = {"model": model, "k": k, "problems": len(rows), "unit": units_of[model]}
        if rows:
            for name in [name for name in rows[0] if name.startswith(("dependence", "confidence", "delay"))]:
                entry[name] = float(np.mean([row[name] for row in rows]))
            for what in ("confidence", "delay"):
                sinks, random = (
                    np.array([row[f"{what}_{keys}_high"] - row[f"{what}_{keys}_low"] for row in rows])
                    for keys in ("sinks", "random")
                )
                entry[f"{what}_sinks_gap"] = _mean(study, sinks)
                entry[f"{what}_random_gap"] = _mean(study, random)
                entry[f"{what}_gap_beyond_random"] = _mean(study, sinks - random)  # problem by problem
            if free := [row for row in rows if "free_delay_sinks" in row]:
                entry |= {"free_problems": len(free), **_free(study, free)}
        made.append(Mechanism(**entry))
    return made


def _free(study: Study, rows: Sequence[dict[str, Any]]) -> dict[str, Interval]:
    """Delays where the number of commits per step is free: of all positions, between the halves, and of the last one."""
    of = {name: np.array([row[name] for row in rows]) for name in rows[0] if name.startswith("free")}
    gaps = [of[f"free_delay_{keys}_high"] - of[f"free_delay_{keys}_low"] for keys in ("sinks", "random")]
    return {
        "free_delay_sinks": _mean(study, of["free_delay_sinks"]),
        "free_delay_random": _mean(study, of["free_delay_random"]),
        "free_delay_beyond_random": _mean(study, of["free_delay_sinks"] - of["free_delay_random"]),
        "free_delay_sinks_gap": _mean(study, gaps[0]),
        "free_delay_gap_beyond_random": _mean(study, gaps[0] - gaps[1]),
        "free_steps_sinks": _mean(study, of["free_steps_sinks"]),
        "free_steps_beyond_random": _mean(study, of["free_steps_sinks"] - of["free_steps_random"]),
    }


def _mean(study: Study, values: npt.NDArray[np.float64]) -> Interval:
    low, high = bootstrap(values.tolist(), study.draws, study.seed)
    return Interval(float(values.mean()), low, high)
