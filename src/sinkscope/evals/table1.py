"""`table1`: the paper's Table 1 on real checkpoints, with both rankings, random controls, intervals, paired tests."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope import io
from sinkscope.errors import TaskError
from sinkscope.evals import shift
from sinkscope.evals.asked import Choices, OnMessage, Part, Place, check_numbers, settled
from sinkscope.evals.evaluation import check_named, loaded_for, workers_of
from sinkscope.evals.masking import grid, label
from sinkscope.evals.model_table import ModelTable, OnTick, Stopping
from sinkscope.evals.protocol import OTHERWISE, Protocol, protocol_for
from sinkscope.interventions.conditions import Condition, condition_from_dict

if TYPE_CHECKING:
    from sinkscope.evals.batches import Elsewhere
    from sinkscope.models.base import Model

logger = logging.getLogger(__name__)


def table1(
    models: Sequence[str | Model],
    out: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    conditions: Sequence[Condition] = (),
    limit: int | None = None,
    fast: int | None = None,
    sequential: Stopping | None = None,
    traced: int = 3,
    dtype: str | None = None,
    device: str | None = None,
    engine: Elsewhere | None = None,
    part: Part | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnTick | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Run models × tasks × {none, k sinks by clean and as_run ranking, k random keys}; returns what results.json holds.

    tasks: by default the benchmarks of the protocol; under `harness` gsm8k, and humaneval_instruct where a chat template
    is used, humaneval where none is. conditions: further ones, behind the grid. fast: commit all that is surer than 0.9,
    if that agrees with the protocol's decoding on so many unmasked problems. sequential: stop a comparison early.
    Every request is kept as soon as it is answered: a killed run is resumed. `traced` problems per task are run
    once more with a recorder, for sink tokens, dynamics of the heads and the order of decoding. They also run under every
    condition along the unmasked path, for the divergence of the logits. part: (i, n), answer every n-th batch alone, and
    score nothing. The other words are `evaluate`'s; more: the fields of `Choices`.
    """
    if part is not None and (fast or sequential):
        raise TaskError("Parts of a table cannot look at each other's answers: leave --fast and --sequential out.")
    check_numbers(limit=limit, fast=fast)
    message = on_message or logger.info
    folder = Path(out)
    names = {str(getattr(model, "name", model)): model for model in models}
    protocol, chat = more.get("protocol"), more.get("chat")

    def choices(names: Sequence[str]) -> Choices:
        return Choices(tuple(names), **more)

    for name, given in names.items():  # whatever is missing is told before the first model is loaded
        check_named(engine, given)
        choices(_tasks(name, tasks, protocol, chatty=False)).find_data(name)
    results: dict[str, Any] = {"schema": 1, "cells": [], "tokens": [], "dynamics": [], "order": [], "verdicts": []}
    runs: list[dict[str, Any]] = []
    with workers_of(engine, device, message) as run:
        answers = 0
        for number, (name, given) in enumerate(names.items(), 1):
            model = loaded_for(engine, given, dtype, device)
            chatty = model.chat_template is not None if chat is None else chat
            asked = choices(_tasks(name, tasks, protocol, chatty)).build(model, message)
            safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in model.name)
            place = Place(folder / (safe.strip("._") or "model"), dtype, device, run, part)
            later = len(names) - number
            table = ModelTable(asked, place, limit, sequential, message, on_progress, answers, later)
            if fast is not None and not model.causal:
                table = table.faster(fast)
            done = table.run([*grid(model.causal, ks), *conditions])
            if part is not None:
                continue
            answers += asked.count(limit) * len({one.cell["label"] for one in done})
            if traced:
                message(f"{model.name}: tracing {traced} problems per task")
                for kind, rows in table.look_inside(done, traced).items():
                    results[kind] += rows
            shift.minus_random([one.cell for one in done])
            results["cells"] += [one.cell for one in done]
            runs += [{"condition": one.cell["condition"], **settled(one.info)} for one in done if one.first]
    if part is not None:
        return {}
    results["run"] = {
        "runs": runs,
        "machine": _machine(more.get("batch_size", Choices.batch_size), runs, device),
        "sequential": sequential and asdict(sequential),
    }
    io.write(folder / "table1.md", as_markdown(results))
    io.write(folder / "results.json", json.dumps(results, indent=1, default=str, ensure_ascii=False))
    return results


def _tasks(name: str, tasks: Sequence[str] | None, protocol: str | Protocol | None, chatty: bool) -> tuple[str, ...]:
    if tasks is not None:
        return tuple(tasks)
    chosen = protocol_for(name, protocol)
    if chosen.name == OTHERWISE:
        return "gsm8k", "humaneval_instruct" if chatty else "humaneval"
    return tuple(sorted({setup.benchmark for setup in chosen.setups}))


def _machine(batch_size: int, runs: list[dict[str, Any]], device: str | None) -> dict[str, Any]:
    """What kernels, and so answers in bfloat16, depend on."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "batch_size": batch_size, "device": device or "cpu", "gpu": torch.cuda.get_device_name() if cuda else None,
        "dtype": sorted({run["model"]["dtype"] for run in runs}), "cuda": torch.version.cuda,
        **(runs[0]["versions"] if runs else {}),
    }  # fmt: skip


def as_markdown(results: dict[str, Any]) -> str:
    """Accuracies with their intervals and paired tests, the shift of the answers, and what all was run with."""
    lines = [
        "| model | task | protocol | condition | n | accuracy | 95 % | difference | p | paper | published |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        span = "" if cell["low"] is None else f"{cell['low']:.3f}–{cell['high']:.3f}"
        low, high = (100 * cell.get(f"difference_{end}", 0) for end in ("low", "high"))
        change = f"{100 * cell['difference']:+.1f} ({low:+.1f} … {high:+.1f})" if "difference" in cell else ""
        if "sequential" in cell:
            change += f", {cell['sequential']['decision']} ± {cell['sequential']['margin']:g}"
        name = cell.get("label") or label(condition_from_dict(cell["condition"]))
        words = [
            cell["model"], cell["task"], cell.get("protocol") or "", name, cell["n"],
            f"{cell['accuracy']:.3f}", span, change, f"{cell['p']:.3g}" if "p" in cell else "",
            "" if cell["paper"] is None else f"{cell['paper']:.2f}",
            ", ".join(f"{one['score']:g} ({one['by']})" for one in cell.get("published", [])),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, words)) + " |")
    parts = ["\n".join(lines) + "\n"]
    if moved := shift.as_markdown(results["cells"]):
        parts.append(f"Answers against the unmasked run; in brackets less the same of random keys.\n\n{moved}")
    if machine := results.get("run", {}).get("machine"):
        parts.append(", ".join(f"{name} {_shown(value)}" for name, value in machine.items()) + "\n")
    return "\n".join(parts)


def _shown(value: Any) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
