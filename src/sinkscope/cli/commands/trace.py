"""`sinkscope trace MODEL PROMPT -o FILE`: generate once, and keep what every key received at every step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli.screen import JsonFlag, output, print_json, printable, waiting
from sinkscope.errors import PromptError, TraceError

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.models import Model
    from sinkscope.tracing import Trace


def register(app: typer.Typer) -> None:
    @app.command()
    def trace(
        model: Annotated[str, typer.Argument(help="Zoo name, folder, GGUF file or Hub id.")],
        prompt: Annotated[
            str, typer.Argument(help="The prompt; - reads stdin; token ids for a model without tokenizer.")
        ],
        out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("run.trace"),
        length: Annotated[int | None, typer.Option(help="Tokens to generate.")] = None,
        block: Annotated[int | None, typer.Option(help="Tokens a block; blocks are finished left to right.")] = None,
        steps: Annotated[int | None, typer.Option(help="Denoising steps over the whole answer.")] = None,
        temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token.")] = None,
        seed: Annotated[int | None, typer.Option(help="Seed of the random numbers.")] = None,
        mask_sinks: Annotated[int, typer.Option(help="Hide this many sinks a head while tracing.")] = 0,
        form: Annotated[
            Literal["auto", "full", "summary"], typer.Option(help="summary: layer means and top keys only.")
        ] = "auto",
        single: Annotated[bool, typer.Option("--float32", help="Keep float32 instead of float16.")] = False,
        budget: Annotated[int, typer.Option(help="Memory for the recorder, in MB.")] = 2048,
        norms: Annotated[bool, typer.Option("--norms", help="Keep value and hidden-state norms too.")] = False,
        heads: Annotated[
            list[str] | None, typer.Option("--map", help="Keep the whole map of a head: LAYER.HEAD")
        ] = None,
        dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
        device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Record a generation: received attention, canvas, confidence, commits."""
        words = {"length": length, "block": block, "steps": steps, "temperature": temperature, "seed": seed}
        asked = sys.stdin.read() if prompt == "-" else prompt
        if not asked.strip():
            raise PromptError("Expected a prompt with some text, got an empty one; give the model something to answer.")
        maps = tuple(_head(name) for name in heads or ())
        import torch

        import sinkscope as sk

        with waiting(f"loading {printable(model)} …"):
            loaded = sk.load(model, dtype=dtype, device=device)
        keep = sk.Keep(
            form=form, dtype=torch.float32 if single else torch.float16, budget=budget << 20, value_norms=norms,
            hidden_norms=norms, maps=maps,
        )  # fmt: skip
        changes = [sk.MaskSinks(k=mask_sinks)] if mask_sinks else []
        given = {name: value for name, value in words.items() if value is not None}
        with waiting("decoding …"):
            made = trace_one(loaded, _prompt(loaded, asked), interventions=changes, keep=keep, **given)
        made.save(out)
        if as_json:
            print_json(facts(made) | {"file": str(out)})
            return
        console = output()
        console.print(printable(made.text) or f"tokens {made.canvas[-1, made.prompt_length :].tolist()}", markup=False)
        console.print(
            f"{made.steps} steps × {made.layers} layers × {made.heads_count} heads × {made.positions} keys, {made.form} form, "
            f"{out.stat().st_size / 1e6:.1f} MB in {out}\nnext: sinkscope sinks {out}",
            style="dim", markup=False,
        )  # fmt: skip


def trace_one(model: Model, prompt: str | Tensor, **options: Any) -> Trace:
    """A trace of one prompt, as text or as ids [1, position]."""
    from sinkscope.tracing import Trace, trace

    made = trace(model, prompt, **options)
    assert isinstance(made, Trace)
    return made


def facts(trace: Trace) -> dict[str, object]:
    """What a trace is, without its numbers."""
    return {
        "model": trace.model, "prompt": trace.prompt, "text": trace.text, "steps": trace.steps, "layers": trace.layers,
        "heads": trace.heads_count, "positions": trace.positions, "form": trace.form, "backend": trace.backend,
        "settings": trace.settings.to_dict(), "interventions": trace.interventions,
    }  # fmt: skip


def _prompt(model: Model, asked: str) -> str | Tensor:
    """The text, or token ids where the model has no tokenizer to read text with."""
    if model.tokenizer is not None or not re.fullmatch(r"\s*\d+([\s,]+\d+)*\s*", asked):
        return asked
    import torch

    return torch.tensor([[int(number) for number in re.findall(r"\d+", asked)]])


def _head(name: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d+)", name)
    if found is None:
        raise TraceError(f"Expected a head as LAYER.HEAD, such as 3.0, got {name!r}.")
    return int(found[1]), int(found[2])
