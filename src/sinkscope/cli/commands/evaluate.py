"""`sinkscope eval`: benchmarks through lm-evaluation-harness, with the model as it is or under an intervention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli.options import (
    MOST,
    Base,
    BatchSize,
    DataFolder,
    Device,
    Dtype,
    ExamplesOption,
    JsonFlag,
    ProtocolOption,
    Settings,
    TaskOption,
    counts,
    listed,
    refuse_together,
    settings_of,
)
from sinkscope.cli.scale import (
    AddressOption,
    CpusOption,
    EngineOption,
    GpusOption,
    WorkersOption,
    workers_from,
)
from sinkscope.cli.screen import output, print_json, printable, progress
from sinkscope.errors import TaskError


def register(app: typer.Typer) -> None:
    app.command(name="eval")(evaluate_model)


def evaluate_model(
    model: Annotated[str, typer.Option("--model", "-m", help="Zoo name, folder, GGUF file or Hub id.")],
    tasks: TaskOption = None,
    mask_sinks: Annotated[int | None, typer.Option(help="Mask this many sinks per head.")] = None,
    mask_random: Annotated[int | None, typer.Option(help="Mask this many random keys per head instead.")] = None,
    rank: Annotated[str | None, typer.Option(help="Which map ranks the sinks: clean (default) or as_run")] = None,
    condition: Annotated[
        str | None,
        typer.Option(help="Any intervention of study files, such as mask_sinks:k=5,rank=as_run; values are YAML."),
    ] = None,
    protocol: ProtocolOption = None,
    examples: ExamplesOption = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first problem as the model gets it; run nothing.")
    ] = False,
    data: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for finished requests; rerun to resume."),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option("--problems", "-n", help="Only so many problems per task.", min=1),
    ] = None,
    fewshot: Annotated[
        int | None,
        typer.Option("--fewshot", "-f", help="Examples before each problem.", min=0, max=1000),
    ] = None,
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.")] = None,
    batch_size: BatchSize = 8,
    repeats: Annotated[int, typer.Option(help="Answers per problem, for pass@k.", min=1)] = 1,
    pass_at: Annotated[str, typer.Option(help="Which pass@k, with commas between.")] = "1",
    samples: Annotated[int, typer.Option(help="Masked samples per likelihood.", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.", min=0, max=MOST)] = 0,
    dtype: Dtype = None,
    device: Device = None,
    base: Base = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
    settings: Settings = None,
    as_json: JsonFlag = False,
) -> None:
    """Score a model on GSM8K, HumanEval or our own problems (gsm8k, humaneval, sinkscope_arithmetic, …).

    The options of lm-evaluation-harness work too: --tasks, --limit, --num_fewshot, --batch_size, --output_path.
    """
    from sinkscope.evals.asked import Choices
    from sinkscope.evals.evaluation import evaluate, shown_prompts
    from sinkscope.evals.masking import decode_words, made_of_words, parse_condition
    from sinkscope.io.progress import unit_progress

    names = listed(tasks, "at least one task", "gsm8k")
    if names is None:
        raise TaskError("Expected at least one task, such as --task gsm8k, got none.")
    words = settings_of(settings)
    if show_prompt:
        refuse_together(TaskError, "with --show-prompt, which runs nothing", {"--out": out, "--condition": condition})
        asked = Choices(
            tuple(names), protocol, words, data, examples, fewshot, chat, repeats=repeats, pass_at=counts(pass_at),
            problems=problems or 100, seed=seed,
        )  # fmt: skip
        prompts = shown_prompts(model, asked)
        if as_json:
            print_json(prompts)
        else:
            output().print(printable("\n".join(map(_as_text, prompts))), markup=False, soft_wrap=True)
        return
    chosen = workers_from(engine, address, workers, gpus_per_worker, cpus_per_worker)
    change = made_of_words(mask_sinks, mask_random, rank)
    if condition is not None:
        refuse_together(TaskError, "with --condition", {"--mask-sinks": mask_sinks, "--mask-random": mask_random})
        named = parse_condition(condition)
        change, words = named.intervention(seed), {**(words or {}), **decode_words(named)} or None
    asked_model: Any = model
    if base is not None:
        from sinkscope.models.load import load

        asked_model = load(model, dtype=dtype, device=device, base=base)
    with unit_progress(progress(), "answers") as shown:
        found = evaluate(
            asked_model, names, intervention=change, protocol=protocol, settings=words, data=data, examples=examples, out=out,
            limit=problems, fewshot=fewshot, chat=chat, batch_size=batch_size, repeats=repeats, pass_at=counts(pass_at),
            samples=samples, problems=problems or 100, seed=seed, dtype=dtype, device=device, engine=chosen,
            on_message=shown.on_message, on_progress=shown.on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        _print(found)


def _as_text(found: dict[str, Any]) -> str:
    """A prompt as the model gets it, or turn by turn where there is no tokenizer; and what comes behind it."""
    turns = [f"[{turn['role'] or 'text'}]\n{turn['content']}" for turn in found["turns"]]
    lines = [f"== {found['task']}: {found['how']}", found["text"] if found["text"] is not None else "\n".join(turns)]
    lines += [f"-- settings: {found['settings']}", f"-- stop strings: {found['stops']}"]
    return "\n".join(
        [*lines, *(f"-- {one['score']:g} % without masking, by {one['by']}" for one in found["published"]), ""]
    )


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title, side in (("task", "left"), ("metric", "left"), ("score", "right"), ("95 %", "left"), ("n", "right")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for name, task in found["tasks"].items():
        for metric, score in task["scores"].items():
            interval = "–" if score.get("low") is None else f"{score['low']:.3f} … {score['high']:.3f}"
            shown = Text(printable(name)), Text(printable(metric))
            table.add_row(*shown, f"{score['value']:.3f}", interval, str(task["n"]))
    output().print(table)
