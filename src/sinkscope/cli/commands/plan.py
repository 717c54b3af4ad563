"""`sinkscope plan STUDY|table1`: what a study or Table 1 would take on other machines, before anyone pays for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli.groups import command
from sinkscope.cli.options import (
    BatchSize,
    Dtype,
    JsonFlag,
    ModelsOption,
    Problems,
    ProtocolOption,
    TaskOption,
    counts,
    listed,
    refuse_together,
    study_names,
)
from sinkscope.cli.screen import print_result, waiting
from sinkscope.errors import StudyError

if TYPE_CHECKING:
    from sinkscope.study.forecast import Forecast

GB = 1e9


@command()
def plan(
    name: Annotated[
        str,
        typer.Argument(help="A shipped study (paper, quick, …), a YAML file, or table1.", autocompletion=study_names),
    ] = "paper",
    models: ModelsOption = None,
    tasks: TaskOption = None,
    problems: Problems = None,
    device: Annotated[str, typer.Option(help="cpu, or a GPU such as H100, A100, RTX 4090.")] = "cpu",
    dtype: Dtype = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a layer of each model on this CPU.")] = False,
    protocol: ProtocolOption = None,
    ks: Annotated[str | None, typer.Option(help="table1: how many sinks are masked, with commas between.")] = None,
    batch_size: BatchSize = 8,
    as_json: JsonFlag = False,
) -> None:
    """Estimate memory, operations, hours and disk of a study from config.json files; nothing is loaded or run."""
    if name == "table1":
        refuse_together(StudyError, "with table1", {"--task": tasks, "--measure": measure})
        _table1(models, device, as_json, protocol=protocol, ks=counts(ks or "1,5,10"), limit=problems,
                batch_size=batch_size, dtype=dtype)  # fmt: skip
        return
    refuse_together(StudyError, "with a study", {"--protocol": protocol, "--ks": ks})
    from sinkscope.study.forecast import forecast
    from sinkscope.study.schema import Study

    wanted, chosen = listed(models, "models after --models", "tiny-llada"), listed(tasks, "tasks", "arithmetic")
    study = Study.load(name).changed(wanted, problems, chosen, dtype=dtype)
    with waiting("timing a layer of each model …" if measure else "reading config.json files …"):
        found = forecast(study, device, measure)
    print_result(as_json, found.to_dict(), told(found))


def _table1(models: list[str] | None, device: str, as_json: bool, **words: Any) -> None:
    from sinkscope.study.forecast import forecast_table1, table1_text

    names = listed(models, "models", "tiny-llada")
    if names is None:
        raise StudyError("Expected models to plan table1 for, such as --models GSAI-ML/LLaDA-8B-Instruct, got none.")
    with waiting("reading config.json files …"):
        found = forecast_table1(names, device, **words)
    print_result(as_json, found, table1_text(found, device))


def _rounded(value: float) -> str:
    return "<0.01" if 0 < value < 0.01 else f"{value:.3g}"


def told(found: Forecast) -> str:
    """The estimate in lines of 80 columns."""
    from sinkscope.study.text import cut

    how = "one layer timed on this CPU" if found.measured else "assumed rates, nothing was timed"
    lines = [f"Plan of the study {found.study} on {found.device}.", f"An estimate: {how}.", ""]
    lines += [f"{'model':<24}{'units':>7}{'forwards':>10}{'PFLOP':>11}{'hours':>9}{'memory of a worker':>19}"]
    for model in found.models:
        memory = (model.memory + found.runtime) / GB
        place = " in the host's memory" if model.on_host else ""
        lines.append(
            f"{cut(model.model, 23):<24}{model.units:>7,}{model.forwards:>10,}{_rounded(model.flops / 1e15):>11}"
            f"{_rounded(model.seconds / 3600):>9}{memory:>16.2f} GB"
        )
        lines.append(
            f"  {model.parameters:,} parameters in {model.dtype}: weights {model.weights / GB:.2f} GB, activations "
            f"{model.activations / GB:.2f}, trace {model.trace / GB:.2f}{place}"
        )
        if model.plain is not None:
            lines.append(f"  the same forwards without traces and masks: {_rounded(model.plain / 3600)} hours")
    hours = ", ".join(f"{count}: {_rounded(spent)}" for count, spent in found.hours.items())
    lines += ["", f"Hours by workers: {hours}", f"Disk for answers and traces: {_rounded(found.disk / GB)} GB"]
    if found.fits is not None:
        lines.append(f"A worker {'fits' if found.fits else 'does NOT fit'} into the memory of one {found.device}.")
    return "\n".join([*lines, *(f"Left out: {why}" for why in found.left_out)])
