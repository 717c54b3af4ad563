"""`sinkscope table1`: the paper's Table 1 on real checkpoints and benchmarks, with controls and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import BenchmarkOptions, command
from sinkscope.cli.options import JsonFlag, ModelsOption, ShardOption, counts, listed
from sinkscope.cli.screen import print_result, progress, tell_shard
from sinkscope.errors import TaskError


@command()
def table1(
    models: ModelsOption = None,
    more: Annotated[list[str] | None, typer.Argument(help="Further models after --models.", hidden=True)] = None,
    ks: Annotated[str, typer.Option(help="How many sinks are masked, with commas between.")] = "1,5,10",
    condition: Annotated[
        list[str] | None,
        typer.Option(help="A further intervention, such as attenuate:k=5 or mask_positions:positions=[0,1]; repeated."),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Commit all tokens of confidence above 0.9, if that agrees with the protocol's decoding."
        ),
    ] = False,
    fast_problems: Annotated[int, typer.Option(help="Unmasked problems on which --fast must agree.", min=1)] = 200,
    sequential: Annotated[
        float | None,
        typer.Option(help="Stop a comparison once it is inside or outside this margin, in points.", min=0.1, max=50),
    ] = None,
    round_size: Annotated[int, typer.Option("--round", help="Problems between two looks of --sequential.", min=1)] = 50,
    traced: Annotated[int, typer.Option(help="Problems per task that are traced too.", min=0)] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder; an existing run is resumed.")] = Path(
        "runs/table1"
    ),
    shard: ShardOption = None,
    as_json: JsonFlag = False,
    *,
    options: BenchmarkOptions,
) -> None:
    """Run the paper's Table 1: GSM8K and HumanEval with the sinks masked, and with random keys masked instead.

    Every answer is stored at once: rerun the command to resume.
    """
    from sinkscope.evals.masking import parse_condition
    from sinkscope.evals.model_table import Stopping
    from sinkscope.evals.table1 import table1 as run
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.shards import Shard, run_table1_shard

    names = listed([*(models or []), *(more or [])], "models", "tiny-llada")
    if names is None:
        raise TaskError("Expected models for table1, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    # What is asked, which shards must have in common; and what is about this process.
    words: dict[str, Any] = {
        "tasks": listed(options.tasks, "tasks", "gsm8k"), "ks": counts(ks), "traced": traced, **options.asked(),
        "conditions": [parse_condition(text) for text in condition or []], **options.run(),
    }  # fmt: skip
    here: dict[str, Any] = {"engine": words.pop("engine"), "fast": fast_problems if fast else None}
    here["sequential"] = None if sequential is None else Stopping(sequential, round_size)
    with unit_progress(progress(), "answers") as shown:
        here |= {"on_message": shown.on_message, "on_progress": shown.on_progress}
        if shard is None:
            found = run(names, out, **words, **here)
        else:
            run_table1_shard(names, out, Shard.parse(shard), words, **here)
    if shard is not None:
        tell_shard(out, shard, as_json)
    else:
        print_result(as_json, found, (out / "table1.md").read_text(encoding="utf-8"))
