"""`sinkscope eval` and `sinkscope table1`: benchmarks through lm-evaluation-harness, as the model is or under an intervention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from sinkscope.cli import options
from sinkscope.cli.app import command
from sinkscope.cli.options import counts, listed, refuse
from sinkscope.cli.screen import output, print_json, print_result, table_of, tell_shard
from sinkscope.errors import TaskError


@command(name="eval")
def evaluate_model(
    model: Annotated[str, Option("--model", "-m", help="Zoo name, folder, GGUF file or Hub id.")],
    mask_sinks: Annotated[int | None, Option(help="Mask this many sinks per head.", min=0)] = None,
    condition: Annotated[
        str | None, Option(help="Any intervention of study files, such as mask_sinks:k=5,rank=as_run; values are YAML.")
    ] = None,
    show_prompt: Annotated[bool, Option("--show-prompt", help="Print the first prompt of each task; no run.")] = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder for finished requests; rerun to resume.")] = None,
    repeats: Annotated[int, Option(help="Answers per problem, for pass@k.", min=1)] = 1,
    pass_at: Annotated[str, Option(help="Which pass@k, with commas between.")] = "1",
    samples: Annotated[int, Option(help="Masked samples per likelihood.", min=1)] = 128,
    base: options.Base = None,
    as_json: options.JsonFlag = False,
    *,
    given: options.BenchmarkOptions,
) -> None:
    """Score a model on GSM8K, HumanEval or our own problems (gsm8k, humaneval, sinkscope_arithmetic, …).

    The options of lm-evaluation-harness work too: --tasks, --limit, --num_fewshot, --batch_size, --output_path.
    """
    from sinkscope.evals.evaluation import Choices, evaluate, shown_prompts
    from sinkscope.evals.masking import decode_words, parse_condition
    from sinkscope.io.progress import unit_progress

    names = listed(given.tasks, "at least one task", "gsm8k")
    if names is None:
        raise TaskError("Expected at least one task, such as --task gsm8k, got none.")
    asked = {**given.asked(), "repeats": repeats, "pass_at": counts(pass_at), "samples": samples}
    if show_prompt:
        refuse(TaskError, "with --show-prompt, which runs nothing", out=out, condition=condition)
        prompts = shown_prompts(model, Choices(tuple(names), **asked))
        print_result(as_json, prompts, "\n".join(map(_as_text, prompts)))
        return
    more = given.run()
    if condition is not None:
        refuse(TaskError, "with --condition", mask_sinks=mask_sinks)
    elif mask_sinks:
        condition = f"mask_sinks:k={mask_sinks}"
    change = None if condition is None else parse_condition(condition)
    if change is not None:
        asked["settings"] = {**(asked["settings"] or {}), **decode_words(change)} or None
    asked_model: Any = model
    if base is not None:
        from sinkscope.models.load import load

        asked_model = load(model, dtype=given.dtype, device=given.device, base=base)
    with unit_progress("answers") as shown:
        found = evaluate(asked_model, names, intervention=change, out=out, **asked, **more, **shown.callbacks)
    if as_json:
        print_json(found)
        return
    rows = []
    for name, task in found["tasks"].items():
        for metric, score in task["scores"].items():
            interval = "–" if score.get("low") is None else f"{score['low']:.3f} … {score['high']:.3f}"
            rows.append({"task": name, "metric": metric, "score": score["value"], "95 %": interval, "n": task["n"]})
    output().print(table_of(rows))


def _as_text(found: dict[str, Any]) -> str:
    """A prompt as the model gets it, or turn by turn where there is no tokenizer; and what comes behind it."""
    turns = [f"[{turn['role'] or 'text'}]\n{turn['content']}" for turn in found["turns"]]
    lines = [f"== {found['task']}: {found['how']}", "\n".join(turns) if found["text"] is None else found["text"]]
    lines += [f"-- settings: {found['settings']}", f"-- stop strings: {found['stops']}"]
    lines += [f"-- {one['score']:g} % without masking, by {one['by']}" for one in found["published"]]
    return "\n".join([*lines, ""])


@command()
def table1(
    models: options.ModelsOption = None,
    more: options.MoreModels = None,
    ks: Annotated[str, Option(help="How many sinks are masked, with commas between.")] = "1,5,10",
    condition: Annotated[
        list[str] | None, Option(help="A further intervention, such as mask_positions:positions=[0,1]; repeated.")
    ] = None,
    fast: Annotated[
        bool, Option("--fast", help="Commit all tokens of confidence above 0.9, if that agrees with the protocol.")
    ] = False,
    fast_problems: Annotated[int, Option(help="Unmasked problems on which --fast must agree.", min=1)] = 200,
    sequential: Annotated[
        float | None, Option(help="Stop once a comparison is inside or outside this margin, in points.")
    ] = None,
    round_size: Annotated[int, Option("--round", help="Problems between two looks of --sequential.", min=1)] = 50,
    traced: Annotated[int, Option(help="Problems per task that are traced too.", min=0)] = 3,
    out: Annotated[Path, Option("--out", "-o", help="Run folder; an existing run is resumed.")] = Path("runs/table1"),
    shard: options.ShardOption = None,
    as_json: options.JsonFlag = False,
    *,
    given: options.BenchmarkOptions,
) -> None:
    """Run the paper's Table 1: GSM8K and HumanEval with the sinks masked, and with random keys masked instead.

    Every answer is stored at once: rerun the command to resume.
    """
    from sinkscope.evals.masking import parse_condition
    from sinkscope.evals.table1 import Stopping
    from sinkscope.evals.table1 import table1 as run
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.shards import Shard, run_table1_shard

    names = listed([*(models or []), *(more or [])], "models", "tiny-llada")
    if names is None:
        raise TaskError("Expected models for table1, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    # What is asked, which shards must have in common; and what is about this process.
    words: dict[str, Any] = {
        "tasks": listed(given.tasks, "tasks", "gsm8k"), "ks": counts(ks), "traced": traced, **given.asked(),
        "conditions": [parse_condition(text) for text in condition or []], **given.run(),
    }  # fmt: skip
    here: dict[str, Any] = {"engine": words.pop("engine"), "fast": fast_problems if fast else None}
    here["sequential"] = None if sequential is None else Stopping(sequential, round_size)
    with unit_progress("answers") as shown:
        here |= shown.callbacks
        if shard is None:
            found = run(names, out, **words, **here)
        else:
            run_table1_shard(names, out, Shard.parse(shard), words, **here)
    if shard is not None:
        tell_shard(out, shard, as_json)
    else:
        print_result(as_json, found, (out / "table1.md").read_text(encoding="utf-8"))
