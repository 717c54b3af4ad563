"""`sinkscope eval`: benchmarks through lm-evaluation-harness, with the model as it is or under an intervention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli.options import (
    MOST,
    BatchSize,
    DataFolder,
    Device,
    Dtype,
    JsonFlag,
    Settings,
    TaskOption,
    counts,
    listed,
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
from sinkscope.cli.screen import output, print_json, printable, say
from sinkscope.errors import TaskError


def register(app: typer.Typer) -> None:
    app.command(name="eval")(evaluate_model)


def evaluate_model(
    model: Annotated[str, typer.Option("--model", "-m", help="Zoo name, folder, GGUF file or Hub id.")],
    tasks: TaskOption = None,
    mask_sinks: Annotated[int | None, typer.Option(help="Mask this many sinks per head.")] = None,
    mask_random: Annotated[int | None, typer.Option(help="Mask this many random keys per head instead.")] = None,
    rank: Annotated[str | None, typer.Option(help="Which map ranks the sinks: clean (default) or as_run")] = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for finished requests; run again to go on."),
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
    from sinkscope.evals.masking import made_of_words
    from sinkscope.evals.evaluation import evaluate

    names = listed(tasks, "at least one task", "gsm8k")
    if names is None:
        raise TaskError("Expected at least one task, such as --task gsm8k, got none.")
    chosen = workers_from(engine, address, workers, gpus_per_worker, cpus_per_worker)
    found = evaluate(
        model, names, intervention=made_of_words(mask_sinks, mask_random, rank), settings=settings_of(settings),
        data=data, out=out, limit=problems, fewshot=fewshot, chat=chat, batch_size=batch_size, repeats=repeats,
        pass_at=counts(pass_at), samples=samples, problems=problems or 100, seed=seed, dtype=dtype, device=device,
        engine=chosen, on_message=say,
    )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        _print(found)


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
