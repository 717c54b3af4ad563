"""What a study will take: units, time by a short timing of each model, memory and disk by stated rules."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sinkscope.interventions.conditions import Condition
from sinkscope.settings.decode import Decode
from sinkscope.study.engines.local import Local, cores
from sinkscope.study.plan import ModelInfo, Unit, units_of
from sinkscope.study.progress import clock
from sinkscope.study.run import models_of
from sinkscope.study.schema import Study
from sinkscope.study.store import need_a_model

TIMED = 2  # forwards of a diffusion model, tokens of an autoregressive one, that are timed
ROW = 400  # bytes of a stored answer, beside 8 a token
START = 6.0  # seconds until a worker is ready


@dataclass(frozen=True)
class Estimate:
    """Time in seconds on the wall clock, memory and disk in bytes."""

    units: int
    kinds: dict[str, int]
    workers: int
    seconds: float
    memory: int
    disk: int
    models: dict[str, float]  # seconds of computing, by model
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        lines = [
            f"# {self.units} units ({kinds}), {self.workers} workers",
            f"# about {clock(self.seconds)} (h:mm:ss or m:ss), {self.memory / 2**20:,.0f} MB of memory, "
            f"{self.disk / 2**20:,.1f} MB on disk",
            *(f"# {name}: about {clock(seconds)} of computing" for name, seconds in self.models.items()),
            *(f"# {line}" for line in self.left_out),
        ]
        return "\n".join(lines)


def estimate(study: Study, workers: int | None = None) -> Estimate:
    """Load and time every model; nothing is written."""
    messages: list[str] = []
    facts = models_of(study, Local(1), Path("."), messages.append)
    need_a_model(facts, messages)
    units = units_of(study, facts)
    count = min(workers or cores(), max(len(units), 1))
    seconds: dict[str, float] = {}
    for fact in facts:
        mine = [unit for unit in units if unit.model == fact.asked]
        seconds[fact.name] = _model_seconds(study, fact, mine)
    kinds = {kind: sum(unit.kind == kind for unit in units) for kind in dict.fromkeys(unit.kind for unit in units)}
    weights = max(
        int(fact.identity["parameters"]) * (4 if fact.identity["dtype"] == "float32" else 2) for fact in facts
    )
    answers = sum(unit.last - unit.first for unit in units if unit.kind == "answers")
    length = max(int(settings["length"]) for fact in facts for settings in fact.settings.values())
    kept = sum(min(study.trace.keep, unit.last) for unit in units if unit.kind == "trace" and unit.chunk == 0)
    disk = answers * (ROW + 8 * length) * 2 + kept * max(_trace_bytes(fact) for fact in facts)
    return Estimate(
        len(units), kinds, count, START + sum(seconds.values()) / count, count * (weights + (400 << 20)), disk, seconds,
        tuple(messages),
    )  # fmt: skip


def _trace_bytes(fact: ModelInfo) -> int:
    settings = next(iter(fact.settings.values()))
    steps = int(settings["steps"] or settings["length"])
    return steps * int(fact.identity["layers"]) * int(fact.identity["heads"]) * 3 * (int(settings["length"]) + 48) * 2


def _model_seconds(study: Study, fact: ModelInfo, units: list[Unit]) -> float:
    """Seconds of computing for a model's units, from the time of a few forwards of one chunk under a mask."""
    from sinkscope.decoding import decode
    from sinkscope.interventions import MaskSinks, intervene
    from sinkscope.study.units.given import asked, batch_of, model_of, one_thread

    settings = Decode.from_dict(dict(next(iter(fact.settings.values()))))
    model = model_of(fact.asked, study.dtype, study.device)
    first = Unit(
        "answers",
        fact.asked,
        Condition("none"),
        task=study.tasks[0].name,
        last=min(study.chunk, study.tasks[0].problems),
    )
    prompts = [problem.prompt for _, problem in asked(study, first)]
    if fact.likelihood:
        prompts = prompts[:1]
    short = _short(settings)
    with one_thread():
        ids, mask = batch_of(model, prompts)
        best = float("inf")
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            with intervene(model, MaskSinks(k=1)):
                done = decode(model, ids, short, attention_mask=mask, history=False)
            best = min(best, (time.perf_counter() - started) / done.forwards / len(prompts))
    total = 0.0
    for unit in units:
        forwards = int(unit.decode.get("steps") or unit.decode.get("length") or study.likelihood.scored)
        runs = 3 if unit.kind == "mechanism" else 1
        total += best * forwards * (unit.last - unit.first) * runs
    return total


def _short(settings: Decode) -> Decode:
    """Settings that make few forwards over the same canvas."""
    if settings.family == "autoregressive":
        return replace(settings, length=TIMED)
    return replace(settings, block=None, steps=TIMED) if settings.steps is not None else settings
