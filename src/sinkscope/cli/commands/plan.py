"""`sinkscope plan STUDY`: what a study would take on other machines, before anyone pays for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli.options import Dtype, JsonFlag, ModelsOption, TaskOption, listed, study_names
from sinkscope.cli.screen import output, print_json, printable, waiting

if TYPE_CHECKING:
    from sinkscope.study.forecast import Forecast

GB = 1e9


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    name: Annotated[
        str, typer.Argument(help="A shipped study (paper, quick, …) or a YAML file.", autocompletion=study_names)
    ] = "paper",
    models: ModelsOption = None,
    tasks: TaskOption = None,
    problems: Annotated[int | None, typer.Option("--problems", "-n", help="Problems per task.", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu, or a GPU such as H100, A100, RTX 4090.")] = "cpu",
    dtype: Dtype = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a layer of each model on this CPU.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Estimate memory, operations, hours and disk of a study from config.json files; nothing is loaded or run."""
    from sinkscope.study.forecast import forecast
    from sinkscope.study.schema import Study

    wanted, chosen = listed(models, "models after --models", "tiny-llada"), listed(tasks, "tasks", "arithmetic")
    study = Study.load(name).changed(wanted, problems, chosen, dtype=dtype)
    with waiting("timing a layer of each model …" if measure else "reading config.json files …"):
        found = forecast(study, device, measure)
    if as_json:
        print_json(found.to_dict())
    else:
        output().print(printable(told(found)), markup=False, soft_wrap=True)


def told(found: Forecast) -> str:
    """The estimate in lines of 80 columns."""
    how = "one layer timed on this CPU" if found.measured else "assumed rates, nothing was timed"
    lines = [f"Plan of the study {found.study} on {found.device} (an estimate: {how})", ""]
    lines += [f"{'model':<24}{'units':>7}{'forwards':>10}{'PFLOP':>11}{'hours':>9}{'memory of a worker':>19}"]
    for model in found.models:
        memory = (model.memory + found.runtime) / GB
        lines.append(
            f"{model.model[:23]:<24}{model.units:>7,}{model.forwards:>10,}{model.flops / 1e15:>11.4g}"
            f"{model.seconds / 3600:>9.3g}{memory:>16.2f} GB"
        )
        lines.append(
            f"  {model.parameters:,} parameters in {model.dtype}: weights {model.weights / GB:.2f} GB, activations "
            f"{model.activations / GB:.2f}, trace {model.trace / GB:.2f}"
        )
    hours = ", ".join(f"{count}: {spent:.3g}" for count, spent in found.hours.items())
    lines += ["", f"Hours by number of workers: {hours}", f"Disk for answers and traces: {found.disk / GB:.3g} GB"]
    if found.fits is not None:
        lines.append(f"A worker {'fits' if found.fits else 'does NOT fit'} into the memory of one {found.device}.")
    return "\n".join(lines)
