"""`sinkscope table1`: the paper's Table 1 on real checkpoints and benchmarks, with controls and intervals."""

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
    ExamplesOption,
    JsonFlag,
    ModelsOption,
    ProtocolOption,
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
    ShardOption,
    WorkersOption,
    tell_shard,
    workers_from,
)
from sinkscope.cli.screen import output, print_json, printable, progress
from sinkscope.errors import TaskError


def register(app: typer.Typer) -> None:
    app.command()(table1)


def table1(
    models: ModelsOption = None,
    more: Annotated[list[str] | None, typer.Argument(help="Further models after --models.", hidden=True)] = None,
    tasks: TaskOption = None,
    ks: Annotated[str, typer.Option(help="How many sinks are masked, with commas between.")] = "1,5,10",
    condition: Annotated[
        list[str] | None,
        typer.Option(help="A further intervention, such as attenuate:k=5 or mask_positions:positions=[0,1]; repeated."),
    ] = None,
    protocol: ProtocolOption = None,
    examples: ExamplesOption = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Commit all that is surer than 0.9, if that agrees with the protocol's decoding."),
    ] = False,
    fast_problems: Annotated[int, typer.Option(help="Unmasked problems on which --fast must agree.", min=1)] = 200,
    sequential: Annotated[
        float | None,
        typer.Option(help="Stop a comparison once it is inside or outside this margin, in points.", min=0.1, max=50),
    ] = None,
    round_size: Annotated[int, typer.Option("--round", help="Problems between two looks of --sequential.", min=1)] = 50,
    problems: Annotated[
        int | None, typer.Option("--problems", "-n", help="Only so many problems per task.", min=1)
    ] = None,
    fewshot: Annotated[
        int | None, typer.Option("--fewshot", help="Examples before each problem.", min=0, max=1000)
    ] = None,
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.")] = None,
    traced: Annotated[int, typer.Option(help="Problems per task that are traced too.", min=0)] = 3,
    data: DataFolder = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder; one that is begun goes on.")] = Path(
        "runs/table1"
    ),
    batch_size: BatchSize = 8,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="Seed of problems and random keys.", min=0, max=MOST)] = 0,
    dtype: Dtype = None,
    device: Device = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
    shard: ShardOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the paper's Table 1: GSM8K and HumanEval with the sinks masked, and with random keys masked instead.

    Every request is kept as soon as it is answered: the same command goes on after a break.
    """
    from sinkscope.evals.masking import parse_condition
    from sinkscope.evals.model_table import Stopping
    from sinkscope.evals.table1 import table1 as run
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.shards import Shard
    from sinkscope.study.table1_runs import run_shard

    names = listed([*(models or []), *(more or [])], "models", "tiny-llada")
    if names is None:
        raise TaskError("Expected models for table1, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    chosen = workers_from(engine, address, workers, gpus_per_worker, cpus_per_worker)
    further = [parse_condition(text) for text in condition or []]
    words: dict[str, Any] = {
        "tasks": listed(tasks, "tasks", "gsm8k"), "ks": counts(ks), "conditions": further, "protocol": protocol,
        "data": data, "examples": examples, "limit": problems, "fewshot": fewshot, "chat": chat,
        "settings": settings_of(settings), "batch_size": batch_size, "traced": traced, "problems": problems or 100,
        "seed": seed, "dtype": dtype, "device": device,
    }  # fmt: skip
    early = {
        "fast": fast_problems if fast else None,
        "sequential": None if sequential is None else Stopping(sequential, round_size),
    }
    with unit_progress(progress(), "answers") as shown:
        here = {"engine": chosen, "on_message": shown.on_message, "on_progress": shown.on_progress}
        if shard is None:
            found = run(names, out, **words, **early, **here)
        else:
            run_shard(names, out, Shard.parse(shard), words, **early, **here)
    if shard is not None:
        tell_shard(out, shard, as_json)
    elif as_json:
        print_json(found)
    else:
        output().print(printable((out / "table1.md").read_text(encoding="utf-8")), markup=False, soft_wrap=True)
