"""`sinkscope trace MODEL PROMPT -o FILE`: generate once, and keep what every key received at every step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli.groups import GenerateOptions, command
from sinkscope.cli.options import JsonFlag, ModelArgument, PromptArgument, read_prompt, writable_file
from sinkscope.cli.screen import output, print_json, printable, waiting
from sinkscope.errors import PromptError, TraceError

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.models import Model
    from sinkscope.tracing import Trace


@command()
def trace(
    model: ModelArgument,
    prompt: PromptArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("run.trace"),
    mask_sinks: Annotated[int, typer.Option(help="Mask this many sinks per head while tracing.", min=0)] = 0,
    form: Annotated[
        Literal["auto", "full", "summary"], typer.Option(help="summary: layer means and top keys only.")
    ] = "auto",
    single: Annotated[bool, typer.Option("--float32", help="Keep float32 instead of float16.")] = False,
    budget: Annotated[int, typer.Option(help="Memory for the recorder, in MB.", min=0, max=1 << 30)] = 2048,
    norms: Annotated[bool, typer.Option("--norms", help="Keep value and hidden-state norms too.")] = False,
    lens: Annotated[
        bool, typer.Option("--lens", help="Keep what each layer would write at each position (logit lens).")
    ] = False,
    heads: Annotated[
        list[str] | None, typer.Option("--map", help="Keep the whole map of a head, LAYER.HEAD; repeated.")
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Write a page beside the file, and open it.")] = False,
    as_json: JsonFlag = False,
    *,
    options: GenerateOptions,
) -> None:
    """Record a generation: received attention, canvas, confidence, commits."""
    asked = read_prompt(prompt)
    maps = tuple(_head(name) for name in heads or ())
    writable_file(out, TraceError)
    import torch

    import sinkscope as sk

    loaded = options.load(model)
    keep = sk.Keep(
        form=form, dtype=torch.float32 if single else torch.float16, budget=budget << 20, value_norms=norms,
        hidden_norms=norms, maps=maps, lens=lens,
    )  # fmt: skip
    changes = [sk.MaskSinks(k=mask_sinks)] if mask_sinks else []
    with waiting("decoding …"):
        made = sk.trace(loaded, _prompt(loaded, asked), interventions=changes, keep=keep, **options.decode_words())
    assert isinstance(made, sk.Trace)  # of one prompt
    made.save(out)
    page = None
    if browser:
        import webbrowser

        from sinkscope.report import write

        page = write(out)
        webbrowser.open(page.absolute().as_uri())
    if as_json:
        print_json(facts(made) | {"file": str(out)} | ({"page": str(page)} if page else {}))
        return
    console = output()
    console.print(printable(made.text) or f"tokens {made.canvas[-1, made.prompt_length :].tolist()}", markup=False)
    console.print(
        f"{made.steps} steps × {made.layers} layers × {made.heads_count} heads × {made.positions} keys, {made.form} form, "
        f"{out.stat().st_size / 1e6:.1f} MB in {printable(str(out))}\nnext: sinkscope sinks {printable(str(out))}",
        style="dim", markup=False,
    )  # fmt: skip


def facts(trace: Trace) -> dict[str, object]:
    """What a trace is, without its numbers."""
    return {
        "model": trace.model, "prompt": trace.prompt, "text": trace.text, "steps": trace.steps, "layers": trace.layers,
        "heads": trace.heads_count, "positions": trace.positions, "form": trace.form, "backend": trace.backend,
        "settings": trace.settings.to_dict(), "interventions": trace.interventions,
    }  # fmt: skip


def _prompt(model: Model, asked: str | list[Any]) -> str | list[Any] | Tensor:
    """As it was read; typed numbers are token ids where the model has no tokenizer to read text with."""
    if (
        model.tokenizer is not None
        or not isinstance(asked, str)
        or not re.fullmatch(r"\s*[0-9]+([\s,]+[0-9]+)*\s*", asked)
    ):
        return asked
    import torch

    numbers = re.findall("[0-9]+", asked)
    if any(len(number) > 9 for number in numbers):
        raise PromptError(f"Expected token ids of the model's vocabulary, got {max(numbers, key=len)[:20]}…")
    return torch.tensor([[int(number) for number in numbers]])


def _head(name: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", name)
    if found is None:
        raise TraceError(f"Expected a head as LAYER.HEAD, such as 3.0, got {name!r}.")
    return int(found[1]), int(found[2])
