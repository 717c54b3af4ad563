"""What an intervention changed in the answers, whether or not it made them wrong: tokens, order of commits, logits.

The logits are compared at the commits of the unmasked run: KL divergence on the same canvases.
Two free runs soon have different canvases, whose logits say little about the intervention. Here the intervened model is
led along the unmasked run's path: before each step it sees the canvas that the unmasked model saw. What it remembers of the
step before (which keys were sinks) is of that path too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.decoding import Step, decode
from sinkscope.evals.scoring import canvas_hidden, log_probabilities, read_spans
from sinkscope.models.base import Model
from sinkscope.settings.decode import Decode
from sinkscope.sinks.columns import on_one_core

METRICS = ("changed", "first_change", "reordered", "same_verdict", "kl", "flipped")
Record = Mapping[str, Any]  # a finished generation: text, ids and, of a diffusion model, steps


def shift(before: Sequence[Record], after: Sequence[Record], right: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Means over problems, condition against unmasked run; both in the same order.

    changed: share of the answer's tokens that are others, position by position, up to the end of the longer answer.
    first_change: where the first of them stands, as a share of the unmasked answer (1 where nothing changed).
    reordered: share of the pairs of positions that were committed in another order; diffusion models only.
    same_verdict: share of problems whose text changed though both answers are right, or both wrong.
    """
    rows = [_one(a, b) for a, b in zip(before, after, strict=True)]
    texts = [a["text"] != b["text"] for a, b in zip(before, after, strict=True)]
    same = [other and was == now for other, (was, now) in zip(texts, right, strict=True)]
    found = {name: mean([row[name] for row in rows]) for name in ("changed", "first_change", "reordered")}
    return {"n": len(rows), **found, "same_verdict": mean(same)}


def _one(before: Record, after: Record) -> dict[str, float | None]:
    a, b = list(before.get("ids", ())), list(after.get("ids", ()))
    longest = max(len(a), len(b))
    other = [x != y for x, y in zip(a, b, strict=False)] + [True] * (longest - min(len(a), len(b)))
    first = other.index(True) if any(other) else longest
    return {
        "changed": sum(other) / longest if longest else 0.0,
        "first_change": min(first / len(a), 1.0) if a else float(not other),
        "reordered": _reordered(before.get("steps"), after.get("steps")),
    }


def _reordered(before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
    """Share of pairs of positions, in both answers, that changed places in the order of commits."""
    size = min(len(before or ()), len(after or ()))
    if before is None or after is None or size < 2:
        return None
    signs = [np.sign(np.subtract.outer(np.asarray(one[:size]), np.asarray(one[:size]))) for one in (before, after)]
    pairs = np.triu_indices(size, 1)
    return float((signs[0] * signs[1] < 0)[pairs].mean())


# ---- logits


@on_one_core  # sums depend on the number of threads, and workers elsewhere have one
@torch.inference_mode()
def divergences(model: Model, intervention: Any, prompts: list[list[int]], settings: Decode) -> list[dict[str, Any]]:
    """Per prompt KL(unmasked ‖ intervened) in nats over the commits, how often the likeliest token differs, and commits.

    None where decoding has no canvas of its own (guidance, caches, block-causal models).
    """
    if not model.causal and (settings.guidance or settings.cache or settings.layout != "answer"):
        return [{"kl": None, "flipped": None, "commits": 0} for _ in prompts]
    return [_divergence(model, intervention, prompt, settings) for prompt in prompts]


def _divergence(model: Model, intervention: Any, prompt: list[int], settings: Decode) -> dict[str, Any]:
    from sinkscope.evals.batches import intervened

    ids = torch.tensor([prompt], device=model.device)
    steps: list[Step] = []
    done = decode(model, ids, settings, history=True, on_step=steps.append)
    assert done.history is not None
    canvases = done.history[: len(steps), 0].to(model.device)  # [step, position]
    commits = torch.stack([step.committed[0] for step in steps])  # bool [step, position]
    before = _path(model, canvases, commits, len(prompt))
    with intervened(model, intervention):
        after = _path(model, canvases, commits, len(prompt))
    gap = torch.where(before.isfinite(), before.exp() * (before - after), 0.0).sum(-1)
    flipped = before.argmax(-1) != after.argmax(-1)
    return {"kl": float(gap.double().mean()), "flipped": float(flipped.double().mean()), "commits": len(before)}


def _path(model: Model, canvases: Tensor, commits: Tensor, width: int) -> Tensor:
    """Log-probabilities [commit, vocab], one forward of the whole canvas per step; an autoregressive model reads on."""
    if model.causal:
        stops = range(width, width + len(canvases))
        return torch.cat([scores[0, -1:] for scores in read_spans(model, canvases[-1:], stops)])
    rows, run = [], object()
    for index, (canvas, committed) in enumerate(zip(canvases, commits, strict=True)):
        hidden = canvas_hidden(model, canvas[None], width, run, index)[0]
        rows.append(log_probabilities(model, hidden[committed.nonzero().squeeze(-1) - int(model.shift)]))
    return torch.cat(rows)


# ---- less that of random keys, and as a table


def minus_random(cells: list[dict[str, Any]]) -> None:
    """Every cell that masks sinks gets its shift less that of equally many random keys: what sinks are special for."""
    random = {_key(cell): cell for cell in cells if cell["condition"]["name"] == "mask_random"}
    for cell in cells:
        control = random.get(_key(cell))
        if cell["condition"]["name"] == "mask_sinks" and control is not None and "shift" in cell:
            pairs = {name: (cell["shift"].get(name), control["shift"].get(name)) for name in METRICS}
            cell["shift_minus_random"] = {
                name: None if a is None or b is None else a - b for name, (a, b) in pairs.items()
            }


def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["model"], cell["task"], cell["condition"]["k"], cell["condition"]["rows"]


def mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def as_markdown(cells: list[dict[str, Any]]) -> str:
    """One row per masked cell, in brackets the same less that of random keys; empty where there is none."""
    rows = []
    for cell in cells:
        if "shift" in cell and cell["condition"]["name"] != "none":
            less = cell.get("shift_minus_random", {})
            shown = [_shown(cell["shift"].get(name), less.get(name)) for name in METRICS[:-1]]
            rows.append([cell["model"], cell["task"], cell["label"], *shown])
    titles = "model | task | condition | tokens changed | first change | pairs reordered | changed, same verdict | KL"
    return markdown_table(titles, rows) if rows else ""


def _shown(value: float | None, less: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + ("" if less is None else f" ({less:+.3f})")


def markdown_table(titles: str, rows: Sequence[Sequence[object]]) -> str:
    """titles: with | between."""
    lines = [titles, *(" | ".join(map(str, row)) for row in rows)]
    head, *body = [f"| {line} |\n" for line in lines]
    return "".join([head, "|---" * len(titles.split("|")) + "|\n", *body])
