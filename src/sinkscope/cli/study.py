"""`sinkscope study [NAME|FILE]`, the main job, and `sinkscope plan STUDY|table1`: what it would take on other machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option, echo

from sinkscope.cli import options
from sinkscope.cli.app import MEASURE, PREPARE, command
from sinkscope.cli.options import CsvOption, JsonFlag, ParquetOption, ReportFlag, counts, listed, refuse, writable
from sinkscope.cli.screen import print_json, print_result, print_text, say_error, tell_shard, waiting
from sinkscope.errors import ReportError, StudyError, printable
from sinkscope.files import replace_file, write_file

if TYPE_CHECKING:
    import polars as pl

    from sinkscope.study.plan import Forecast
    from sinkscope.study.run import Run

GB = 1e9


@command(MEASURE, "sinkscope study quick")
def study(
    name: options.StudyName = "paper",
    out: Annotated[
        Path | None, Option("--out", "-o", help="Run folder; an existing run is resumed. Default: runs/NAME.")
    ] = None,
    models: options.ModelsOption = None,
    more: options.MoreModels = None,
    tasks: options.TaskOption = None,
    prompts: options.PromptsOption = None,
    problems: options.Problems = None,
    seed: Annotated[int | None, Option(help="Seed of problems and random keys.", min=0, max=options.MOST)] = None,
    texts: Annotated[Path | None, Option(help="Text file for likelihoods, passages with empty lines between.")] = None,
    workers: Annotated[int | None, Option(help="Processes, one thread each. Default: one per core.", min=1)] = None,
    shard: options.ShardOption = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    show: Annotated[bool, Option("--show", help="Print the plan, its units and an estimate; run nothing.")] = False,
    report: options.ReportFlag = True,
    full: Annotated[bool, Option("--full", help="Print every table, not the summary alone.")] = False,
    as_json: options.JsonFlag = False,
    *,
    where: options.EngineOptions,
) -> None:
    """Run a study: mask sinks, with controls, and say what that did.

    Rerun the command to resume.
    GSM8K and HumanEval on real checkpoints are a command of their own: sinkscope table1.
    """
    from sinkscope.progress import unit_progress
    from sinkscope.study.run import run
    from sinkscope.study.schema import Study, shipped
    from sinkscope.study.shards import Shard, run_shard

    given = [*(models or []), *(more or [])]
    if models and name not in shipped() and Path(name).suffix not in (".yaml", ".yml"):
        name, given = "paper", [*models, name, *(more or [])]  # after --models, what is no study is one more model
    wanted, chosen = listed(given, "a model after --models", "tiny-llada"), listed(tasks, "tasks", "arithmetic")
    engine = where.chosen(workers)
    if prompts is not None:
        refuse(StudyError, "with --prompts, which are asked in place of tasks", task=tasks)
    plan = Study.load(name).changed(wanted, problems, chosen, seed, texts, prompts, dtype=dtype, device=device)
    if show:
        from sinkscope.study.plan import here

        unused = {"out": out, "full": full, "no_report": not report, "shard": shard, "engine": where.engine != "local"}
        refuse(StudyError, "with --show, which runs nothing", **unused)
        with waiting("reading config.json files …"):
            cost = here(plan)
        text = plan.to_yaml() + "\n".join(f"# {line}".rstrip() for line in format_plan(cost).splitlines())
        print_result(as_json, {"study": plan.to_dict(), "estimate": cost.to_dict()}, text)
        return
    refuse(StudyError, "with --json, which has every table", full=full and as_json)
    own = workers if engine == "local" else None
    if shard is not None:
        part = Shard.parse(shard)
        with unit_progress() as shown:
            folder = run_shard(plan, part, out, engine=engine, workers=own, **shown.callbacks)
        tell_shard(folder, shard, as_json)
        return
    with unit_progress() as shown:
        done = run(plan, out, engine, own, **shown.callbacks)
    wrong = done.unexpected(plan)
    print_run(done, report, as_json, full, {"unexpected": wrong} if plan.expected else {})
    if plan.expected and not as_json:
        lines = [f"Not as expected: {line}" for line in wrong] or ["All verdicts are as the study expects."]
        print_text("\n".join(lines))
    if wrong:  # a study that knows its truth fails where its verdicts say otherwise
        raise Exit(1)


def print_run(done: Run, report: bool, as_json: bool, full: bool = False, more: Mapping[str, object] = {}) -> None:
    """What came out and where it is, with report.html written where that is wanted."""
    page = None
    if report:
        from sinkscope.report import write

        try:
            page = str(write(done.folder))
        except ReportError as error:
            say_error(f"no report: {error}")
    if as_json:
        print_json({**done.results, **more, "folder": str(done.folder), "report": page})
    else:
        print_text(done.summary(full=full).rstrip())


@command(PREPARE, "sinkscope plan table1 -m GSAI-ML/LLaDA-8B-Instruct")
def plan(
    name: options.StudyName = "paper",
    models: options.ModelsOption = None,
    tasks: options.TaskOption = None,
    problems: options.Problems = None,
    device: Annotated[str, Option(help="cpu, or a GPU such as H100, A100, RTX 4090.")] = "cpu",
    dtype: options.Dtype = None,
    protocol: options.ProtocolOption = None,
    ks: Annotated[str | None, Option(help="table1: how many sinks are masked, with commas between.")] = None,
    batch_size: options.BatchSize = 8,
    as_json: options.JsonFlag = False,
) -> None:
    """Estimate memory, operations, hours and disk of a study, or of table1, from config.json files; nothing is run."""
    wanted = listed(models, "models after --models", "tiny-llada")
    names = listed(tasks, "tasks", "arithmetic")
    from sinkscope.study.plan import forecast
    from sinkscope.study.schema import Study

    if name == "table1":
        from sinkscope.study.table1 import table1_study

        if wanted is None:
            raise StudyError(
                "Expected models to plan table1 for, such as --models GSAI-ML/LLaDA-8B-Instruct, got none."
            )
        chosen = table1_study(
            wanted, tasks=names, ks=counts(ks or "1,5,10"), limit=problems, protocol=protocol, batch_size=batch_size, dtype=dtype
        )  # fmt: skip
    else:
        refuse(StudyError, "with a study", protocol=protocol, ks=ks)
        chosen = Study.load(name).changed(wanted, problems, names, dtype=dtype)
    with waiting("reading config.json files …"):
        cost = forecast(chosen, device)
    print_result(as_json, cost.to_dict(), format_plan(cost))


def format_plan(found: Forecast) -> str:
    """The estimate in lines of 80 columns."""
    from sinkscope.results.text import aligned

    rows = [("model", "units", "forwards", "PFLOP", "hours", "GB per worker")]
    for model in found.models:
        hours, memory = f"{model.seconds / 3600:.3g}", f"{(model.memory + found.runtime) / GB:.2f}"
        counted = (f"{model.units:,}", f"{model.forwards:,}", f"{model.flops / 1e15:.3g}", hours, memory)
        parts = f"weights {model.weights / GB:.2f} GB, activations {model.activations / GB:.2f}, trace {model.trace / GB:.2f}"
        place = " in the host's memory" if model.on_host else ""
        plain = f"; {model.plain / 3600:.3g} hours without traces and masks"
        about = f"{model.parameters:,} parameters in {model.dtype}: {parts}{place}{plain}"
        rows += [(model.model, *counted), (f"  {about}", "", "", "", "", "")]
    head = f"Plan of the study {found.study} on {found.device}."
    lines = [head, "An estimate: assumed rates, nothing was timed.", "", *aligned(rows, 0), ""]
    lines.append("Hours by workers: " + ", ".join(f"{count}: {spent:.3g}" for count, spent in found.hours.items()))
    lines.append(f"Disk for answers and traces: {found.disk / GB:.3g} GB")
    if found.fits is not None:
        lines.append(f"A worker {'fits' if found.fits else 'does NOT fit'} into the memory of one {found.device}.")
    return "\n".join([*lines, *(f"Left out: {why}" for why in found.left_out)])


# ---- finished runs


TableName = Literal[
    "cells",
    "claims",
    "answers",
    "pooled",
    "settings",
    "tokens",
    "kinds",
    "dynamics",
    "curves",
    "mechanism",
    "likelihood",
]


@command(MEASURE, "sinkscope results runs/quick --table claims", "results")
def print_rows(
    run: Annotated[Path, Argument(help="Folder of a finished run.", show_default=False)],
    table: Annotated[TableName, Option(help="A table of results.json, or answers: a row per problem.")] = "cells",
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a table of a run as CSV, or write it to a file; the columns are the fields of results.json."""
    from sinkscope.study.run import Run

    found = Run.load(run).table(table)
    if csv is not None:
        write_file(csv, csv_of(found))
    if parquet is not None:
        with replace_file(parquet) as partial:
            found.write_parquet(partial)
    if as_json:
        print_json({"table": table, "rows": found.to_dicts()})
    elif csv is None and parquet is None:
        echo(printable(csv_of(found)), nl=False)


def csv_of(frame: pl.DataFrame) -> str:
    """A frame as CSV; lists, which CSV does not know, as JSON."""
    import polars as pl

    lists = [name for name, kind in frame.schema.items() if kind.is_nested()]
    texts = [pl.Series(name, [json.dumps(value) for value in frame[name].to_list()]) for name in lists]
    return frame.with_columns(texts).write_csv()


@command(MEASURE, "sinkscope export runs/quick -o entry.json")
def export(
    run: Annotated[Path, Argument(help="Folder of a finished study or table1, or its results.json.", metavar="RUN")],
    out: Annotated[Path, Option("--out", "-o", help="File to write.", callback=writable)] = Path("entry.json"),
    name: Annotated[str | None, Option(help="Name of the entry; by default the study's.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write claims, table, controls, versions and checkpoint of a run as one file; no text of a benchmark is in it."""
    from sinkscope.results.atlas import entry_of, to_json

    entry = entry_of(run, name)
    path, failed = write_file(out, to_json(entry)), [one for one in entry["controls"] if not one["held"]]
    value = {"entry": str(path), "bytes": path.stat().st_size, "controls_held": not failed, "digest": entry["digest"]}
    shown = f"{path}: {len(entry['rows'])} rows, {len(entry['claims'])} claims, {path.stat().st_size / 1000:.0f} kB"
    told = [f"{one['model']}: {one['name']} failed in {one['failed']} of {one['rows']} rows" for one in failed]
    print_result(as_json, value, "\n".join([shown, *told]))


@command(MEASURE, "sinkscope merge shard-1 shard-2 --out whole")
def merge(
    runs: Annotated[list[Path], Argument(help="Run folders that hold the shards.", metavar="RUN…")],
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder of the whole run. Default: the folder, if it is one.")
    ] = None,
    report: ReportFlag = True,
    as_json: JsonFlag = False,
) -> None:
    """Join the shards of a study or of table1 (--shard i/n), finish its tables and report; names a missing shard."""
    from sinkscope.study import shards
    from sinkscope.study.run import Run

    print_run(Run.load(shards.merge(runs, out)), report, as_json)


@command(MEASURE, "sinkscope compare runs/one runs/two")
def compare(
    first: Annotated[Path, Argument(help="Folder of a finished run.")],
    second: Annotated[Path, Argument(help="Folder of another one, or of the same with --match-models.")],
    match_models: Annotated[str | None, Option(help="Models to compare, base=base-tuned,a=b.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs of study or table1 cell by cell: the second against the first, on the problems that both have."""
    from sinkscope.results.compare import compare_runs, comparison_text

    found = compare_runs(first, second, None if match_models is None else _pairs(match_models))
    print_result(as_json, found, comparison_text(found))


def _pairs(text: str) -> dict[str, str]:
    words = [[part.strip() for part in word.split("=")] for word in text.split(",")]
    if any(len(word) != 2 or not all(word) for word in words) or len({word[0] for word in words}) != len(words):
        raise StudyError(f"Expected models to match as first=second with commas between, each once, got {text!r}.")
    return dict(words)
