"""`plan table1`: memory and hours of Table 1 by model and protocol, from config.json files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.errors import TaskError
from sinkscope.evals.masking import grid
from sinkscope.evals.protocol import OTHERWISE, Protocol, checkpoint_of, protocol_for, read_protocol, settings_for
from sinkscope.models.base import Model
from sinkscope.models.outline import outline
from sinkscope.study.cost import CORE, Device, Size, device_of
from sinkscope.study.forecast import CONTEXT, RUNTIME
from sinkscope.study.units import Workload

PROBLEMS = {"gsm8k": 1319, "humaneval": 164}
# Mean tokens by LLaDA's tokenizer (60 a question, 188 a worked example, 146 a stub), and some 20 of the chat's markers.
QUESTION, EXAMPLE = {"gsm8k": 80, "humaneval": 166}, 208
AGAIN = {"humaneval_instruct": 146}  # the answer begins with the stub
OWN_EXAMPLES = {"gsm8k": 5, "gsm8k_cot": 8, "gsm8k_cot_llama": 8}
FASTER = 2.5  # by a threshold of 0.9 without a cache, as Fast-dLLM reports it for LLaDA


@dataclass(frozen=True)
class Row:
    """One benchmark of one model. Seconds are of one condition on one worker; an ARM's are at most that."""

    model: str
    protocol: str
    task: str
    problems: int
    prompt: int
    length: int
    forwards: int
    conditions: int
    seconds: float
    memory: int
    fits: bool | None


def forecast_table1(
    models: Sequence[str],
    device: str = "cpu",
    *,
    protocol: str | None = None,
    ks: Sequence[int] = (1, 5, 10),
    limit: int | None = None,
    batch_size: int = 8,
    dtype: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Every benchmark of every model under its protocol; nothing is loaded, nothing is run."""
    place = device_of(device)
    kind = getattr(torch, dtype) if dtype else torch.float32 if place is CORE else torch.bfloat16
    found: list[Row] = []
    for name in models:
        model = outline(name, dtype=kind)
        chosen = read_protocol(protocol) if protocol else protocol_for(name)
        own = [_row(model, name, chosen, task, place, kind, ks, limit, batch_size, settings)
               for task in chosen.benchmarks(checkpoint_of(name), model.family)]  # fmt: skip
        if not own:
            raise TaskError(
                f"The protocol {chosen.name} does not say how {name} is asked; choose --protocol {OTHERWISE}."
            )
        found += own
    return found


def _row(
    model: Model, name: str, protocol: Protocol, task: str, place: Device, dtype: torch.dtype, ks: Sequence[int],
    limit: int | None, batch_size: int, settings: Mapping[str, Any] | None,
) -> Row:  # fmt: skip
    setup = protocol.setup(task, checkpoint_of(name), model.family)
    assert setup is not None
    shots = OWN_EXAMPLES.get(setup.task, 0) if setup.examples is None else setup.examples
    used = settings_for(model, task, settings, None, protocol)
    prompt = min(QUESTION[task] + AGAIN.get(setup.task, 0) + shots * EXAMPLE, model.context - used.length)
    size, block = Size.of(model), used.block or used.length
    canvas, problems = prompt + used.length, min(limit or PROBLEMS[task], PROBLEMS[task])
    rows = min(batch_size, problems)
    forwards = used.most_steps * (2 if used.guidance else 1) * -(-problems // rows)
    work = Workload(forwards, rows, canvas, canvas, max(block // 2, 1))
    if model.causal:
        work = Workload(forwards, rows, 1, prompt + used.length // 2, 1)
    memory = size.parameters * dtype.itemsize + size.activation_bytes(work, dtype.itemsize, place is CORE)
    memory += int(RUNTIME if place is CORE else CONTEXT)
    count = len(grid(model.causal, ks)) + (used.temperature > 0)
    return Row(
        name, protocol.name, task, problems, prompt, used.length, forwards, count,
        forwards * place.seconds(size, work, dtype.itemsize), memory, None if place is CORE else memory < place.memory,
    )  # fmt: skip


def shown(rows: Sequence[Row], device: str) -> str:
    """The plan in lines of 80 columns."""
    lines = [f"Plan of Table 1 on {device} (an estimate: assumed rates, nothing was timed)", ""]
    lines.append(
        f"{'protocol, task':<27}{'problems':>9}{'tokens':>11}{'h/condition':>12}{'conditions':>11}{'hours':>9}"
    )
    name = None
    for row in rows:
        if row.model != name:
            name = row.model
            fits = {None: "", True: ", fits one", False: ", does NOT fit one"}[row.fits]
            lines.append(f"{name}: {max(one.memory for one in rows if one.model == name) / 1e9:.1f} GB{fits}")
        hours = row.seconds / 3600
        lines.append(
            f"  {row.protocol + ', ' + row.task:<25}{row.problems:>9}{f'{row.prompt}+{row.length}':>11}{hours:>12.3g}"
            f"{row.conditions:>11}{hours * row.conditions:>9.3g}"
        )
    total = sum(row.seconds * row.conditions for row in rows) / 3600
    lines += ["", f"In all {total:.3g} hours of one worker; divide by the number of workers."]
    lines.append(f"--fast: about {FASTER:g} times less for diffusion models (as Fast-dLLM reports it, not timed here).")
    lines.append("--sequential 5: less again where a comparison is clear.")
    return "\n".join(lines)


def to_dict(rows: Sequence[Row]) -> dict[str, Any]:
    hours = sum(row.seconds * row.conditions for row in rows) / 3600
    return {"rows": [asdict(row) for row in rows], "hours": hours, "estimate": True}
