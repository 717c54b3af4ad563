"""`sinkscope trace MODEL PROMPT -o FILE` keeps what every key received at every step; `sinkscope sinks FILE` finds its sinks."""

from __future__ import annotations

import re
import time
import webbrowser
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from sinkscope.cli import options
from sinkscope.cli.app import LOOK, command
from sinkscope.cli.options import JsonFlag, read_prompt, refuse, writable
from sinkscope.cli.screen import output, print_json, print_result, say_line, table_of, waiting
from sinkscope.errors import PromptError, ReportError, TraceError, printable

if TYPE_CHECKING:
    import polars as pl

    from sinkscope.models import Model
    from sinkscope.report.server import Server
    from sinkscope.sinks import Rule
    from sinkscope.tracing import Trace
    from sinkscope.tracing.recorder import Keep


@command(LOOK, 'sinkscope trace tiny-llada "Tom has 3 apples."')
def trace(
    model: options.ModelArgument,
    prompt: Annotated[str | None, options.PromptInfo] = None,
    prompts: options.PromptsOption = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="File; of --prompts a folder. Default: run.trace, or traces.")
    ] = None,
    mask_sinks: Annotated[int, Option(help="Mask this many sinks per head while tracing.", min=0)] = 0,
    form: Annotated[
        Literal["auto", "full", "summary"], Option(help="summary: layer means and most-attended keys only.")
    ] = "auto",
    half: Annotated[bool, Option("--float16", help="Keep 16 bits: half the size, and a rule may flip.")] = False,
    budget: Annotated[int, Option(help="Memory for the recorder, in MB.", min=0, max=1 << 30)] = 2048,
    norms: Annotated[bool, Option("--norms", help="Keep value and hidden-state norms too.")] = False,
    lens: Annotated[bool, Option("--lens", help="Keep what each layer would write (logit lens).")] = False,
    heads: Annotated[
        list[str] | None, Option("--map", help="Keep the map of a head, LAYER.HEAD; repeated; or all.")
    ] = None,
    as_json: options.JsonFlag = False,
    *,
    given: options.GenerateOptions,
) -> None:
    """Record a generation: received attention, canvas, confidence, commits."""
    if (prompt is None) == (prompts is None):
        raise PromptError("Expected a prompt, or --prompts FILE.jsonl, got both or neither; give one of them.")
    from sinkscope.tasks.problem import read_prompts

    asked = [read_prompt(prompt or "")] if prompts is None else [one.prompt for one in read_prompts(prompts)]
    files = _files(out, None if prompts is None else len(asked))
    maps = _maps(heads or [])
    import torch

    import sinkscope as sk

    loaded = given.load(model)
    keep = sk.Keep(
        form=form, dtype=torch.float16 if half else torch.float32, budget=budget << 20, value_norms=norms,
        hidden_norms=norms, maps=maps, lens=lens,
    )  # fmt: skip
    words = given.decode_words()
    if maps:
        say_line(memory_of(loaded, max(asked, key=len), keep, words))
    changes = [sk.MaskSinks(k=mask_sinks)] if mask_sinks else []
    told = []
    for one, file in zip(asked, files, strict=True):
        with waiting("decoding …"):
            made = sk.trace(loaded, one, interventions=changes, keep=keep, **words)
        assert isinstance(made, sk.Trace)  # of one prompt
        made.save(file)
        told.append(facts(made) | {"file": str(file)})
        if not as_json:
            print_trace(made, file)
    if as_json:
        print_json(told[0] if prompts is None else told)


def _files(out: Path | None, count: int | None) -> list[Path]:
    """Where traces go: one file; of a file of so many prompts a folder, with a file for each."""
    if count is None:
        file = writable(out or Path("run.trace"))
        assert file is not None
        return [file]
    folder = out or Path("traces")
    if folder.is_file():
        raise TraceError(f"Expected a folder to write {count} traces to, and {folder} is a file; name another.")
    return [folder / f"prompt-{number:03d}.trace" for number in range(1, count + 1)]


def print_trace(made: Trace, path: Path) -> None:
    """What was written, and where the trace is."""
    console, file = output(), printable(str(path))
    console.print(printable(made.text) or f"tokens {made.canvas[-1, made.prompt_length :].tolist()}", markup=False)
    size = f"{made.steps} steps × {made.layers} layers × {made.heads_count} heads × {made.positions} keys, {made.form} form"
    told = f"{size}, {path.stat().st_size / 1e6:.1f} MB in {file}\nnext: sinkscope sinks {file}"
    console.print(told, style="dim", markup=False)


def memory_of(model: Model, prompt: Any, keep: Keep, words: dict[str, Any]) -> str:
    """What recording takes, in a sentence that is said before anything runs."""
    from sinkscope.decoding import resolve_settings
    from sinkscope.tracing.recorder import planned_form

    prompt_length = model.encode(prompt).shape[1]
    settings = resolve_settings(model.defaults, model, prompt_length, words)
    form, needed = planned_form(model, 1, prompt_length + settings.answer_length, settings, keep)
    count = len(keep.of_model(model).heads)
    return f"recording takes {needed / 2**20:,.1f} MB of memory ({form} form, maps of {count} heads)"


def facts(trace: Trace) -> dict[str, object]:
    """What a trace is, without its numbers."""
    return {
        "model": trace.model, "prompt": trace.prompt, "text": trace.text, "steps": trace.steps, "layers": trace.layers,
        "heads": trace.heads_count, "positions": trace.positions, "form": trace.form, "backend": trace.backend,
        "settings": trace.settings.to_dict(), "interventions": trace.interventions,
    }  # fmt: skip


def _maps(names: list[str]) -> tuple[tuple[int, int], ...] | Literal["all"]:
    """The heads whose maps are kept."""
    if names == ["all"]:
        return "all"
    pairs = [re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", name) for name in names]
    if not all(pairs):
        raise TraceError(f"Expected heads as LAYER.HEAD, such as 3.0, or all alone, got {', '.join(names)!r}.")
    return tuple((int(pair[1]), int(pair[2])) for pair in pairs if pair)


@command(LOOK, "sinkscope sinks run.trace")
def sinks(
    file: Annotated[Path, Argument(help="A trace, made by: sinkscope trace MODEL PROMPT -o FILE")],
    epsilon: Annotated[float | None, Option(help="Threshold above the mean of the other keys.")] = None,
    unit: Annotated[str | None, Option(help="Unit of epsilon: sum, percent, mean or uniform.")] = None,
    group: Annotated[str, Option(help="Whose attention counts: all, masked, committed or prompt.")] = "all",
    rule: Annotated[str, Option(help="threshold, zscore, head_share or another by its name.")] = "threshold",
    top: Annotated[int, Option(help="Rows per table.", min=1)] = 10,
    csv: options.CsvOption = None,
    parquet: options.ParquetOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Find the sinks of a trace: where, which tokens, how they move; the table of all goes to a file."""
    from sinkscope.tracing import Trace
    from sinkscope.tracing.heads import by_layer, head_dynamics
    from sinkscope.tracing.sinks import find, token_shares

    trace = Trace.load(file)
    plain = (epsilon, unit, group, rule) == (None, None, "all", "threshold")
    chosen = trace.default_rule if plain else _rule(rule, epsilon, unit, group)
    found, heads, tokens = find(trace, chosen), head_dynamics(trace, chosen), token_shares([trace], chosen)
    strongest, likeliest = _strongest(found).head(top).to_dicts(), tokens.head(top)
    if csv is not None:
        found.write_csv(csv)
    if parquet is not None:
        found.write_parquet(parquet)
    if as_json:
        print_json(
            {"trace": facts(trace), "rule": chosen.to_dict(), "unit": chosen.unit, "count": found.height,
             "strongest": strongest, "tokens": likeliest.to_dicts(), "heads": heads.to_dicts()}
        )  # fmt: skip
        return
    settings = ", ".join(f"{name} {value}" for name, value in chosen.to_dict().items() if name != "rule")
    size = f"{trace.steps} steps × {trace.layers} layers × {trace.heads_count} heads"
    console = output()
    console.print(f"{found.height} sinks in {size}, rule {chosen.name}: {settings}", markup=False)
    if found.height == 0:
        return
    classes = heads.group_by("class").len("heads").sort("heads", "class", descending=[True, False])
    layers = by_layer(heads)
    shares = likeliest.select("token", "kind", "share", "base", "enrichment")
    console.print(table_of(strongest, f"strongest (score: {chosen.unit}, at its best step)"))
    console.print(table_of(shares.to_dicts(), "tokens"))
    console.print(table_of(classes.to_dicts(), "heads by class"))
    console.print(table_of(layers.select(layers.columns[:6]).to_dicts(), "by layer"))


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
    from sinkscope.sinks.rules import RULES, rule_from_dict

    words: dict[str, Any] = {"rule": name, "group": group}
    if epsilon is not None:  # whatever the rule calls its threshold, which is the first of its settings
        rule = RULES.get(name)
        own = [] if rule is None else [field.name for field in fields(rule) if not field.kw_only]
        words[own[0] if own else "epsilon"] = epsilon
    if unit is not None:
        words["unit"] = unit
    return rule_from_dict(words)


# ---- a run or a trace as one page, as figures for print, as a page served here


RunFolder = Annotated[Path, Argument(help="Folder of a run, or the file of a trace.", metavar="RUN|FILE")]


@command(LOOK, "sinkscope report run.trace")
def report(
    run: RunFolder,
    out: Annotated[
        Path | None, Option("--out", "-o", help="File. Default: RUN/report.html.", callback=writable)
    ] = None,
    megabytes: Annotated[float, Option(help="How large the file may be.", min=0.5, max=1e6)] = 15.0,
    text: Annotated[bool, Option("--text", help="Print the summary again; write nothing.")] = False,
    full: Annotated[bool, Option("--full", help="With --text: every table.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write one page that shows a run or a trace, opens anywhere and needs no network."""
    if text:
        from sinkscope.study.run import Run

        refuse(ReportError, "with --text, which writes nothing", out=out)
        if run.is_file() and run.suffix != ".json":
            raise ReportError(f"{run} is a file, and a trace has no summary; leave --text out for its page.")
        found = Run.load(run)
        print_result(as_json, found.results, found.summary(full=full))
        return
    refuse(ReportError, "without --text", full=full)
    from sinkscope.report import write

    with waiting("writing the report …"):
        path = write(run, out, int(megabytes * 1e6))
    size = path.stat().st_size
    print_result(as_json, {"report": str(path), "bytes": size}, f"{path} ({size / 1e6:.1f} MB)")


@command(LOOK, "sinkscope figures run.trace")
def figures(
    run: RunFolder,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder to write to. Default: RUN/figures.")] = None,
    format: Annotated[Literal["pdf", "svg", "png"], Option(help="pdf, svg or png.")] = "pdf",
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures from a run, for print."""
    from sinkscope.report.printing import figures as draw

    with waiting("drawing …"):
        paths = draw(run, out, format)
    print_result(as_json, {"figures": [str(path) for path in paths]}, "\n".join(map(str, paths)))


@command(LOOK, "sinkscope view smol-llama smol-dream")
def view(
    what: Annotated[
        list[str],
        Argument(help="A run, the file of a trace, or one or two models to watch.", metavar="RUN|FILE|MODEL [MODEL]"),
    ],
    port: Annotated[int, Option(help="Port on this machine; 0 is any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option(help="Open a browser.")] = True,
    dtype: options.Dtype = None,
    device: options.Device = None,
    as_json: JsonFlag = False,
) -> None:
    """Serve a page to this machine only, until Ctrl-C: a finished run, or a model that you watch and mask."""
    with waiting("reading …"):
        server = _server(what, port, dtype, device)
    with server:
        print_result(as_json, {"address": server.address}, f"{server.address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(server.address)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


def _server(what: list[str], port: int, dtype: str | None, device: str | None) -> Server:
    """The page of a recording where a run or a trace is named, else of models."""
    path = Path(what[0])
    recorded = (
        (path.is_file() and path.suffix != ".gguf") or (path / "results.json").is_file() or (path / "traces").is_dir()
    )
    if recorded:
        from sinkscope.report.view import Viewer

        refuse(ReportError, "with a recording", dtype=dtype, device=device)
        if len(what) > 1:
            raise ReportError(f"Expected one run or trace, got {len(what)}; name models to watch them side by side.")
        return Viewer(path, port)
    from sinkscope.report.live import Live

    if len(what) > 2:
        raise ReportError(f"Expected one or two models, got {len(what)}.")
    return Live(what, port, dtype, device)
