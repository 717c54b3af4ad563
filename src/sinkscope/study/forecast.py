"""What a study will take: `forecast` for any machine, from config.json files alone; `estimate` for this one, with its models."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import StudyError
from sinkscope.io.progress import clock
from sinkscope.models.base import Model
from sinkscope.models.load import _dtype
from sinkscope.models.outline import outline
from sinkscope.study.cost import CORE, Size, device_of, total_seconds, workload
from sinkscope.study.engines.local import Local, cores
from sinkscope.study.entries import name_and_mode
from sinkscope.study.run import models_of, shown_names
from sinkscope.study.schema import Study
from sinkscope.study.store import need_a_model
from sinkscope.study.unit import ModelInfo
from sinkscope.study.units import Workload, units_of
from sinkscope.study.units.facts import model_info
from sinkscope.study.units.given import model_of, one_thread
from sinkscope.study.units.trace import kept_traces

RUNTIME = 450e6  # bytes that Python, torch and transformers take in a worker on a CPU
CONTEXT = 800e6  # bytes that CUDA and its kernels take on a GPU
DISK = 1e9  # bytes per second at which weights are read
SIGNS = 3.5  # characters per token, where no tokenizer is at hand
ROW, TOKEN = 800, 16  # bytes of a stored answer: once as JSON and once in the table
WORKER_START = 6.0  # seconds until a worker is ready
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SLOW = 1.0  # seconds of a forward that is not timed twice
Seconds = Callable[[Workload], float]  # of one forward


@dataclass(frozen=True)
class ModelForecast:
    """One model of the study. Bytes are of one worker, seconds are of one worker that does all of its units."""

    model: str
    family: str
    parameters: int
    dtype: str
    units: int
    forwards: int
    flops: float
    weights: int
    activations: int
    trace: int
    seconds: float
    longest: float  # seconds of the longest unit
    plain: float | None = None  # seconds of the same forwards without traces and masks; None where they are timed
    on_host: bool = False  # the trace is not in the device's memory

    @property
    def memory(self) -> int:
        return self.weights + self.activations + (0 if self.on_host else self.trace)


@dataclass(frozen=True)
class Forecast:
    """The whole study. Everything in it is an estimate."""

    study: str
    device: str
    measured: bool
    models: tuple[ModelForecast, ...]
    runtime: int  # bytes of a worker beside its model
    disk: int
    hours: dict[int, float]  # by number of workers
    fits: bool | None  # whether the largest worker fits the device; None for a CPU

    def to_dict(self) -> dict[str, Any]:
        models = [{**asdict(model), "memory": model.memory} for model in self.models]
        return {**asdict(self), "models": models, "estimate": True}


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


def forecast(study: Study, device: str = "cpu", measure: bool = False) -> Forecast:
    """Nothing is loaded, nothing is run. device: cpu, or a GPU of the table.

    measure: time one and two layers of each model on this CPU, instead of assuming what a core can do.
    """
    chosen = device_of(device)
    on_cpu = chosen is CORE
    if measure and not on_cpu:
        raise StudyError(f"--measure times this CPU, and the plan is for {chosen.name}; leave one of them out.")
    wanted = _dtype(study.dtype, "cpu" if on_cpu else None) if on_cpu or study.dtype else torch.bfloat16
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.bfloat16
    found: list[tuple[ModelForecast, int]] = []
    for name, short in shown_names([*study.models, *study.likelihood_models]).items():
        model = _outline(name, dtype=dtype)
        size = Size.of(model)
        info = model_info(study, model, name, {"name": short, "parameters": size.parameters})
        one: Seconds = functools.partial(chosen.seconds, size, itemsize=dtype.itemsize)
        if measure:
            one = timed({layers: _outline(name, layers, "cpu", dtype) for layers in (1, 2)}, size)
        made, disk = _of_model(study, info, model, dtype, one, on_cpu)
        if not measure:
            plain = functools.partial(chosen.seconds, size, itemsize=dtype.itemsize, mode="plain")
            made = replace(made, plain=_of_model(study, info, model, dtype, plain, on_cpu)[0].seconds)
        found.append((made, disk))
    models = tuple(model for model, _ in found)
    runtime = int(RUNTIME if on_cpu else CONTEXT)
    # Work divided evenly, never less than the longest unit; every worker loads its share of the models.
    total, longest = sum(model.seconds for model in models), max(model.longest for model in models)
    loads = sum(model.weights for model in models) / DISK
    hours = {
        count: (max(total / count, longest) + max(loads / min(count, len(models)), 1.0)) / 3600
        for count in WORKERS
        if count <= sum(model.units for model in models)
    }
    return Forecast(
        study.name, chosen.name, measure, models, runtime, sum(disk for _, disk in found),
        hours,
        None if on_cpu else max(model.memory for model in models) + runtime <= chosen.memory,
    )  # fmt: skip


def _outline(label: str, *more: Any, **words: Any) -> Model:
    name, mode = name_and_mode(label)
    model = outline(name, *more, **words)
    return model if mode is None else model.in_mode(mode)


def estimate(study: Study, workers: int | None = None) -> Estimate:
    """Load and time every model; nothing is written."""
    messages: list[str] = []
    infos = models_of(study, Local(1), Path("."), messages.append)
    need_a_model(infos, messages)
    units = units_of(study, infos)
    count = min(workers or cores(), max(len(units), 1))
    found: list[tuple[ModelForecast, int]] = []
    for info in infos:
        model = model_of(info.asked, study.dtype, study.device)
        size = Size.of(model)
        found.append(_of_model(study, info, model, model.dtype, timed({size.layers: model}, size)))
    seconds = {model.model: model.seconds for model, _ in found}
    kinds = {kind: sum(unit.kind == kind for unit in units) for kind in dict.fromkeys(unit.kind for unit in units)}
    memory = count * int(max(model.memory for model, _ in found) + RUNTIME)
    spent = WORKER_START + sum(seconds.values()) / count
    disk = sum(disk for _, disk in found)
    return Estimate(len(units), kinds, count, spent, memory, disk, seconds, tuple(messages))


def _of_model(
    study: Study, info: ModelInfo, model: Model, dtype: torch.dtype, one: Seconds, on_cpu: bool = True
) -> tuple[ModelForecast, int]:
    """A model's part of the study, and the bytes that it leaves on the disk."""
    size, prompt, units = Size.of(model), _prompt(study, model), units_of(study, [info])
    work = {unit.id: workload(study, unit, info, prompt) for unit in units}
    parts = [part for mine in work.values() for part in mine]
    spent = [total_seconds(mine, one) for mine in work.values()]
    traces = [unit for unit in units if unit.kind == "trace"]
    trace = max((size.trace_bytes(unit.decoder.most_steps, prompt + unit.decoder.length) for unit in traces), default=0)
    disk = sum(kept_traces(study, unit) for unit in traces) * trace
    disk += sum(
        (unit.last - unit.first) * (ROW + TOKEN * unit.decoder.length) for unit in units if unit.kind == "answers"
    )
    made = ModelForecast(
        info.name, model.family, size.parameters, str(dtype).removeprefix("torch."), len(units),
        sum(part.forwards for part in parts), sum(size.flops(part) * part.forwards for part in parts),
        size.parameters * dtype.itemsize,
        max((size.activation_bytes(part, dtype.itemsize, on_cpu) for part in parts), default=0), trace,
        sum(spent), max(spent, default=0.0), on_host=not on_cpu,
    )  # fmt: skip
    return made, disk


def _prompt(study: Study, model: Model) -> int:
    """Tokens of a prompt, by the tokenizer or by its length."""
    from sinkscope.tasks import problems

    found = []
    for task in study.tasks:
        for problem in problems(task.name, n=5, split=study.split, seed=study.seed, difficulty=task.difficulty):
            text = problem.prompt
            found.append(model.encode(text).shape[1] if model.tokenizer is not None else round(len(text) / SIGNS) + 20)
    return max(found, default=32)


def timed(parts: Mapping[int, Model], size: Size) -> Seconds:
    """Seconds of a forward, timed with one thread: of the whole model, or from models of one and of two layers.

    parts: by their number of layers. CPU time is counted, so that a busy machine does not count against the plan.
    """
    from transformers import DynamicCache

    from sinkscope.interventions import MaskSinks, intervene

    model = parts[min(parts)]

    def body(layers: int, rows: int, positions: int, before: int) -> float:
        part = parts[layers]
        ids = torch.arange(rows * (before + positions), device=part.device).reshape(rows, -1)
        ids = ids.remainder(min(part.vocabulary, 100))
        module: Any = part.module.base_model
        words = part.direction()
        with one_thread(), torch.inference_mode(), intervene(part, MaskSinks(k=1)):
            if not before:
                return _least(lambda: module(ids, use_cache=False, **words)[0])
            cached = DynamicCache(config=part.config)  # what a causal model has read is not computed again
            module(ids[:, :before], past_key_values=cached, use_cache=True, **words)
            return _least(lambda: module(ids[:, before:], past_key_values=cached, use_cache=True, **words)[0])

    @functools.cache
    def layers(rows: int, positions: int, before: int) -> float:
        found = {count: body(count, rows, positions, before) for count in parts}
        if len(found) == 1:
            return found[size.layers]
        return max(found[2] - found[1], 0.0) * size.layers + max(2 * found[1] - found[2], 0.0)

    @functools.cache
    def head(positions: int) -> float:
        hidden = torch.zeros(positions, size.width, dtype=model.dtype, device=model.device)
        with one_thread(), torch.inference_mode():
            return _least(lambda: torch.softmax(model.recipe.head(model.module, hidden).float(), -1).amax(-1))

    def seconds(work: Workload) -> float:
        before = work.keys - work.positions if model.causal else 0
        return layers(work.rows, work.positions, before) + head(work.rows * work.logits)

    return seconds


def _least(call: Callable[[], torch.Tensor]) -> float:
    """Seconds, the least of three: the first one warms up. A GPU is waited for, on the wall clock."""
    found: list[float] = []
    while len(found) < 3 and max(found, default=0.0) < SLOW:
        cpu, wall = time.thread_time(), time.perf_counter()
        made = call()
        if made.device.type == "cpu":
            found.append(time.thread_time() - cpu)
        else:
            made.flatten()[:1].cpu()
            found.append(time.perf_counter() - wall)
    return min(found)
