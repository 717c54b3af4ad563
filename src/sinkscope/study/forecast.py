"""What a study or Table 1 takes on a machine, from config.json files alone; nothing but a layer is run."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sinkscope.errors import CheckpointError, StudyError, TaskError
from sinkscope.evals.masking import grid
from sinkscope.evals.protocol import OTHERWISE, Protocol, checkpoint_of, protocol_for, settings_for
from sinkscope.io.progress import clock
from sinkscope.models.base import Model
from sinkscope.models.load import _dtype, outline
from sinkscope.study.cost import CORE, Device, Size, device_of, total_seconds
from sinkscope.study.entries import name_and_mode
from sinkscope.study.run import shown_names
from sinkscope.study.schema import Study
from sinkscope.study.store import need_a_model
from sinkscope.study.text import aligned
from sinkscope.study.units import ModelInfo, Workload, decoding, kind_of, units_of
from sinkscope.study.units.facts import model_info
from sinkscope.study.units.given import one_thread
from sinkscope.study.units.trace import kept_traces

RUNTIME = 450e6  # bytes that Python, torch and transformers take in a worker on a CPU
CONTEXT = 800e6  # bytes that CUDA and its kernels take on a GPU
DISK = 1e9  # bytes per second at which weights are read
SIGNS = 3.5  # characters per token, where no tokenizer is at hand
ROW, TOKEN = 800, 16  # bytes of a stored answer: once as JSON and once in the table
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SLOW = 1.0  # seconds of a forward that is not timed twice
Seconds = Callable[[Workload], float]  # of one forward


@dataclass(frozen=True)
class ModelForecast:
    """One model of the study; bytes are of one worker, seconds are of one worker that does all of its units."""

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
    disk: int  # bytes of its answers and traces
    seconds: float
    longest: float  # seconds of the longest unit
    plain: float | None  # seconds of the same forwards without traces and masks; None where they are timed
    on_host: bool  # the trace is not in the device's memory

    @property
    def memory(self) -> int:
        return self.weights + self.activations + (0 if self.on_host else self.trace)


@dataclass(frozen=True)
class Forecast:
    """The whole study; everything in it is an estimate."""

    study: str
    device: str
    measured: bool
    models: tuple[ModelForecast, ...]
    kinds: dict[str, int]  # units by kind
    left_out: tuple[str, ...]  # why a model that is an extra is not among them
    runtime: int  # bytes of a worker beside its model
    fits: bool | None  # whether the largest worker fits the device; None for a CPU

    @property
    def disk(self) -> int:
        return sum(model.disk for model in self.models)

    @property
    def memory(self) -> int:
        """Bytes of the largest worker."""
        return max(model.memory for model in self.models) + self.runtime

    @property
    def hours(self) -> dict[int, float]:
        """By number of workers."""
        units = sum(self.kinds.values())
        return {count: self.seconds(count) / 3600 for count in WORKERS if count <= units}

    def seconds(self, workers: int) -> float:
        """Work divided evenly, never less than the longest unit; every worker loads its share of the models."""
        total, longest = sum(model.seconds for model in self.models), max(model.longest for model in self.models)
        loads = sum(model.weights for model in self.models) / DISK
        return max(total / workers, longest) + max(loads / min(workers, len(self.models)), 1.0)

    def to_dict(self) -> dict[str, Any]:
        models = [{**asdict(model), "memory": model.memory} for model in self.models]
        more = {"disk": self.disk, "hours": self.hours, "estimate": True}
        return {**asdict(self), "models": models, **more}

    def brief(self, workers: int) -> str:
        """As comments behind the plan of a study."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        lines = [
            f"{sum(self.kinds.values())} units ({kinds}), {workers} workers on {self.device}",
            f"about {clock(self.seconds(workers))} (h:mm:ss or m:ss), {workers * self.memory / 2**20:,.0f} MB of memory, "
            f"{self.disk / 2**20:,.1f} MB on disk",
            *(f"{model.model}: about {clock(model.seconds)} of computing" for model in self.models),
            *(f"left out: {why}" for why in self.left_out),
        ]
        return "\n".join(f"# {line}" for line in lines)


def forecast(study: Study, device: str = "cpu", measure: bool = False) -> Forecast:
    """device: cpu, or a GPU of the table.

    measure: time one and two layers of each model on this CPU, instead of assuming what a core can do.
    """
    chosen = device_of(device)
    on_cpu = chosen is CORE
    if measure and not on_cpu:
        raise StudyError(f"--measure times this CPU, and the plan is for {chosen.name}; leave one of them out.")
    wanted = _dtype(study.dtype, "cpu" if on_cpu else None) if on_cpu or study.dtype else torch.bfloat16
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.bfloat16
    found: list[ModelForecast] = []
    kinds, left_out = Counter[str](), list[str]()
    for name, short in shown_names([*study.models, *study.likelihood_models]).items():
        try:
            model = _outline(name, dtype=dtype)
        except CheckpointError as error:  # an extra that is not installed is skipped, as when the study runs
            if name in study.models:
                raise
            left_out.append(str(error))
            continue
        size = Size.of(model)
        info = model_info(study, model, name, {"name": short, "parameters": size.parameters})
        kinds.update(unit.kind for unit in units_of(study, [info]))
        one: Seconds = functools.partial(chosen.seconds, size, itemsize=dtype.itemsize)
        plain: Seconds | None = functools.partial(chosen.seconds, size, itemsize=dtype.itemsize, mode="plain")
        if measure:
            one, plain = timed({layers: _outline(name, layers, "cpu", dtype) for layers in (1, 2)}, size), None
        found.append(_of_model(study, info, model, dtype, one, plain, on_cpu))
    need_a_model(found, left_out)
    made = Forecast(
        study.name, chosen.name, measure, tuple(found), dict(kinds), tuple(left_out),
        runtime=int(RUNTIME if on_cpu else CONTEXT), fits=None,
    )  # fmt: skip
    return made if on_cpu else replace(made, fits=made.memory <= chosen.memory)


def here(study: Study) -> Forecast:
    """On this machine: timed on its CPU, or by the data sheet of its GPU where the study asks for one."""
    on_gpu = study.device not in (None, "cpu") and torch.cuda.is_available()
    return forecast(study, torch.cuda.get_device_name()) if on_gpu else forecast(study, measure=True)


def _outline(label: str, *more: Any, **words: Any) -> Model:
    name, mode = name_and_mode(label)
    model = outline(name, *more, **words)
    return model if mode is None else model.in_mode(mode)


def _of_model(
    study: Study, info: ModelInfo, model: Model, dtype: torch.dtype, one: Seconds, plain: Seconds | None, on_cpu: bool
) -> ModelForecast:
    """A model's part of the study; one, plain: seconds of a forward with traces and masks, and without."""
    size, prompt, units = Size.of(model), _prompt(study, model), units_of(study, [info])
    work = [kind_of(unit).workload(study, unit, info, prompt) for unit in units]
    parts = [part for mine in work for part in mine]
    spent = [total_seconds(mine, one) for mine in work]
    traces = [unit for unit in units if unit.kind == "trace"]
    trace = max((size.trace_bytes(unit.decoder.most_steps, prompt + unit.decoder.length) for unit in traces), default=0)
    answers = [unit for unit in units if unit.kind == "answers"]
    disk = sum(kept_traces(study, unit) for unit in traces) * trace
    disk += sum((unit.last - unit.first) * (ROW + TOKEN * unit.decoder.length) for unit in answers)
    return ModelForecast(
        info.name, model.family, size.parameters, str(dtype).removeprefix("torch."), len(units),
        forwards=sum(part.forwards for part in parts), flops=sum(size.flops(part) * part.forwards for part in parts),
        weights=size.parameters * dtype.itemsize,
        activations=max((size.activation_bytes(part, dtype.itemsize, on_cpu) for part in parts), default=0),
        trace=trace, disk=disk, seconds=sum(spent), longest=max(spent, default=0.0),
        plain=total_seconds(parts, plain) if plain else None, on_host=not on_cpu,
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


def timed(parts: Mapping[int, Model], size: Size) -> Seconds:
    """Seconds of a forward, timed with one thread, from models of one and of two layers.

    parts: by their number of layers. CPU time is counted, so that a busy machine does not count against the plan.
    """
    from transformers import DynamicCache

    from sinkscope.interventions import MaskSinks, intervene

    model = parts[1]

    def body(layers: int, rows: int, positions: int, before: int) -> float:
        part = parts[layers]
        ids = torch.arange(rows * (before + positions)).reshape(rows, -1)
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
        first, both = (body(count, rows, positions, before) for count in (1, 2))
        return max(both - first, 0.0) * size.layers + max(2 * first - both, 0.0)

    @functools.cache
    def head(positions: int) -> float:
        hidden = torch.zeros(positions, size.width, dtype=model.dtype)
        with one_thread(), torch.inference_mode():
            return _least(lambda: torch.softmax(model.recipe.head(model.module, hidden).float(), -1).amax(-1))

    def seconds(work: Workload) -> float:
        before = work.keys - work.positions if model.causal else 0
        return layers(work.rows, work.positions, before) + head(work.rows * work.logits)

    return seconds


def _least(call: Callable[[], torch.Tensor]) -> float:
    """Seconds, the least of three: the first one warms up."""
    found: list[float] = []
    while len(found) < 3 and max(found, default=0.0) < SLOW:
        before = time.thread_time()
        call()
        found.append(time.thread_time() - before)
    return min(found)


# ---- Table 1

PROBLEMS = {"gsm8k": 1319, "humaneval": 164}
# Mean tokens by LLaDA's tokenizer (60 a question, 188 a worked example, 146 a stub), and some 20 of the chat's markers.
QUESTION, EXAMPLE = {"gsm8k": 80, "humaneval": 166}, 208
AGAIN = {"humaneval_instruct": 146}  # the answer begins with the stub
OWN_EXAMPLES = {"gsm8k": 5, "gsm8k_cot": 8, "gsm8k_cot_llama": 8}
FASTER = 2.5  # by a threshold of 0.9 without a cache, as Fast-dLLM reports it for LLaDA


@dataclass(frozen=True)
class Table1Forecast:
    """One benchmark of one model; seconds are of one condition on one worker; an ARM's are at most that."""

    model: str
    protocol: str
    task: str
    problems: int
    prompt: int
    length: int
    forwards: int
    conditions: int
    seconds: float
    memory: int
    fits: bool | None


def forecast_table1(
    models: Sequence[str],
    device: str = "cpu",
    *,
    protocol: str | None = None,
    ks: Sequence[int] = (1, 5, 10),
    limit: int | None = None,
    batch_size: int = 8,
    dtype: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Table1Forecast]:
    """Every benchmark of every model under its protocol; nothing is loaded, nothing is run."""
    place = device_of(device)
    kind = getattr(torch, dtype) if dtype else torch.float32 if place is CORE else torch.bfloat16
    found: list[Table1Forecast] = []
    for name in models:
        model = outline(name, dtype=kind)
        chosen = protocol_for(name, protocol)
        own = [_row(model, name, chosen, task, place, kind, ks, limit, batch_size, settings)
               for task in chosen.benchmarks(checkpoint_of(name), model.family)]  # fmt: skip
        if not own:
            raise TaskError(
                f"The protocol {chosen.name} does not say how {name} is asked; choose --protocol {OTHERWISE}."
            )
        found += own
    return found


def _row(
    model: Model, name: str, protocol: Protocol, task: str, place: Device, dtype: torch.dtype, ks: Sequence[int],
    limit: int | None, batch_size: int, settings: Mapping[str, Any] | None,
) -> Table1Forecast:  # fmt: skip
    setup = protocol.setup(task, checkpoint_of(name), model.family)
    assert setup is not None
    shots = OWN_EXAMPLES.get(setup.task, 0) if setup.examples is None else setup.examples
    used = settings_for(model, task, settings, None, protocol)
    prompt = min(QUESTION[task] + AGAIN.get(setup.task, 0) + shots * EXAMPLE, model.context - used.length)
    size, problems = Size.of(model), min(limit or PROBLEMS[task], PROBLEMS[task])
    rows = min(batch_size, problems)
    batch, batches = decoding(used, rows, prompt), -(-problems // rows)
    seconds = batches * total_seconds(batch, lambda part: place.seconds(size, part, dtype.itemsize))
    memory = size.parameters * dtype.itemsize + int(RUNTIME if place is CORE else CONTEXT)
    memory += max(size.activation_bytes(part, dtype.itemsize, place is CORE) for part in batch)
    count = len(grid(model.causal, ks)) + (used.temperature > 0)
    return Table1Forecast(
        name, protocol.name, task, problems, prompt, used.length, batches * sum(part.forwards for part in batch), count,
        seconds, memory, None if place is CORE else memory < place.memory,
    )  # fmt: skip


def table1_text(rows: Sequence[Table1Forecast], device: str) -> str:
    """The plan in lines of 80 columns."""
    lines = [("protocol, task", "problems", "tokens", "h/condition", "conditions", "hours")]
    for row in rows:
        fits = {None: "", True: ", fits one", False: ", does NOT fit one"}[row.fits]
        head = f"{row.model}: {max(one.memory for one in rows if one.model == row.model) / 1e9:.1f} GB{fits}"
        if (head, *[""] * 5) not in lines:
            lines.append((head, "", "", "", "", ""))
        hours = row.seconds / 3600
        counts = (f"{row.problems}", f"{row.prompt}+{row.length}", f"{hours:.3g}", f"{row.conditions}")
        lines.append((f"  {row.protocol}, {row.task}", *counts, f"{hours * row.conditions:.3g}"))
    return "\n".join([
        f"Plan of Table 1 on {device} (an estimate: assumed rates, nothing was timed)", "", *aligned(lines, 0), "",
        f"In all {table1_dict(rows)['hours']:.3g} hours of one worker; divide by the number of workers.",
        f"--fast: about {FASTER:g} times less for diffusion models (as Fast-dLLM reports it, not timed here).",
        "--sequential 5: less again where a comparison is clear.",
    ])  # fmt: skip


def table1_dict(rows: Sequence[Table1Forecast]) -> dict[str, Any]:
    hours = sum(row.seconds * row.conditions for row in rows) / 3600
    return {"rows": [asdict(row) for row in rows], "hours": hours, "estimate": True}
