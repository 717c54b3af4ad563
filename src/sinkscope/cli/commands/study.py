"""`sinkscope study [NAME|FILE]`: the main job; `sinkscope compare RUN RUN`: what differs between two runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli.scale import (
    AddressOption,
    CpusOption,
    EngineOption,
    GpusOption,
    ShardOption,
    engine_from,
    tell_shard,
)
from sinkscope.cli.screen import JsonFlag, output, print_json, printable, progress
from sinkscope.errors import ReportError, StudyError

if TYPE_CHECKING:
    from sinkscope.study.engines.ray import Ray
    from sinkscope.study.run import Run
    from sinkscope.study.schema import Study


def register(app: typer.Typer) -> None:
    app.command()(study)
    app.command()(compare)


def study(
    name: Annotated[str, typer.Argument(help="A shipped study (paper, quick, blocks, …) or a YAML file.")] = "paper",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; one that is begun goes on. [runs/NAME]")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--models", "--model", "-m", help="Other models; may be repeated.")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(help="Further models after --models.", hidden=True)] = None,
    tasks: Annotated[list[str] | None, typer.Option("--task", "-t", help="Other tasks; may be repeated.")] = None,
    problems: Annotated[int | None, typer.Option("--problems", "-n", help="Problems a task.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of problems and random keys.", min=0)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, one thread each. [one a core]", min=1)] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
    shard: ShardOption = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the plan, its units and an estimate; run nothing.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    ks: Annotated[str, typer.Option(help="table1: how many sinks are hidden, with commas between.")] = "1,5,10",
    data: Annotated[Path | None, typer.Option(help="table1: folder with the benchmarks' JSON lines.")] = None,
    limit: Annotated[int | None, typer.Option(help="table1: only the first problems of a benchmark.", min=1)] = None,
    batch_size: Annotated[int, typer.Option(help="table1: requests a batch.", min=1)] = 8,
    traced: Annotated[int, typer.Option(help="table1: problems that are traced too.", min=0)] = 3,
    settings: Annotated[list[str] | None, typer.Option("--set", help="table1: a decode setting, length=256")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: mask sinks, with controls, and say what that did. The same command goes on after a break.

    table1 is the study of real benchmarks: GSM8K and HumanEval through lm-evaluation-harness.
    """
    from sinkscope.study.schema import Study

    name, wanted = _asked(name, models, more)
    chosen_engine = engine_from(engine, address, workers, gpus_per_worker, cpus_per_worker)
    if (name == "table1" or show) and (engine != "local" or shard):
        raise StudyError(
            f"--engine and --shard would have no effect {'with --show' if show else 'on table1'}; leave them out."
        )
    if name == "table1":
        words = {"tasks": tasks, "data": data, "limit": limit, "batch_size": batch_size, "traced": traced,
                 "seed": seed or 0, "dtype": dtype, "device": device}  # fmt: skip
        _table1(wanted, out or Path("runs/table1"), ks, settings, words, as_json)
        return
    plan = Study.load(name).changed(wanted, problems, tasks, seed, dtype=dtype, device=device)
    if show:
        _show(plan, workers, as_json)
        return
    if shard is not None:
        tell_shard(_run_shard(plan, out, chosen_engine, workers, shard), shard, as_json)
        return
    done = _run(plan, out, chosen_engine, workers)
    page = _report(done) if report else None
    if as_json:
        print_json({**done.results, "folder": str(done.folder), "report": str(page) if page else None})
        return
    output().print(printable(done.summary()), markup=False, soft_wrap=True)
    output().print(
        f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}", markup=False, soft_wrap=True
    )


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another one.")],
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs cell by cell: the second against the first, on the problems that both have."""
    from sinkscope.study.compare import compare as compared
    from sinkscope.study.compare import shown

    found = compared(first, second)
    if as_json:
        print_json(found)
    else:
        output().print(printable(shown(found)), markup=False, soft_wrap=True)


def _asked(name: str, models: list[str] | None, more: list[str] | None) -> tuple[str, list[str] | None]:
    """The study and the models; after --models, a NAME that is no study is one more model."""
    from sinkscope.study.schema import shipped

    given = [*(models or []), *(more or [])]
    if models and name not in ("table1", *shipped()) and Path(name).suffix not in (".yaml", ".yml"):
        name, given = "paper", [*models, name, *(more or [])]
    split = [[part.strip() for part in one.split(",") if part.strip()] for one in given]
    for one, names in zip(given, split, strict=True):
        if not names:
            raise StudyError(f"Expected a model after --models, such as tiny-llada, got {one!r}; name at least one.")
    return name, [part for names in split for part in names] or None


def _table1(
    models: list[str] | None, out: Path, ks: str, settings: list[str] | None, words: dict[str, Any], as_json: bool
) -> None:
    """The grid of real benchmarks; it has no plan of its own, since the harness decides what a task is."""
    from sinkscope.cli.commands.evaluate import counts
    from sinkscope.cli.commands.evaluate import words as read
    from sinkscope.evals.table1 import table1

    if models is None:
        raise StudyError("Expected models for table1, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    found = table1(
        models,
        out,
        ks=counts(ks),
        settings=read(settings),
        say=lambda line: print(printable(line), file=sys.stderr),
        **words,
    )
    if as_json:
        print_json(found)
    else:
        output().print(printable((out / "table1.md").read_text(encoding="utf-8")), markup=False, soft_wrap=True)


def _show(plan: Study, workers: int | None, as_json: bool) -> None:
    from sinkscope.cli.screen import waiting
    from sinkscope.study.estimate import estimate

    with waiting("timing each model …"):
        found = estimate(plan, workers)
    if as_json:
        print_json({"study": plan.to_dict(), "estimate": found.to_dict()})
    else:
        output().print(printable(plan.to_yaml()) + found.shown(), markup=False, soft_wrap=True)


def _run(plan: Study, out: Path | None, engine: str | Ray, workers: int | None) -> Run:
    """With a bar where someone is watching, and a line now and then where nobody is."""
    from sinkscope.study.progress import Bar, Log
    from sinkscope.study.run import run

    console = progress()
    with Bar(console) if console.is_terminal else Log(sys.stderr) as shown:
        return run(
            plan,
            out,
            engine,
            workers if engine == "local" else None,
            on_message=shown.say,
            on_progress=shown.tick,
        )


def _run_shard(plan: Study, out: Path | None, engine: str | Ray, workers: int | None, shard: str) -> Path:
    from sinkscope.study.progress import Bar, Log
    from sinkscope.study.shards import Shard, run_shard

    console = progress()
    part = Shard.parse(shard)
    with Bar(console) if console.is_terminal else Log(sys.stderr) as shown:
        return run_shard(plan, part, out, engine, workers if engine == "local" else None, shown.say, shown.tick)


def _report(done: Run) -> Path | None:
    try:
        from sinkscope.report import write
    except ImportError:
        return None
    try:
        return write(done.folder)
    except ReportError as error:
        progress().print(f"no report: {error}", markup=False)
        return None
