"""`sinkscope trace MODEL PROMPT -o FILE` keeps what every key received at every step; `sinkscope sinks FILE` finds its sinks."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli.groups import GenerateOptions, command
from sinkscope.cli.options import JsonFlag, ModelArgument, PromptArgument, read_prompt, writable_file
from sinkscope.cli.screen import output, print_json, table_of, waiting
from sinkscope.errors import PromptError, TraceError, printable

IDS = re.compile(r"\s*[0-9]+([\s,]+[0-9]+)*\s*")

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table
    from torch import Tensor

    from sinkscope.models import Model
    from sinkscope.sinks import Rule
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
    if model.tokenizer is not None or not isinstance(asked, str) or not IDS.fullmatch(asked):
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


@command()
def sinks(
    file: Annotated[Path, typer.Argument(help="A trace, made by: sinkscope trace MODEL PROMPT -o FILE")],
    epsilon: Annotated[float | None, typer.Option(help="Threshold above the mean of the other keys.")] = None,
    unit: Annotated[str | None, typer.Option(help="Unit of epsilon: sum, percent, mean or uniform.")] = None,
    group: Annotated[str, typer.Option(help="Whose attention counts: all, masked, committed or prompt.")] = "all",
    rule: Annotated[
        str, typer.Option(help="threshold, zscore (epsilon is its k), head_share or another by its name.")
    ] = "threshold",
    top: Annotated[int, typer.Option(help="Rows per table.", min=1)] = 10,
    csv: Annotated[Path | None, typer.Option(help="Also write every sink to this CSV file.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Also write every sink to this parquet file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the sinks of a trace: where, which tokens, how they move."""
    plain = (epsilon, unit, group, rule) == (None, None, "all", "threshold")
    chosen = None if plain else _rule(rule, epsilon, unit, group)  # a wrong word is told before anything is read
    writable_file(csv, TraceError)
    writable_file(parquet, TraceError)
    from sinkscope.sinks import by_layer, default_rule, find, head_dynamics, token_shares
    from sinkscope.tracing import Trace

    trace = Trace.load(file)
    chosen = chosen or default_rule(trace)
    found, heads, tokens = find(trace, chosen), head_dynamics(trace, chosen), token_shares([trace], chosen)
    strongest = _strongest(found).head(top)
    classes = heads.group_by("class").len("heads").sort("heads", "class", descending=[True, False])
    if csv is not None:
        found.write_csv(csv)
    if parquet is not None:
        found.write_parquet(parquet)
    if as_json:
        print_json(
            {"trace": facts(trace), "rule": chosen.to_dict(), "unit": chosen.unit, "count": found.height,
             "strongest": strongest.to_dicts(), "tokens": tokens.head(top).to_dicts(), "heads": heads.to_dicts()}
        )  # fmt: skip
        return
    settings = ", ".join(f"{name} {value}" for name, value in chosen.to_dict().items() if name != "rule")
    console = output()
    console.print(
        f"{found.height} sinks in {trace.steps} steps × {trace.layers} layers × {trace.heads_count} heads, "
        f"rule {chosen.name}: {settings}", markup=False,
    )  # fmt: skip
    if found.height == 0:
        return
    console.print(_table(f"strongest (score: {chosen.unit}, at its best step)", strongest))
    console.print(_table("tokens", tokens.head(top).select("token", "kind", "share", "base", "enrichment")))
    console.print(_table("heads by class", classes))
    layers = by_layer(heads)
    console.print(_table("by layer", layers.select(layers.columns[:6]), top=max(top, trace.layers)))


def _strongest(found: pl.DataFrame) -> pl.DataFrame:
    """Each sink once, a head's key: its best step and score, and in how many steps it is one."""
    import polars as pl

    once = (
        found.sort("score", descending=True, maintain_order=True)
        .group_by("layer", "head", "position", maintain_order=True)
        .agg(pl.col("token", "kind", "score", "step").first(), pl.len().alias("steps"))
    )
    return once.select("token", "kind", "score", "layer", "head", "position", "step", "steps")


def _rule(name: str, epsilon: float | None, unit: str | None, group: str) -> Rule:
    from sinkscope.sinks.rules import rule_from_dict, rules

    words: dict[str, Any] = {"rule": name, "group": group}
    if epsilon is not None:  # whatever the rule calls its threshold, which is the first of its settings
        known = rules()
        own = [field.name for field in fields(known[name]) if not field.kw_only] if name in known else ["epsilon"]
        words[own[0] if own else "epsilon"] = epsilon
    if unit is not None:
        words["unit"] = unit
    return rule_from_dict(words)


def _table(title: str, frame: pl.DataFrame, top: int | None = None) -> Table:
    rows = ([_shown(value) for value in row] for row in frame.head(top or frame.height).iter_rows())
    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    return table_of(frame.columns, rows, numbers, title)


def _shown(value: object) -> object:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else value
