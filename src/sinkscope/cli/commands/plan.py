"""`sinkscope plan STUDY|table1`: what a study or Table 1 would take on other machines, before anyone pays for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sinkscope.cli import options
from sinkscope.cli.app import command
from sinkscope.cli.options import counts, listed, refuse
from sinkscope.cli.screen import print_result, waiting
from sinkscope.errors import StudyError

if TYPE_CHECKING:
    from sinkscope.study.forecast import Forecast

GB = 1e9


@command()
def plan(
    name: Annotated[
        str,
        Argument(help="A shipped study (paper, quick, …), a YAML file, or table1.", autocompletion=options.study_names),
    ] = "paper",
    models: options.ModelsOption = None,
    tasks: options.TaskOption = None,
    problems: options.Problems = None,
    device: Annotated[str, Option(help="cpu, or a GPU such as H100, A100, RTX 4090.")] = "cpu",
    dtype: options.Dtype = None,
    measure: Annotated[bool, Option("--measure", help="Time a layer of each model on this CPU.")] = False,
    protocol: options.ProtocolOption = None,
    ks: Annotated[str | None, Option(help="table1: how many sinks are masked, with commas between.")] = None,
    batch_size: options.BatchSize = 8,
    as_json: options.JsonFlag = False,
) -> None:
    """Estimate memory, operations, hours and disk of a study from config.json files; nothing is loaded or run."""
    wanted = listed(models, "models after --models", "tiny-llada")
    if name == "table1":
        from sinkscope.study.forecast import forecast_table1, table1_dict, table1_text

        refuse(StudyError, "with table1", task=tasks, measure=measure)
        if wanted is None:
            raise StudyError(
                "Expected models to plan table1 for, such as --models GSAI-ML/LLaDA-8B-Instruct, got none."
            )
        with waiting("reading config.json files …"):
            rows = forecast_table1(
                wanted, device, protocol=protocol, ks=counts(ks or "1,5,10"), limit=problems, batch_size=batch_size, dtype=dtype
            )  # fmt: skip
        print_result(as_json, table1_dict(rows), table1_text(rows, device))
        return
    from sinkscope.study.forecast import forecast
    from sinkscope.study.schema import Study

    refuse(StudyError, "with a study", protocol=protocol, ks=ks)
    study = Study.load(name).changed(wanted, problems, listed(tasks, "tasks", "arithmetic"), dtype=dtype)
    with waiting("timing a layer of each model …" if measure else "reading config.json files …"):
        found = forecast(study, device, measure)
    print_result(as_json, found.to_dict(), told(found))


def told(found: Forecast) -> str:
    """The estimate in lines of 80 columns."""
    from sinkscope.study.text import aligned

    how = "one layer timed on this CPU" if found.measured else "assumed rates, nothing was timed"
    rows = [("model", "units", "forwards", "PFLOP", "hours", "GB per worker")]
    for model in found.models:
        hours, memory = f"{model.seconds / 3600:.3g}", f"{(model.memory + found.runtime) / GB:.2f}"
        counted = (f"{model.units:,}", f"{model.forwards:,}", f"{model.flops / 1e15:.3g}", hours, memory)
        parts = f"weights {model.weights / GB:.2f} GB, activations {model.activations / GB:.2f}, trace {model.trace / GB:.2f}"
        place = " in the host's memory" if model.on_host else ""
        plain = "" if model.plain is None else f"; {model.plain / 3600:.3g} hours without traces and masks"
        about = f"{model.parameters:,} parameters in {model.dtype}: {parts}{place}{plain}"
        rows += [(model.model, *counted), (f"  {about}", "", "", "", "", "")]
    lines = [f"Plan of the study {found.study} on {found.device}.", f"An estimate: {how}.", "", *aligned(rows, 0), ""]
    lines.append("Hours by workers: " + ", ".join(f"{count}: {spent:.3g}" for count, spent in found.hours.items()))
    lines.append(f"Disk for answers and traces: {found.disk / GB:.3g} GB")
    if found.fits is not None:
        lines.append(f"A worker {'fits' if found.fits else 'does NOT fit'} into the memory of one {found.device}.")
    return "\n".join([*lines, *(f"Left out: {why}" for why in found.left_out)])
