"""What Table 1 takes on a machine, from config.json files alone; nothing is loaded, nothing is run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from sinkscope.errors import TaskError
from sinkscope.evals.masking import grid
from sinkscope.evals.protocol import OTHERWISE, checkpoint_of, protocol_for, settings_for
from sinkscope.models.cost import CORE, Size, device_of, forwards_of, total_seconds
from sinkscope.models.load import outline

PROBLEMS = {"gsm8k": 1319, "humaneval": 164}
# Mean tokens by LLaDA's tokenizer (60 a question, 188 a worked example, 146 a stub), and some 20 of the chat's markers.
QUESTION, EXAMPLE = {"gsm8k": 80, "humaneval": 166}, 208
AGAIN = {"humaneval_instruct": 146}  # the answer begins with the stub
OWN_EXAMPLES = {"gsm8k": 5, "gsm8k_cot": 8, "gsm8k_cot_llama": 8}


def forecast_table1(
    models: Sequence[str],
    device: str = "cpu",
    *,
    protocol: str | None = None,
    ks: Sequence[int] = (1, 5, 10),
    limit: int | None = None,
    batch_size: int = 8,
    dtype: str | None = None,
) -> dict[str, Any]:
    """Every benchmark of every model under its protocol; nothing is loaded, nothing is run.

    Seconds of a row are of one condition on one worker; an ARM's are at most that.
    """
    place = device_of(device)
    on_cpu = place is CORE
    kind = getattr(torch, dtype) if dtype else torch.float32 if on_cpu else torch.bfloat16
    found: list[dict[str, Any]] = []
    for name in models:
        model, checkpoint = outline(name, dtype=kind), checkpoint_of(name)
        chosen, size = protocol_for(name, protocol), Size.of(model)
        tasks = chosen.benchmarks(checkpoint, model.family)
        if not tasks:
            raise TaskError(
                f"The protocol {chosen.name} does not say how {name} is asked; choose --protocol {OTHERWISE}."
            )
        for task in tasks:
            setup = chosen.setup(task, checkpoint, model.family)
            assert setup is not None
            shots = OWN_EXAMPLES.get(setup.task, 0) if setup.examples is None else setup.examples
            used = settings_for(model, task, protocol=chosen)
            prompt = min(QUESTION[task] + AGAIN.get(setup.task, 0) + shots * EXAMPLE, model.context - used.length)
            problems = min(limit or PROBLEMS[task], PROBLEMS[task])
            rows = min(batch_size, problems)
            batch, batches = forwards_of(used, rows, prompt), -(-problems // rows)
            memory = size.parameters * kind.itemsize + int(place.runtime)
            memory += max(size.activation_bytes(part, kind.itemsize, on_cpu) for part in batch)
            one = functools.partial(place.seconds, size, itemsize=kind.itemsize)
            found.append({
                "model": name, "protocol": chosen.name, "task": task, "problems": problems, "prompt": prompt,
                "length": used.length, "forwards": batches * sum(part.forwards for part in batch),
                "conditions": len(grid(model.causal, ks)) + (used.temperature > 0),
                "seconds": batches * total_seconds(batch, one), "memory": memory,
                "fits": None if on_cpu else memory < place.memory,
            })  # fmt: skip
    hours = sum(row["seconds"] * row["conditions"] for row in found) / 3600
    return {"rows": found, "hours": hours, "estimate": True}
