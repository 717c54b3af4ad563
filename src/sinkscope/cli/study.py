"""`sinkscope study [NAME|FILE]`, the main job, and `sinkscope plan STUDY|table1`: what it would take on other machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from sinkscope.cli import options
from sinkscope.cli.app import command
from sinkscope.cli.options import counts, listed, refuse
from sinkscope.cli.screen import print_json, print_result, print_text, say_error, tell_shard, waiting
from sinkscope.errors import ReportError, StudyError

if TYPE_CHECKING:
    from sinkscope.study.plan import Forecast
    from sinkscope.study.run import Run

GB = 1e9


@command()
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


@command()
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
