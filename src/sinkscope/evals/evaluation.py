"""`evaluate`: a model, under an intervention, through the benchmarks; scores with intervals, resumable by request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope import io
from sinkscope.errors import TaskError
from sinkscope.evals.presets import benchmark_of, in_full, settings_for
from sinkscope.sandbox import require_sandbox
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from sinkscope.evals.batches import Elsewhere, Job, RunBatches
    from sinkscope.models.base import Model

# What a task counts as right, first match first; the other numbers stand beside it in the results.
MAIN = ("exact_match,flexible-extract", "pass@1,create_test", "acc,none", "exact_match,none", "acc_norm,none")


def evaluate(
    model: str | Model,
    tasks: Sequence[str],
    *,
    intervention: Any = None,
    settings: Decode | Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    out: Path | str | None = None,
    limit: int | None = None,
    fewshot: int | None = None,
    chat: bool | None = None,
    batch_size: int = 8,
    repeats: int = 1,
    pass_at: Sequence[int] = (1,),
    samples: int = 128,
    problems: int = 100,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    engine: Elsewhere | RunBatches | None = None,
    on_message: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Score a model on harness tasks; with `out`, a killed run goes on where it was, and its score is the same.

    tasks: gsm8k (and its forms gsm8k_cot, gsm8k_cot_zeroshot, gsm8k_cot_llama), humaneval, humaneval_instruct,
    sinkscope (our suite, or sinkscope_arithmetic, …), or any task of the harness. data: folder with the benchmarks'
    JSON lines, for machines without a network. settings: a Decode, or words that change single settings of the task's
    preset. limit: the first so many problems. fewshot: examples, where the task does not fix their number. chat: the
    model's chat template (by default wherever it has one). repeats, pass_at: answers per problem, and the k of pass@k,
    for humaneval. samples: maskings in a diffusion model's likelihood. problems: size of each task of our suite.
    engine: a `Ray`, whose workers answer the requests in place of this process; the model is then a name, which this
    process loads too, on its CPU, for its tokenizer and its settings. on_message: is given one line for each thing worth
    printing.
    """
    names = [name.strip() for name in tasks if name.strip()]
    if not names:
        raise TaskError("Expected at least one task, got none; try gsm8k, humaneval or sinkscope.")
    _check_numbers(
        limit=limit, fewshot=fewshot, batch_size=batch_size, repeats=repeats, samples=samples, problems=problems
    )
    _check_used(names, data=data, repeats=repeats, pass_at=pass_at)
    folder = _folder(data)
    from sinkscope.evals.harness import HarnessLM  # checks for lm_eval before a model is loaded

    loaded = loaded_for(engine, model, dtype, device)
    message = on_message or (lambda line: None)
    templated = _templated(loaded, chat)
    if any(name.startswith("humaneval") or name in ("sinkscope", "sinkscope_programs") for name in names):
        require_sandbox()  # now, and not after hours of generating
    if templated and "humaneval" in names:
        message(
            "humaneval wants a continuation, which a chat seldom is: humaneval_instruct is meant for chat templates."
        )
    target = Path(out) if out is not None else None
    found = _quietly(
        names, data=folder, fewshot=fewshot, repeats=repeats, pass_at=pass_at, problems=problems, seed=seed
    )  # fmt: skip
    for name in found:
        message(f"{name}: {in_full(settings_for(loaded, name, settings))}")
    with workers_of(engine, device, message) as run:
        lm = HarnessLM(
            loaded, intervention, settings, batch_size=batch_size, samples=samples, seed=seed,
            store=target / "requests.jsonl" if target else None,
            elsewhere=None if run is None else (run, job_of(loaded, dtype, device, intervention)),
        )  # fmt: skip
        results = _run(lm, found, limit, templated)
    summary = summarise(results, lm.get_model_info()["sinkscope"])
    summary["options"] = {
        "limit": limit, "fewshot": fewshot, "chat": templated, "repeats": repeats, "samples": samples, "seed": seed,
        "problems": problems,
    }  # fmt: skip
    if target is not None:
        _write(target, summary, results)
    return summary


def summarise(results: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """The harness's results as ours: each task with its problems, right answers, accuracy and 95 % interval."""
    tasks: dict[str, Any] = {}
    for task, numbers in results["results"].items():
        values = {name: value for name, value in numbers.items() if isinstance(value, float) and "stderr" not in name}
        main = next((name for name in MAIN if name in values), next(iter(values), None))
        samples = results["samples"].get(task, [])
        count = len({sample["doc_id"] for sample in samples})
        tasks[task] = {
            "n": count,
            "metric": main,
            "scores": {name: _score(name, value, samples, count) for name, value in values.items()},
            "version": results["versions"].get(task),
            "metadata": _plain(results["configs"].get(task, {}).get("metadata", {})),
            "examples": results["n-shot"].get(task),
        }
    return {"schema": 1, "tasks": tasks, "sinkscope": info}


def right_answers(summary: dict[str, Any], task: str) -> list[bool]:
    """One verdict per problem, in the order of the benchmark, for paired tests; only where a score is right or wrong."""
    entry = summary["tasks"][task]
    return list(entry["scores"][entry["metric"]]["right"])


def _score(name: str, value: float, samples: list[dict[str, Any]], count: int) -> dict[str, Any]:
    metric, _, kept = name.partition(",")
    own = {sample["doc_id"]: sample[metric] for sample in samples if sample["filter"] == kept and metric in sample}
    score: dict[str, Any] = {"value": float(value)}
    if own and all(one in (0, 1) for one in own.values()):
        right = [bool(own[index]) for index in sorted(own)]
        from sinkscope.statistics import wilson

        low, high = wilson(sum(right), count)
        score |= {"correct": sum(right), "low": low, "high": high, "right": right}
    return score


def _check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        least = 0 if name == "fewshot" else 1
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
            raise TaskError(f"Expected {name} as a whole number of at least {least}, got {number!r}.")


def _check_used(names: Sequence[str], data: Path | str | None, repeats: int, pass_at: Sequence[int]) -> None:
    """Options that none of the tasks uses are refused: their results would look as if they had."""
    if not any(name.startswith("humaneval") for name in names) and (repeats != 1 or tuple(pass_at) != (1,)):
        raise TaskError(
            f"Only humaneval draws several answers per problem; leave repeats and pass_at out for {names[0]}."
        )
    if data is not None and not any(benchmark_of(name) for name in names):
        raise TaskError(f"Only gsm8k and humaneval are read from a data folder; leave it out for {names[0]}.")


def _folder(data: Path | str | None) -> Path | None:
    if data is None:
        return None
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise TaskError(f"Expected a folder with the benchmarks' JSON lines, got {data}, which is none.")
    return folder


def loaded_for(
    engine: Elsewhere | RunBatches | None, model: str | Model, dtype: str | None, device: str | None
) -> Model:
    """The model as this process needs it; with an engine that is on the CPU, whatever device its workers have."""
    from sinkscope.models.load import load

    if engine is None:
        return load(model, dtype=dtype, device=device) if isinstance(model, str) else model
    if not isinstance(model, str):
        if not hasattr(engine, "answering"):
            return model  # it was loaded for these workers
        raise TaskError(
            f"Expected the name of a model for other machines, got {model.name} as an object; name a zoo model, a folder "
            "or a Hub id."
        )
    if dtype is None and device not in (None, "cpu"):
        raise TaskError(
            f"Expected a dtype for workers on {device}, so that this process loads the same numbers; add dtype bfloat16."
        )
    return load(model, dtype=dtype)


def workers_of(
    engine: Elsewhere | RunBatches | None, device: str | None, say: Callable[[str], object]
) -> AbstractContextManager[RunBatches | None]:
    """The engine's workers for as long as the `with` lasts; those that are there already stay."""
    if engine is None or not hasattr(engine, "answering"):
        return nullcontext(engine)
    return engine.answering(device, say)


def job_of(model: Model, dtype: str | None, device: str | None, intervention: Any) -> Job:
    """What workers are told once: the model's name, and the intervention as a condition that they can make."""
    from sinkscope.evals.batches import Job, condition_of

    condition, seed = condition_of(intervention) or (None, 0)
    told = None if condition is None else condition.to_dict()
    return Job(model.name, model.fingerprint, dtype, device, told, seed)


def _templated(model: Model, chat: bool | None) -> bool:
    if chat and model.chat_template is None:
        raise TaskError(f"{model.name} has no chat template; leave chat out, or give its tokenizer one.")
    return model.chat_template is not None if chat is None else chat


def _quietly(names: Sequence[str], **options: Any) -> dict[str, Any]:
    """The tasks, without the harness's advice on options that we set ourselves."""
    from sinkscope.evals.benchmarks import load_tasks

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return load_tasks(names, **options)
    finally:
        logger.setLevel(level)


def _run(lm: Any, tasks: dict[str, Any], limit: int | None, chat: bool) -> dict[str, Any]:
    from lm_eval.evaluator import evaluate as run_harness

    results: dict[str, Any] = run_harness(
        lm, {"tasks": tasks}, limit=limit, bootstrap_iters=0, log_samples=True, apply_chat_template=chat,
        fewshot_as_multiturn=chat,
    )  # fmt: skip
    return results


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _write(folder: Path, summary: dict[str, Any], results: dict[str, Any]) -> None:
    """results.json last, under a temporary name first: when it is there, the run is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, samples in results["samples"].items():
        lines = "".join(json.dumps(sample, default=str, ensure_ascii=False) + "\n" for sample in samples)
        io.write(folder / f"samples_{task}.jsonl", lines)
    kept = {name: results[name] for name in ("results", "versions", "n-shot", "higher_is_better", "n-samples")}
    text = json.dumps({**summary, "harness": kept}, indent=1, default=str, ensure_ascii=False)
    io.write(folder / "results.json", text)
