"""`sinkscope eval`: benchmarks through lm-evaluation-harness, with the model as it is or under an intervention."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli.screen import JsonFlag, output, print_json, printable
from sinkscope.errors import TaskError


def register(app: typer.Typer) -> None:
    @app.command(name="eval")
    def evaluate_model(
        model: Annotated[str, typer.Option(help="Zoo name, folder, GGUF file or Hub id.")],
        tasks: Annotated[
            str, typer.Option(help="Tasks with commas between: gsm8k, humaneval, sinkscope_arithmetic, …")
        ],
        mask_sinks: Annotated[int | None, typer.Option(help="Hide this many sinks a head.")] = None,
        mask_random: Annotated[int | None, typer.Option(help="Hide this many random keys a head instead.")] = None,
        rank: Annotated[str, typer.Option(help="Which map ranks the sinks: clean or as_run.")] = "clean",
        data: Annotated[Path | None, typer.Option(help="Folder with the benchmarks' JSON lines.")] = None,
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="Folder for finished requests; run again to go on.")
        ] = None,
        limit: Annotated[int | None, typer.Option(help="Only the first problems of a task.")] = None,
        fewshot: Annotated[int | None, typer.Option(help="Examples before each problem.")] = None,
        chat: Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.")] = None,
        batch_size: Annotated[int, typer.Option(help="Requests a batch.")] = 8,
        repeats: Annotated[int, typer.Option(help="Answers a problem, for pass@k.")] = 1,
        pass_at: Annotated[str, typer.Option(help="Which pass@k, with commas between.")] = "1",
        samples: Annotated[int, typer.Option(help="Masked samples a likelihood.")] = 128,
        problems: Annotated[int, typer.Option(help="Problems of a kind of our own suite.")] = 100,
        seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
        dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
        device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")] = None,
        settings: Annotated[list[str] | None, typer.Option("--set", help="A decode setting: length=256")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Score a model on GSM8K, HumanEval or our own problems."""
        from sinkscope.evals.conditions import made_of_words
        from sinkscope.evals.evaluation import evaluate

        found = evaluate(
            model, names(tasks), intervention=made_of_words(mask_sinks, mask_random, rank), settings=words(settings), data=data,
            out=out, limit=limit, fewshot=fewshot, chat=chat, batch_size=batch_size, repeats=repeats, pass_at=counts(pass_at),
            samples=samples, problems=problems, seed=seed, dtype=dtype, device=device,
            say=lambda line: print(printable(line), file=sys.stderr),
        )  # fmt: skip
        if as_json:
            print_json(found)
            return
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title, side in (("task", "left"), ("metric", "left"), ("score", "right"), ("95 %", "left"), ("n", "right")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for name, task in found["tasks"].items():
        for metric, score in task["scores"].items():
            interval = "–" if score.get("low") is None else f"{score['low']:.3f} … {score['high']:.3f}"
            table.add_row(name, metric, f"{score['value']:.3f}", interval, str(task["n"]))
    output().print(table)


def names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise TaskError("Expected at least one task, such as gsm8k, got none.")
    return found


def counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise TaskError(f"Expected whole numbers with commas between, such as 1,10, got {text!r}.")
    return tuple(int(part) for part in parts)


def words(given: list[str] | None) -> dict[str, Any] | None:
    """key=value words as decode settings; values are read as YAML, so that numbers are numbers."""
    if not given:
        return None
    import yaml

    if wrong := [word for word in given if "=" not in word]:
        raise TaskError(f"Expected a setting as key=value, such as length=256, got {wrong[0]!r}.")
    return {key.strip(): yaml.safe_load(value) for key, value in (word.split("=", 1) for word in given)}
