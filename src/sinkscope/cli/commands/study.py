"""`sinkscope study [NAME|FILE]`: the main job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli.groups import EngineOptions, command
from sinkscope.cli.options import (
    MOST,
    Device,
    Dtype,
    JsonFlag,
    ModelsOption,
    Problems,
    ShardOption,
    TaskOption,
    listed,
    refuse_together,
    study_names,
)
from sinkscope.cli.screen import print_json, print_result, print_text, progress, tell_shard, waiting
from sinkscope.errors import ReportError, StudyError, printable

if TYPE_CHECKING:
    from sinkscope.study.run import Run


@command()
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
    problems: Problems = None,
    seed: Annotated[int | None, typer.Option(help="Seed of problems and random keys.", min=0, max=MOST)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each. Default: one per core.", min=1)
    ] = None,
    shard: ShardOption = None,
    dtype: Dtype = None,
    device: Device = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the plan, its units and an estimate; run nothing.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    full: Annotated[bool, typer.Option("--full", help="Print every table, not the summary alone.")] = False,
    as_json: JsonFlag = False,
    *,
    where: EngineOptions,
) -> None:
    """Run a study: mask sinks, with controls, and say what that did.

    Rerun the command to resume.
    GSM8K and HumanEval on real checkpoints are a command of their own: sinkscope table1.
    """
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.run import run
    from sinkscope.study.schema import Study
    from sinkscope.study.shards import Shard, run_shard

    name, wanted = _asked(name, models, more)
    engine = where.chosen(workers)
    chosen = listed(tasks, "tasks", "arithmetic")
    plan = Study.load(name).changed(wanted, problems, chosen, seed, dtype=dtype, device=device)
    if show:
        from sinkscope.cli.commands.plan import told as estimate
        from sinkscope.study.forecast import here

        given = {"--out": out, "--full": full, "--no-report": not report, "--shard": shard}
        given["--engine"] = where.engine != "local"
        refuse_together(StudyError, "with --show, which runs nothing", given)
        with waiting("timing a layer of each model …"):
            found = here(plan)
        text = plan.to_yaml() + "\n".join(f"# {line}".rstrip() for line in estimate(found).splitlines())
        print_result(as_json, {"study": plan.to_dict(), "estimate": found.to_dict()}, text)
        return
    refuse_together(StudyError, "with --json, which has every table", {"--full": full and as_json})
    own = workers if engine == "local" else None
    if shard is not None:
        part = Shard.parse(shard)
        with unit_progress(progress()) as shown:
            words = {"engine": engine, "workers": own}
            folder = run_shard(plan, part, out, on_message=shown.on_message, on_progress=shown.on_progress, **words)
        tell_shard(folder, shard, as_json)
        return
    with unit_progress(progress()) as shown:
        done = run(plan, out, engine, own, shown.on_message, shown.on_progress)
    wrong = done.unexpected(plan)
    print_run(done, report, as_json, full, {"unexpected": wrong} if plan.expected else {})
    if plan.expected and not as_json:
        told = [f"Not as expected: {line}" for line in wrong] or ["All verdicts are as the study expects."]
        print_text("\n".join(told))
    if wrong:  # a study that knows its truth fails where its verdicts say otherwise
        raise typer.Exit(1)


def print_run(done: Run, report: bool, as_json: bool, full: bool = False, more: Mapping[str, object] = {}) -> None:
    """What came out and where it is, with report.html written where that is wanted."""
    page = _written_report(done) if report else None
    if as_json:
        print_json({**done.results, **more, "folder": str(done.folder), "report": str(page) if page else None})
    else:
        print_text(done.summary(full=full))
        print_text(f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}")


def _written_report(done: Run) -> Path | None:
    """report.html of a run; None, and a line that says why, where it cannot be written."""
    from sinkscope.report import write

    try:
        return write(done.folder)
    except ReportError as error:
        progress().print(printable(f"no report: {error}"), markup=False)
        return None


def _asked(name: str, models: list[str] | None, more: list[str] | None) -> tuple[str, list[str] | None]:
    """The study and the models; after --models, a NAME that is no study is one more model."""
    from sinkscope.study.schema import shipped

    given = [*(models or []), *(more or [])]
    if models and name not in shipped() and Path(name).suffix not in (".yaml", ".yml"):
        name, given = "paper", [*models, name, *(more or [])]
    return name, listed(given, "a model after --models", "tiny-llada")
