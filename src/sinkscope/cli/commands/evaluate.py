"""`sinkscope eval`: benchmarks through lm-evaluation-harness, with the model as it is or under an intervention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import BenchmarkOptions, command
from sinkscope.cli.options import Base, JsonFlag, counts, listed, refuse_together
from sinkscope.cli.screen import output, print_json, print_result, printable, progress
from sinkscope.errors import TaskError


@command(name="eval")
def evaluate_model(
    model: Annotated[str, typer.Option("--model", "-m", help="Zoo name, folder, GGUF file or Hub id.")],
    mask_sinks: Annotated[int | None, typer.Option(help="Mask this many sinks per head.")] = None,
    mask_random: Annotated[int | None, typer.Option(help="Mask this many random keys per head instead.")] = None,
    rank: Annotated[str | None, typer.Option(help="Which map ranks the sinks: clean (default) or as_run")] = None,
    condition: Annotated[
        str | None,
        typer.Option(help="Any intervention of study files, such as mask_sinks:k=5,rank=as_run; values are YAML."),
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first problem as the model gets it; run nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for finished requests; rerun to resume."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Answers per problem, for pass@k.", min=1)] = 1,
    pass_at: Annotated[str, typer.Option(help="Which pass@k, with commas between.")] = "1",
    samples: Annotated[int, typer.Option(help="Masked samples per likelihood.", min=1)] = 128,
    base: Base = None,
    as_json: JsonFlag = False,
    *,
    options: BenchmarkOptions,
) -> None:
    """Score a model on GSM8K, HumanEval or our own problems (gsm8k, humaneval, sinkscope_arithmetic, …).

    The options of lm-evaluation-harness work too: --tasks, --limit, --num_fewshot, --batch_size, --output_path.
    """
    from sinkscope.evals.asked import Choices
    from sinkscope.evals.evaluation import evaluate, shown_prompts
    from sinkscope.evals.masking import decode_words, made_of_words, parse_condition
    from sinkscope.io.progress import unit_progress

    names = listed(options.tasks, "at least one task", "gsm8k")
    if names is None:
        raise TaskError("Expected at least one task, such as --task gsm8k, got none.")
    asked = {**options.asked(), "repeats": repeats, "pass_at": counts(pass_at), "samples": samples}
    if show_prompt:
        refuse_together(TaskError, "with --show-prompt, which runs nothing", {"--out": out, "--condition": condition})
        prompts = shown_prompts(model, Choices(tuple(names), **asked))
        print_result(as_json, prompts, "\n".join(map(_as_text, prompts)))
        return
    more = options.run()
    change = made_of_words(mask_sinks, mask_random, rank)
    if condition is not None:
        refuse_together(TaskError, "with --condition", {"--mask-sinks": mask_sinks, "--mask-random": mask_random})
        named = parse_condition(condition)
        change = named.intervention(options.seed)
        asked["settings"] = {**(asked["settings"] or {}), **decode_words(named)} or None
    asked_model: Any = model
    if base is not None:
        from sinkscope.models.load import load

        asked_model = load(model, dtype=options.dtype, device=options.device, base=base)
    with unit_progress(progress(), "answers") as shown:
        found = evaluate(
            asked_model, names, intervention=change, out=out, **asked, **more, on_message=shown.on_message,
            on_progress=shown.on_progress,
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
