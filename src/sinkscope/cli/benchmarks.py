"""`sinkscope eval` and `sinkscope table1`: benchmarks through lm-evaluation-harness, as the model is or under an intervention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sinkscope.cli import options
from sinkscope.cli.app import MEASURE, command
from sinkscope.cli.options import counts, listed, refuse, settings_of
from sinkscope.cli.screen import output, print_json, print_result, table_of, tell_shard
from sinkscope.errors import TaskError

if TYPE_CHECKING:
    from polars import DataFrame

    from sinkscope.study.schema import Study


@command(MEASURE, "sinkscope eval -m tiny-llada -t sinkscope_arithmetic", "eval")
def evaluate_model(
    model: Annotated[str, Option("--model", "-m", help="Bundled name, folder, GGUF file or Hub id.")],
    mask_sinks: Annotated[int | None, Option(help="Mask this many sinks per head.", min=0)] = None,
    condition: Annotated[
        str | None,
        Option(help="An intervention of study files: mask_sinks:k=5 or attenuate:k=1 (values are YAML)."),
    ] = None,
    show_prompt: Annotated[bool, Option("--show-prompt", help="Print the first prompt of each task; no run.")] = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder for finished batches; rerun to resume.")] = None,
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
    from sinkscope.conditions import NONE, Condition
    from sinkscope.progress import unit_progress
    from sinkscope.study.table1 import evaluate, evaluate_with_harness, first_prompts
    from sinkscope.tasks.benchmarks import is_foreign

    names = listed(given.tasks, "at least one task", "gsm8k")
    if names is None:
        raise TaskError("Expected at least one task, such as --task gsm8k, got none.")
    if show_prompt:
        refuse(TaskError, "with --show-prompt, which runs nothing", out=out, condition=condition)
        prompts = first_prompts(model, names, **given.asked())
        print_result(as_json, prompts, "\n".join(map(_as_text, prompts)))
        return
    if condition is not None:
        refuse(TaskError, "with --condition", mask_sinks=mask_sinks)
    elif mask_sinks:
        condition = f"mask_sinks:k={mask_sinks}"
    change = NONE if condition is None else Condition.parse(condition)
    asked_model: Any = model
    if base is not None:
        from sinkscope.models.load import load

        asked_model = load(model, dtype=given.dtype, device=given.device, base=base)
    if all(map(is_foreign, names)):
        useless = {"protocol": given.protocol, "data": given.data, "examples": given.examples, "out": out}
        refuse(TaskError, f"with {names[0]}, which the harness runs itself", **useless)
        words = {"batch_size": given.batch_size, "seed": given.seed, "dtype": given.dtype, "device": given.device}
        found = evaluate_with_harness(
            asked_model,
            names,
            change,
            limit=given.problems,
            samples=samples,
            settings=settings_of(given.settings),
            **words,
        )
    else:
        with unit_progress("batches") as shown:
            found = evaluate(
                asked_model, names, change, out=out, engine=given.engine_of_benchmarks(), workers=given.own_workers(),
                pass_at=counts(pass_at), repeats=repeats, **given.asked(), **shown.callbacks,
            )  # fmt: skip
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


@command(MEASURE, "sinkscope table1 --models tiny-llama,tiny-llada -n 4")
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
    prompts: options.PromptsOption = None,
    out: Annotated[Path, Option("--out", "-o", help="Run folder; an existing run is resumed.")] = Path("runs/table1"),
    shard: options.ShardOption = None,
    as_json: options.JsonFlag = False,
    *,
    given: options.BenchmarkOptions,
) -> None:
    """Run the paper's Table 1: GSM8K and HumanEval with the sinks masked, and with random keys masked instead.

    Scores are printed as soon as the answers are there; all is stored as it comes: rerun the command to resume.
    """
    from sinkscope.conditions import Condition
    from sinkscope.progress import unit_progress
    from sinkscope.report.writing import write
    from sinkscope.study.run import run
    from sinkscope.study.schema import SequentialPlan
    from sinkscope.study.shards import Shard, run_shard
    from sinkscope.study.table1 import check_fast, table1_study

    names = listed([*(models or []), *(more or [])], "models", "tiny-llada")
    if names is None:
        raise TaskError("Expected models for table1, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    if shard is not None and (fast or sequential is not None):
        raise TaskError("Shards of a table cannot look at each other's answers: leave --fast and --sequential out.")
    rounds = None if sequential is None else SequentialPlan(sequential, round_size)
    study = table1_study(
        names, tasks=listed(given.tasks, "tasks", "gsm8k"), ks=counts(ks), traced=traced, sequential=rounds,
        conditions=[Condition.parse(text) for text in condition or []], prompts=prompts, **given.asked(),
    )  # fmt: skip
    engine, workers = given.engine_of_benchmarks(), given.own_workers()
    with unit_progress("batches") as shown:
        if shard is not None:
            run_shard(study, Shard.parse(shard), out, engine=engine, workers=workers, **shown.callbacks)
            tell_shard(out, shard, as_json)
            return
        if fast:

            def answer(one: Study, name: str) -> DataFrame:
                return run(one, out / "fast-check" / name, engine, workers, **shown.callbacks).answers()

            study = check_fast(study, fast_problems, answer, shown.on_message)
        done = run(study, out, engine, workers, **shown.callbacks)
    page = write(done.folder)
    written = out / "table1.md"
    table = written.read_text(encoding="utf-8") if written.exists() else done.summary()
    print_result(as_json, done.results, f"{table}\nResults: {out / 'results.json'}\nReport:  {page}")
