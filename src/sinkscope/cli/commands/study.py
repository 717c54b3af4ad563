"""`sinkscope study [NAME|FILE]`: the main job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from sinkscope.cli import options
from sinkscope.cli.app import command
from sinkscope.cli.options import listed, refuse
from sinkscope.cli.screen import print_json, print_result, print_text, progress, say_error, tell_shard, waiting
from sinkscope.errors import ReportError, StudyError

if TYPE_CHECKING:
    from sinkscope.study.run import Run


@command()
def study(
    name: Annotated[
        str,
        Argument(help="A shipped study (paper, quick, blocks, …) or a YAML file.", autocompletion=options.study_names),
    ] = "paper",
    out: Annotated[
        Path | None, Option("--out", "-o", help="Run folder; an existing run is resumed. Default: runs/NAME.")
    ] = None,
    models: options.ModelsOption = None,
    more: options.MoreModels = None,
    tasks: options.TaskOption = None,
    problems: options.Problems = None,
    seed: Annotated[int | None, Option(help="Seed of problems and random keys.", min=0, max=options.MOST)] = None,
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
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.run import run
    from sinkscope.study.schema import Study, shipped
    from sinkscope.study.shards import Shard, run_shard

    given = [*(models or []), *(more or [])]
    if models and name not in shipped() and Path(name).suffix not in (".yaml", ".yml"):
        name, given = "paper", [*models, name, *(more or [])]  # after --models, what is no study is one more model
    wanted, chosen = listed(given, "a model after --models", "tiny-llada"), listed(tasks, "tasks", "arithmetic")
    engine = where.chosen(workers)
    plan = Study.load(name).changed(wanted, problems, chosen, seed, dtype=dtype, device=device)
    if show:
        from sinkscope.study.engines.local import cores
        from sinkscope.study.forecast import here

        far = where.engine != "local"
        refuse(
            StudyError,
            "with --show, which runs nothing",
            out=out,
            full=full,
            no_report=not report,
            shard=shard,
            engine=far,
        )
        with waiting("timing a layer of each model …"):
            found = here(plan)
        text = plan.to_yaml() + found.brief(workers or cores())
        print_result(as_json, {"study": plan.to_dict(), "estimate": found.to_dict()}, text)
        return
    refuse(StudyError, "with --json, which has every table", full=full and as_json)
    own = workers if engine == "local" else None
    if shard is not None:
        part = Shard.parse(shard)
        with unit_progress(progress()) as shown:
            folder = run_shard(plan, part, out, engine, own, shown.on_message, shown.on_progress)
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
        print_text(done.summary(full=full))
        print_text(f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}")
