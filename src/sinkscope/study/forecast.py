"""`forecast`: what a study would take on other machines, from config.json files alone: nothing is loaded, nothing is run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.errors import StudyError
from sinkscope.models.base import Model
from sinkscope.models.load import _dtype
from sinkscope.models.outline import outline
from sinkscope.settings.decode import Decode
from sinkscope.study import cost
from sinkscope.study.cost import Shape, Size
from sinkscope.study.devices import CORE, Device, device_of
from sinkscope.study.plan import units_of
from sinkscope.study.run import shown_names
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit

RUNTIME = 450e6  # bytes that Python, torch and transformers take in a worker on a CPU
CONTEXT = 800e6  # bytes that CUDA and its kernels take on a GPU
DISK = 1e9  # bytes per second at which weights are read
SIGNS = 3.5  # characters per token, where no tokenizer is at hand
ROW, TOKEN = 800, 16  # bytes of a stored answer: once as JSON and once in the table
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


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

    @property
    def memory(self) -> int:
        return self.weights + self.activations + self.trace


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


def forecast(study: Study, device: str = "cpu", measure: bool = False) -> Forecast:
    """device: cpu, or a GPU of the table. measure: time one and two layers of each model on this CPU, instead of
    assuming what a core can do."""
    gpu = device_of(device)
    if measure and gpu is not None:
        raise StudyError(f"--measure times this CPU, and the plan is for {gpu.name}; leave one of them out.")
    names = shown_names([*study.models, *study.likelihood_models])
    models = tuple(_model(study, name, short, gpu, measure) for name, short in names.items())
    kept = sum(m.trace * min(study.trace.keep, study.trace.problems) * len(study.tasks) for m in models)
    answers = sum(_answers(study, m.model) for m in models)
    length = max(int(words.get("length") or 128) for _, words in study.settings())
    largest = max(model.memory for model in models)
    runtime = int(RUNTIME if gpu is None else CONTEXT)
    total, longest = sum(model.seconds for model in models), max(model.longest for model in models)
    units = sum(model.units for model in models)
    return Forecast(
        study.name, "this CPU, one core a worker" if gpu is None else gpu.name, measure, models, runtime,
        int(kept + answers * (ROW + TOKEN * length)),
        {count: _hours(total, longest, count, models) for count in WORKERS if count <= units},
        None if gpu is None else largest + runtime < gpu.memory,
    )  # fmt: skip


def _hours(total: float, longest: float, workers: int, models: tuple[ModelForecast, ...]) -> float:
    """Work divided evenly, never less than the longest unit; every worker loads its share of the models."""
    loads = sum(model.weights for model in models) / DISK
    return (max(total / workers, longest) + max(loads / min(workers, len(models)), 1.0)) / 3600


def _answers(study: Study, name: str) -> int:
    conditions = len(study.conditions)
    return 0 if name in study.likelihood_models else conditions * sum(task.problems for task in study.tasks)


def _model(study: Study, name: str, short: str, gpu: Device | None, measure: bool) -> ModelForecast:
    from sinkscope.decoding import resolve_settings

    wanted = _dtype(study.dtype, "cpu" if gpu is None else None) if gpu is None or study.dtype else torch.bfloat16
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.bfloat16
    model = outline(name, dtype=dtype)
    likelihood = name in study.likelihood_models
    settings: dict[str, Any] = {}
    for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
        made = resolve_settings(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
        if made not in settings.values():
            settings[label] = made
    size = cost.size_of(model)
    fact = ModelInfo(name, short, model.causal, model.family, {"parameters": size.parameters}, settings, likelihood)
    units = units_of(study, [fact])
    prompt = _prompt(study, model)
    shapes = {unit.id: cost.shape_of(study, unit, prompt, model.causal) for unit in units}
    half = dtype.itemsize < 4
    timed = _timed(name, model, size, dtype) if measure else None

    def seconds(unit: Unit) -> float:
        shape = shapes[unit.id]
        if timed is not None:
            one = timed(shape)
        elif gpu is not None:
            one = gpu.seconds(cost.flops(size, shape), cost.moved(size, dtype.itemsize), size.layers, half)
        else:
            one = cost.flops(size, shape) / CORE
        return one * cost.forwards(study, unit) * cost.batches(unit)

    spent = [seconds(unit) for unit in units]
    count = {unit.id: cost.forwards(study, unit) * cost.batches(unit) for unit in units}
    canvas = prompt + max((int(point["length"]) for point in settings.values()), default=0)
    steps = max((Decode.from_dict(dict(point)).most_steps for point in settings.values()), default=0)
    return ModelForecast(
        short, model.family, size.parameters, str(dtype).removeprefix("torch."), len(units), sum(count.values()),
        sum(cost.flops(size, shapes[unit.id]) * count[unit.id] for unit in units),
        size.parameters * dtype.itemsize,
        max((cost.activation_bytes(size, shape, dtype.itemsize) for shape in shapes.values()), default=0),
        cost.trace_bytes(size, steps, canvas) if study.trace.problems else 0,
        sum(spent), max(spent, default=0.0),
    )  # fmt: skip


def _prompt(study: Study, model: Model) -> int:
    """Tokens of a prompt, by the tokenizer or by its length."""
    from sinkscope.tasks import problems

    found = []
    for task in study.tasks:
        for problem in problems(task.name, n=5, split=study.split, seed=study.seed, difficulty=task.difficulty):
            text = problem.prompt
            found.append(model.encode(text).shape[1] if model.tokenizer is not None else round(len(text) / SIGNS) + 20)
    return max(found, default=32)


def _timed(name: str, model: Model, size: Size, dtype: torch.dtype) -> Callable[[Shape], float]:
    """Seconds of a forward, from a model of one and one of two layers with random weights, on one core of this CPU.

    CPU time is counted, so that a busy machine does not count against the plan.
    """
    from transformers import DynamicCache

    from sinkscope.interventions import MaskSinks, intervene
    from sinkscope.study.units.given import one_thread

    small = {layers: outline(name, layers, "cpu", dtype) for layers in (1, 2)}
    known: dict[tuple[int, int, int], float] = {}

    def once(layers: int, rows: int, positions: int, before: int) -> float:
        ids = torch.arange(rows * (before + positions)).reshape(rows, -1).remainder(min(model.vocabulary, 100))
        body: Any = small[layers].module.model
        words = small[layers].direction()
        with one_thread(), torch.inference_mode(), intervene(small[layers], MaskSinks(k=1)):
            if not before:
                return _least(lambda: body(ids, use_cache=False, **words))
            cached = DynamicCache(config=small[layers].config)  # what a causal model has read is not computed again
            body(ids[:, :before], past_key_values=cached, use_cache=True, **words)
            return _least(lambda: body(ids[:, before:], past_key_values=cached, use_cache=True, **words))

    def seconds(shape: Shape) -> float:
        key = (shape.rows, shape.positions, shape.keys - shape.positions if model.causal else 0)
        if key not in known:
            one, two = once(1, *key), once(2, *key)
            known[key] = max(two - one, 0.0) * size.layers + max(2 * one - two, 0.0)
        return known[key] + head(shape.rows * shape.logits)

    @functools.cache
    def head(positions: int) -> float:
        hidden = torch.zeros(positions, size.width, dtype=dtype)
        with one_thread(), torch.inference_mode():
            return _least(lambda: torch.softmax(model.recipe.head(small[1].module, hidden).float(), -1).max(-1))

    return seconds


def _least(call: Callable[[], object]) -> float:
    """Seconds of CPU time, the least of three: the first one warms up."""
    found = []
    for _ in range(3):
        started = time.thread_time()
        call()
        found.append(time.thread_time() - started)
    return min(found)
