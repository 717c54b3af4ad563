"""`sinkscope study [NAME|FILE]`: the main job; `sinkscope compare RUN RUN`: what differs between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli.options import (
    MOST,
    Device,
    Dtype,
    JsonFlag,
    ModelsOption,
    TaskOption,
    listed,
    refuse_together,
    study_names,
)
from sinkscope.cli.scale import (
    AddressOption,
    CpusOption,
    EngineOption,
    GpusOption,
    ShardOption,
    engine_from,
    tell_shard,
)
from sinkscope.cli.screen import output, print_json, printable, progress
from sinkscope.errors import ReportError, StudyError

if TYPE_CHECKING:
    from sinkscope.study.engines import Engine
    from sinkscope.study.engines.ray import Ray
    from sinkscope.study.run import Run
    from sinkscope.study.schema import Study


def register(app: typer.Typer) -> None:
    app.command()(study)
    app.command()(compare)


def study(
    name: Annotated[
        str,
        typer.Argument(help="A shipped study (paper, quick, blocks, …) or a YAML file.", autocompletion=study_names),
    ] = "paper",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; an existing run is resumed. Default: runs/NAME.")
    ] = None,
    models: ModelsOption = None,
    more: Annotated[list[str] | None, typer.Argument(help="Further models after --models.", hidden=True)] = None,
    tasks: TaskOption = None,
    problems: Annotated[int | None, typer.Option("--problems", "-n", help="Problems per task.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of problems and random keys.", min=0, max=MOST)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each. Default: one per core.", min=1)
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
    shard: ShardOption = None,
    dtype: Dtype = None,
    device: Device = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the plan, its units and an estimate; run nothing.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    full: Annotated[bool, typer.Option("--full", help="Print every table, not the summary alone.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: mask sinks, with controls, and say what that did. Rerun the command to resume.

    GSM8K and HumanEval on real checkpoints are a command of their own: sinkscope table1.
    """
    from sinkscope.study.schema import Study

    name, wanted = _asked(name, models, more)
    chosen_engine = engine_from(engine, address, workers, gpus_per_worker, cpus_per_worker)
    chosen = listed(tasks, "tasks", "arithmetic")
    plan = Study.load(name).changed(wanted, problems, chosen, seed, dtype=dtype, device=device)
    if show:
        refuse_together(
            StudyError,
            "with --show, which runs nothing",
            {
                "--out": out,
                "--full": full,
                "--no-report": not report,
                "--shard": shard,
                "--engine": engine if engine != "local" else None,
            },
        )
        _show(plan, workers, as_json)
        return
    refuse_together(StudyError, "with --json, which has every table", {"--full": full and as_json})
    if shard is not None:
        tell_shard(_run_shard(plan, out, chosen_engine, workers, shard), shard, as_json)
        return
    done = _run(plan, out, chosen_engine, workers)
    page = written_report(done) if report else None
    wrong = done.unexpected(plan)
    if as_json:
        told_wrong = {"unexpected": wrong} if plan.expected else {}
        print_json({**done.results, **told_wrong, "folder": str(done.folder), "report": str(page) if page else None})
        _fail(wrong)
        return
    output().print(printable(summary_of(done, full)), markup=False, soft_wrap=True)
    output().print(
        printable(f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}"), markup=False, soft_wrap=True
    )
    if plan.expected:
        told = [f"Not as expected: {line}" for line in wrong] or ["All verdicts are as the study expects."]
        output().print(printable("\n".join(told)), markup=False, soft_wrap=True)
    _fail(wrong)


def _fail(wrong: list[str]) -> None:
    """A study that knows its truth fails where its verdicts say otherwise."""
    if wrong:
        raise typer.Exit(1)


def summary_of(run: Run, full: bool) -> str:
    """The summary of a run, or every table."""
    return run.summary(full=full)


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another one, or of the same with --match-models.")],
    match_models: Annotated[
        str | None,
        typer.Option(help="Models to compare, first=second with commas between, such as base=base-tuned."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs of study or table1 cell by cell: the second against the first, on the problems that both have."""
    from sinkscope.study.compare import compare as compared
    from sinkscope.study.compare import shown

    found = compared(first, second, None if match_models is None else _pairs(match_models))
    if as_json:
        print_json(found)
    else:
        output().print(printable(shown(found)), markup=False, soft_wrap=True)


def _pairs(text: str) -> dict[str, str]:
    words = [[part.strip() for part in word.split("=")] for word in text.split(",")]
    if any(len(word) != 2 or not all(word) for word in words) or len({word[0] for word in words}) != len(words):
        raise StudyError(f"Expected models to match as first=second with commas between, each once, got {text!r}.")
    return dict(words)


def _asked(name: str, models: list[str] | None, more: list[str] | None) -> tuple[str, list[str] | None]:
    """The study and the models; after --models, a NAME that is no study is one more model."""
    from sinkscope.study.schema import shipped

    given = [*(models or []), *(more or [])]
    if models and name not in shipped() and Path(name).suffix not in (".yaml", ".yml"):
        name, given = "paper", [*models, name, *(more or [])]
    return name, listed(given, "a model after --models", "tiny-llada")


def _show(plan: Study, workers: int | None, as_json: bool) -> None:
    from sinkscope.cli.screen import waiting
    from sinkscope.study.forecast import estimate

    with waiting("timing each model …"):
        found = estimate(plan, workers)
    if as_json:
        print_json({"study": plan.to_dict(), "estimate": found.to_dict()})
    else:
        output().print(printable(plan.to_yaml()) + found.shown(), markup=False, soft_wrap=True)


def _run(plan: Study, out: Path | None, engine: str | Ray | Engine, workers: int | None) -> Run:
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.run import run

    own = workers if engine == "local" else None
    with unit_progress(progress()) as shown:
        return run(plan, out, engine, own, shown.on_message, shown.on_progress)


def _run_shard(plan: Study, out: Path | None, engine: str | Ray | Engine, workers: int | None, shard: str) -> Path:
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.shards import Shard, run_shard

    part, own = Shard.parse(shard), workers if engine == "local" else None
    with unit_progress(progress()) as shown:
        return run_shard(plan, part, out, engine, own, shown.on_message, shown.on_progress)


def written_report(done: Run) -> Path | None:
    """report.html of a run; None, and a line that says why, where it cannot be written."""
    try:
        from sinkscope.report import write
    except ImportError:
        return None
    try:
        return write(done.folder)
    except ReportError as error:
        progress().print(printable(f"no report: {error}"), markup=False)
        return None
