"""The paper's Table 1 as a study: benchmarks as protocols ask them, sinks masked by both rankings, random keys instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.conditions import NONE, Condition
from sinkscope.errors import TaskError
from sinkscope.models.load import load_config_only
from sinkscope.models.model import Model
from sinkscope.results.accuracy import removed_shares
from sinkscope.statistics import paired, wilson
from sinkscope.study.engine import Engine, Ray
from sinkscope.study.problem_sets import ProblemSets, load_outline
from sinkscope.study.run import OnMessage, OnProgress, Work, open_run
from sinkscope.study.schema import SequentialPlan, Study, prompts_entry
from sinkscope.study.units.worker import in_memory
from sinkscope.tasks import KINDS, TASKS
from sinkscope.tasks.benchmarks import GSM8K, HUMANEVAL, is_benchmark, pass_at_k
from sinkscope.tasks.protocol import OTHERWISE, protocol_for
from sinkscope.validation import suggest

SUITE, PREFIX = "sinkscope", "sinkscope_"  # all of our own tasks, and one of them, as the harness's users name them
OWN_SIZE = 100  # problems of a task of ours, unless given
FAST = {"commit": "threshold", "threshold": 0.9, "confidence": "probability", "steps": None, "cache": None}
FAST_TOLERANCE = 0.05  # fast and slow decoding agree if their accuracies differ by less, with 95 % confidence
Answer = Callable[[Study, str], pl.DataFrame]  # runs a study into a folder of that name: its answers
# The first key of an autoregressive model is masked in two ways, which do not do the same: after the prefill, as in the
# paper, where the prompt was read with the sink in place, and from the first row on, where no state was built on it.
SINCE = ("second", "first")


# ---- the study


def table1_study(
    models: Sequence[str | Model],
    *,
    tasks: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    conditions: Sequence[Condition] = (),
    sequential: SequentialPlan | None = None,
    traced: int = 3,
    prompts: Path | str | None = None,
    **choices: Any,
) -> Study:
    """Models × tasks × {none, k sinks by clean and as-run ranking, k random keys, further conditions}.

    tasks: by default the benchmarks of the protocol; under `harness` gsm8k, and humaneval_instruct where a chat template
    is used, humaneval where none is. traced: problems per task that are traced, and along whose unmasked path the logits of
    every condition are compared. prompts: a file of JSON lines, asked instead of the benchmarks, or beside the tasks that
    are named. choices: those of `benchmark_words`.
    """
    known = {
        one if isinstance(one, str) else one.name: load_config_only(one) if isinstance(one, str) else one
        for one in models
    }
    names: Sequence[str] = tasks or ()
    if not names and prompts is None:
        names = default_tasks(list(known.values()), choices.get("protocol"), choices.get("chat"))
    own = benchmark_words(names, **choices)
    if prompts is not None:
        entry = prompts_entry(prompts)
        limit = choices.get("limit")
        own["tasks"].append({**entry, "problems": min(entry["problems"], limit or entry["problems"])})
    seed = own["decode"].get("seed", 0) + 1
    # Another seed has the noise of sampling, which no paired interval over one seed contains.
    entries = [*grid(ks), {"name": "other_seed", "seed": seed}, *(one.entry() for one in conditions)]
    return Study.from_dict({
        "name": "table1",
        "about": "The paper's Table 1: benchmarks with the sinks masked, and with random keys masked instead.",
        "models": list(known), **own, "conditions": entries, "trace": {"problems": traced}, "shift": traced,
        **({} if sequential is None else {"sequential": asdict(sequential)}),
    })  # fmt: skip


def benchmark_words(
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
    batch_size: int = 8,
    repeats: int = 1,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Fields of a study: tasks as they are asked, and what is the same for all of them.

    settings: words over the decode settings of protocols and models. asked: protocol, data, examples, fewshot and chat of
    the benchmarks among the tasks.
    """
    words = {
        name: str(value) if isinstance(value, Path) else value for name, value in asked.items() if value is not None
    }
    names = study_tasks(tasks)
    if words and not any(map(is_benchmark, names)):
        raise TaskError(f"No task of {', '.join(tasks) or 'these'} uses {next(iter(words))}; leave it out.")
    count = {} if limit is None else {"problems": limit}
    entries: list[dict[str, Any]] = []
    for name in names:
        own = {**words, "repeats": repeats} if is_benchmark(name) else {"problems": OWN_SIZE}
        if name in HUMANEVAL and set(names) & set(GSM8K):  # worked examples are the other one's
            own = {word: value for word, value in own.items() if word not in ("examples", "fewshot")}
        entries.append({"name": name, **own, **count})
    return {
        "seed": seed, "chunk": batch_size, "dtype": dtype, "device": device, "tasks": entries,
        "decode": dict(settings or {}),
    }  # fmt: skip


def study_tasks(tasks: Sequence[str]) -> list[str]:
    """Task names as studies have them; refuses what is neither a benchmark nor a task of ours."""
    found: list[str] = []
    for name in tasks:
        plain = name.removeprefix(PREFIX)
        if name != SUITE and not is_benchmark(plain) and plain not in TASKS:
            known = [*GSM8K, *HUMANEVAL, SUITE, *TASKS, *map(PREFIX.__add__, KINDS)]
            raise TaskError(
                f"Expected a task of ours or of lm-evaluation-harness, got {name!r}: {suggest(name, known)}"
            )
        found += KINDS if name == SUITE else [plain]
    return list(dict.fromkeys(found))


def default_tasks(models: Sequence[Model], protocol: str | None, chat: bool | None) -> Sequence[str]:
    found = {tuple(_default_tasks(model, protocol, chat)) for model in models}
    if len(found) != 1:
        raise TaskError("Expected models that are asked the same benchmarks, got several kinds; name them with --task.")
    return found.pop()


def _default_tasks(model: Model, protocol: str | None, chat: bool | None) -> Sequence[str]:
    chosen = protocol_for(model.name, protocol)
    if chosen.name != OTHERWISE:
        return sorted({setup.benchmark for setup in chosen.setups})
    chatty = model.chat_template is not None if chat is None else chat
    return "gsm8k", "humaneval_instruct" if chatty else "humaneval"


SINK = {"rule": "head_share", "epsilon": 0.3}
# Strong sinks, another special token of the prompt in the same heads, and the same attention removed from every query.
STRONG_SINKS: tuple[dict[str, Any], ...] = (
    {"name": "mask_sinks", "k": 1, "above": SINK},
    {"name": "mask_random", "k": 1, "kinds": "structural", "among": "prompt", "persist": True, "aligned": True, "above": SINK},
    {"name": "attenuate", "of": "sinks", "matched": ["sinks", "others"], "above": SINK, "by": 1.0},
    {"name": "attenuate", "of": "others", "matched": ["sinks", "others"], "above": SINK, "by": 1.0},
)  # fmt: skip


def grid(ks: Sequence[int]) -> list[dict[str, Any]]:
    """Nothing, strong sinks with their controls, then for each k sinks by both rankings and random keys, as study entries.

    An autoregressive model is ranked by its last row, as in the paper, and by all rows. The last row also ranks content
    keys, so that position 0 alone stands beside them.
    """
    found: list[dict[str, Any]] = [{"name": "none"}, *(STRONG_SINKS if ks else ())]
    found += [{"name": "mask_positions", "positions": [0], "since": since, "for": "causal"} for since in SINCE]
    for k in ks:
        if k < 1:
            raise TaskError(f"Expected numbers of sinks of at least 1 (0 is always run), got {k}.")
        for rows, kind in (("last", "causal"), ("all", "all")):
            for rank in ("clean", "as_run"):
                found.append({"name": "mask_sinks", "k": k, "rank": rank, "rows": rows, "for": kind})
            found.append({"name": "mask_random", "k": k, "rank": "clean", "rows": rows, "for": kind})
    return found


def check_fast(study: Study, count: int, answer: Answer, message: Callable[[str], object]) -> Study:
    """The same study decoded fast, after that agreed with its own decoding on so many unmasked problems."""
    message(f"fast decoding against the protocol's on {count} problems")
    plain = study.changed(problems=count, conditions=["none"], trace={"problems": 0}, shift=0)
    slow = answer(plain, "as-protocol")
    fast = answer(with_words(plain, FAST), "fast")
    for (model, task), before in slow.group_by("model", "task", maintain_order=True):
        after = fast.filter(pl.col("model") == model, pl.col("task") == task).sort("problem")
        pair = paired(before.sort("problem")["correct"].to_list(), after["correct"].to_list())
        if not -FAST_TOLERANCE < pair.difference_low <= pair.difference_high < FAST_TOLERANCE:
            low, middle, high = (100 * one for one in (pair.difference_low, pair.difference, pair.difference_high))
            raise TaskError(
                f"Fast decoding does not agree with the protocol's on {len(before)} problems of {task} ({model}): accuracy "
                f"differs by {middle:+.1f} points ({low:+.1f} to {high:+.1f}), and less than {100 * FAST_TOLERANCE:g} are "
                "wanted; leave --fast out, or check more problems."
            )
    message("fast decoding agrees, all conditions are decoded with threshold 0.9")
    return with_words(study, FAST)


def with_words(study: Study, words: Mapping[str, Any]) -> Study:
    """The study with further decode words."""
    return Study.from_dict({**study.to_dict(), "decode": {**study.decode, **words}})


# ---- one model through benchmarks and our own tasks


def eval_study(model: str, tasks: Sequence[str], condition: Condition = NONE, **choices: Any) -> Study:
    """One model under one condition. choices: those of `benchmark_words`."""
    entries = [{"name": "none"}] + ([] if condition == NONE else [condition.entry()])
    words = benchmark_words(tasks, **choices)
    return Study.from_dict({"name": "eval", "models": [model], **words, "conditions": entries})


def evaluate(
    model: str | Model,
    tasks: Sequence[str],
    condition: Condition = NONE,
    *,
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = 1,
    pass_at: Sequence[int] = (1,),
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Score a model; with `out`, a killed run is resumed, and its score is the same. choices: those of `eval_study`."""
    repeats = choices.get("repeats", 1)
    if max(pass_at) > repeats:
        raise TaskError(
            f"pass@{max(pass_at)} needs at least {max(pass_at)} answers per problem, got {repeats}; raise repeats."
        )
    name = model if isinstance(model, str) else model.name
    study = eval_study(name, tasks, condition, **choices)
    condition = study.conditions[-1]  # with every default filled in
    with ExitStack() as stack:
        stack.enter_context(in_memory({} if isinstance(model, str) else {name: model}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else Path(out)
        work = stack.enter_context(open_run(study, folder, engine, workers, on_message, on_progress))
        work.run_units([unit for unit in work.units if unit.condition == condition])
        return summarise(work, condition, pass_at)


def summarise(work: Work, condition: Condition, pass_at: Sequence[int]) -> dict[str, Any]:
    """Each task with its problems, right answers, accuracy, interval, and what was removed."""
    (info,) = work.models
    found: dict[str, Any] = {}
    for task in work.study.tasks:
        chunks = [
            work.store.load(unit) for unit in work.units if unit.task == task.name and unit.condition == condition
        ]
        rows = sorted((row for chunk in chunks for row in chunk["rows"]), key=lambda row: int(row["problem"]))
        right = [bool(row["correct"]) for row in rows]
        low, high = wilson(sum(right), len(right))
        scores: dict[str, Any] = {
            "accuracy": {
                "value": sum(right) / len(right),
                "correct": sum(right),
                "low": low,
                "high": high,
                "right": right,
            }
        }
        for k in pass_at if (task.repeats or 1) > 1 else ():
            values = [pass_at_k(len(row["verdicts"]), sum(row["verdicts"]), k) for row in rows]
            scores[f"pass@{k}"] = {"value": sum(values) / len(values)}
        effect = removed_shares(chunk["effect"] for chunk in chunks)
        found[task.name] = {"n": len(rows), "scores": scores, **effect, **info.benchmarks.get(task.name, {})}
    return {
        "schema": 2, "model": dict(info.identity), "condition": condition.to_dict(), "tasks": found,
        "settings": {task.name: dict(info.settings_of(task.name, "")) for task in work.study.tasks},
        "run": work.about,
    }  # fmt: skip


def first_prompts(model: str, tasks: Sequence[str], **choices: Any) -> list[dict[str, Any]]:
    """The first problem of every benchmark as the model would get it, with settings and stop strings; no weights are loaded.

    text is None where the checkpoint has no tokenizer here: then the turns are all that can be shown.
    """
    study = eval_study(model, tasks, **choices)
    sets = ProblemSets(study)
    sets.outlines[model] = load_outline(model, need_tokenizer=False)
    found = []
    for task in study.tasks:
        if not task.is_benchmark:
            raise TaskError(f"Expected benchmarks with --show-prompt, got {task.name}; see sk.tasks.problems for ours.")
        asked = sets.benchmark(model, task)
        found.append({
            "task": task.name, "protocol": asked.protocol.name, "how": asked.how, "turns": asked.messages(),
            "text": asked.first_text(), "settings": write_settings(asked.settings().to_dict()), "stops": asked.stops,
            "published": asked.published,
        })  # fmt: skip
    return found


def write_settings(settings: Mapping[str, Any]) -> str:
    """Every setting on one line, defaults too: what was not printed cannot be compared."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def evaluate_with_harness(
    model: str | Model, tasks: Sequence[str], condition: Condition = NONE, *, limit: int | None = None, **words: Any
) -> dict[str, Any]:
    """Any other task of lm-evaluation-harness, by its own evaluator and with its own metrics; not resumed."""
    from lm_eval.evaluator import evaluate as run_harness

    from sinkscope.tasks.benchmarks import load_harness_tasks
    from sinkscope.tasks.harness import HarnessLM

    adapter = HarnessLM(model, None if condition == NONE else condition, **words)
    found = run_harness(adapter, load_harness_tasks(tasks), limit=limit, bootstrap_iters=0)
    scores = {
        task: {
            "n": found["n-samples"][task]["effective"],
            "scores": {name: {"value": value} for name, value in values.items() if isinstance(value, float)},
        }
        for task, values in found["results"].items()
    }
    return {"schema": 2, "tasks": scores, **adapter.get_model_info()}
