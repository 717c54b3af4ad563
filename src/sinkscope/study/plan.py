"""What a study, Table 1 among them, takes on a machine, from config.json files alone; nothing is loaded, nothing is run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sinkscope.decoding.cost import CORE, Size, device_of, total_seconds
from sinkscope.errors import CheckpointError, TaskError
from sinkscope.models.load import LoadOptions, load_config_only
from sinkscope.models.model import Model
from sinkscope.study.run import need_a_model, shown_names
from sinkscope.study.schema import Study, TaskPlan, name_and_mode
from sinkscope.study.units import ModelInfo, kind_of, units_of
from sinkscope.study.units.trace import kept_traces
from sinkscope.study.units.worker import model_info
from sinkscope.tasks.protocol import OTHERWISE, benchmark_of, protocol_for, settings_for

DISK = 1e9  # bytes per second at which weights are read
SIGNS = 3.5  # characters per token, where there is no tokenizer
ROW, TOKEN = 800, 16  # bytes of a stored answer: once as JSON and once in the table
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PROBLEMS = {"gsm8k": 1319, "humaneval": 164}
# Mean tokens by LLaDA's tokenizer (60 a question, 188 a worked example, 146 a stub), and some 20 of the chat's markers.
QUESTION, EXAMPLE = {"gsm8k": 80, "humaneval": 166}, 208
AGAIN = {"humaneval_instruct": 146}  # the answer begins with the stub
OWN_EXAMPLES = {"gsm8k": 5, "gsm8k_cot": 8, "gsm8k_cot_llama": 8}


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
    plain: float  # seconds of the same forwards without traces and masks
    on_host: bool  # the trace is not in the device's memory
    memory: int  # weights, activations, and the trace where it is in the device's memory


@dataclass(frozen=True)
class Forecast:
    """The whole study; everything in it is an estimate."""

    study: str
    device: str
    models: tuple[ModelForecast, ...]
    kinds: dict[str, int]  # units by kind
    left_out: tuple[str, ...]  # why a model that is an extra is not among them
    runtime: int  # bytes of a worker beside its model
    fits: bool | None  # whether the largest worker fits the device; None for a CPU
    disk: int
    hours: dict[int, float]  # by number of workers
    estimate: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def forecast(study: Study, device: str = "cpu") -> Forecast:
    """device: cpu, or a GPU of the table."""
    chosen = device_of(device)
    study = _with_sizes(study)
    on_cpu = chosen is CORE
    wanted = LoadOptions(dtype=study.dtype).resolved_dtype if on_cpu or study.dtype else torch.bfloat16
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.bfloat16
    found: list[ModelForecast] = []
    kinds, left_out = Counter[str](), list[str]()
    for name, short in shown_names([*study.models, *study.extra_models]).items():
        try:
            folder, mode = name_and_mode(name)
            model = load_config_only(folder, dtype=dtype)
        except CheckpointError as error:  # an extra that is not installed is skipped, as when the study runs
            if name in study.models:
                raise
            left_out.append(str(error))
            continue
        model = model if mode is None else model.in_mode(mode)
        size = Size.of(model)
        info = _with_protocols(
            study, model, model_info(study, model, name, {"name": short, "parameters": size.parameters})
        )
        prompts = {task.name: _prompt_tokens(study, model, task, info) for task in study.tasks}
        longest_prompt = max(prompts.values(), default=32)
        units = units_of(study, [info])
        kinds.update(unit.kind for unit in units)
        work = [kind_of(unit).workload(study, unit, info, prompts.get(unit.task, longest_prompt)) for unit in units]
        parts = [part for mine in work for part in mine]
        one = functools.partial(chosen.seconds, size, itemsize=dtype.itemsize)
        spent = [total_seconds(mine, one) for mine in work]
        traces = [unit for unit in units if unit.kind == "trace"]
        longest = [(unit.decoder.most_steps, prompts[unit.task] + unit.decoder.length) for unit in traces]
        trace = max((size.trace_bytes(steps, canvas) for steps, canvas in longest), default=0)
        disk = sum(kept_traces(study, unit) for unit in traces) * trace
        answers = [unit for unit in units if unit.kind == "answers"]
        disk += sum((unit.last - unit.first) * (ROW + TOKEN * unit.decoder.length) for unit in answers)
        weights = size.parameters * dtype.itemsize
        activations = max((size.activation_bytes(part, dtype.itemsize, on_cpu) for part in parts), default=0)
        found.append(ModelForecast(
            short, model.family.name, size.parameters, str(dtype).removeprefix("torch."), len(units),
            sum(part.forwards for part in parts), sum(size.flops(part) * part.forwards for part in parts),
            weights, activations, trace, disk, sum(spent), longest=max(spent, default=0.0),
            plain=total_seconds(parts, functools.partial(one, mode="plain")),
            on_host=not on_cpu, memory=weights + activations + (trace if on_cpu else 0),
        ))  # fmt: skip
    need_a_model(len(found), left_out)
    runtime = int(chosen.runtime)
    largest = max(model.memory for model in found) + runtime
    return Forecast(
        study.name, chosen.name, tuple(found), dict(kinds), tuple(left_out), runtime,
        fits=None if on_cpu else largest <= chosen.memory,
        disk=sum(model.disk for model in found),
        hours={count: _hours(found, count) for count in WORKERS if count <= kinds.total()},
    )  # fmt: skip


def _hours(models: Sequence[ModelForecast], workers: int) -> float:
    """Work divided evenly, never less than the longest unit; every worker loads its share of the models."""
    total, longest = sum(model.seconds for model in models), max(model.longest for model in models)
    loads = sum(model.weights for model in models) / DISK
    return (max(total / workers, longest) + max(loads / min(workers, len(models)), 1.0)) / 3600


def here(study: Study) -> Forecast:
    """On this machine: its CPU, or its GPU where the study asks for one."""
    on_gpu = study.device not in (None, "cpu") and torch.cuda.is_available()
    return forecast(study, torch.cuda.get_device_name() if on_gpu else "cpu")


def _with_sizes(study: Study) -> Study:
    """Benchmarks with the number of their problems; their data need not be here."""

    def size(task: TaskPlan) -> TaskPlan:
        most = PROBLEMS[benchmark_of(task.name) or ""]
        return replace(task, problems=min(task.problems or most, most))

    return replace(study, tasks=tuple(size(task) if task.is_benchmark else task for task in study.tasks))


def _with_protocols(study: Study, model: Model, info: ModelInfo) -> ModelInfo:
    """The model with the decode settings of its protocols."""
    found: dict[str, dict[str, Any]] = {}
    for task in study.tasks:
        benchmark = benchmark_of(task.name)
        if benchmark is not None and task.is_benchmark:
            protocol = protocol_for(model.name, task.protocol)
            if protocol.setup(benchmark, model.name, model.family.name) is None:
                raise TaskError(
                    f"The protocol {protocol.name} does not say how {model.name} is asked {task.name}; choose {OTHERWISE}."
                )
            settings = settings_for(model, benchmark, protocol=protocol).to_dict()
            found[task.name] = {label: {**settings, **study.decode} for label in info.settings}
    return replace(info, protocols=found)


def _prompt_tokens(study: Study, model: Model, task: TaskPlan, info: ModelInfo) -> int:
    """Tokens of a prompt, by the tokenizer or by its length; of a benchmark by its mean."""
    from sinkscope.tasks import problems
    from sinkscope.tasks.problem import read_prompts

    benchmark = benchmark_of(task.name)
    if benchmark is not None and task.is_benchmark:
        setup = protocol_for(model.name, task.protocol).setup(benchmark, model.name, model.family.name)
        assert setup is not None
        shots = OWN_EXAMPLES.get(setup.task, 0) if setup.examples is None else setup.examples
        length = max(int(settings["length"]) for settings in info.protocols[task.name].values())
        return min(QUESTION[benchmark] + AGAIN.get(setup.task, 0) + shots * EXAMPLE, model.context - length)
    sizes = []
    own = None if task.prompts is None else read_prompts(task.prompts)
    for problem in own or problems(task.name, n=5, split=study.split, seed=study.seed, difficulty=task.difficulty):
        text = problem.prompt
        sizes.append(model.encode(text).shape[1] if model.tokenizer is not None else round(len(text) / SIGNS) + 20)
    return max(sizes)
