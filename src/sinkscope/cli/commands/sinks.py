"""`sinkscope sinks FILE`: the sinks of a trace under a stated rule, as tables."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli.commands.trace import facts
from sinkscope.cli.groups import command
from sinkscope.cli.options import JsonFlag, writable_file
from sinkscope.cli.screen import output, print_json, printable
from sinkscope.errors import TraceError

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from sinkscope.sinks import Rule


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
    for path in (csv, parquet):
        if path is not None:
            writable_file(path, TraceError)
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
    from rich.table import Table

    # A title is as wide as its table and would be folded, so a narrow table gets room for it.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=len(title))
    for name, kind in frame.schema.items():
        # Numbers are never folded; what a token is must stay in sight at 80 columns.
        number = kind.is_numeric()
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number, min_width=4)
    for row in frame.head(top or frame.height).iter_rows():
        table.add_row(*(_shown(value) for value in row))
    return table


def _shown(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else escape(printable(str(value)))
