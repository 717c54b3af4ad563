"""Cache against recomputation in diffusion models: one key per head hidden while the other rows follow, or stay as they were.

    python -m lab.experiments.protocols_diffusion --write

Generation in blocks of 8, one commit per step. The first forward of a block is over the whole canvas with nothing hidden; the
keys that it ranks are hidden in the other seven. They differ in which rows are computed under the masking.
(a) recomputation: all rows at every step, as a diffusion model is run, so that prompt and later blocks lose the key, too.
(b) prefix cache: keys and values of all that stands before the block are those of the clean first forward.
(c) dual cache: those of what stands behind the block, too; only the block itself is computed again.
(b) and (c) are what the paper's autoregressive model goes through: a cache that was filled before the masking.
Which key: the top key of each head; its top structural key; a random other key. Attention is recomputed here, plainly.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.attention.call import Call
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.models import Model
from sinkscope.sinks.kinds import KINDS, STRUCTURAL, KindsOf
from sinkscope.statistics import bootstrap
from sinkscope.tasks.problem import Problem

OUT = Path(__file__).parents[2] / "lab" / "results" / "protocols"
CACHES = {"recomputed": None, "prefix cache": "prefix", "dual cache": "dual"}
KEYS = ("nothing", "top key", "structural key", "random key")
LENGTH, BLOCK, RANKS = 24, 8, 12


@dataclass(frozen=True)
class AfterFill(Selector):
    """One key per head, picked from the whole map of a block's first forward, hidden in the rest of the block.

    shares collects what keys draw from the rows of the block, by their rank in that map: [batch, head, rank] per call.
    """

    which: str = "top key"
    kinds_of: KindsOf | None = field(default=None, hash=False)
    draw: torch.Generator | None = field(default=None, hash=False)
    order: dict[int, Tensor] = field(default_factory=dict, hash=False)  # layer → keys by rank [batch, head, key]
    picked: dict[int, Tensor] = field(default_factory=dict, hash=False)  # layer → bool [batch, head, key]
    shares: list[Tensor] = field(default_factory=list, hash=False)

    @property
    def is_noop(self) -> bool:
        return False  # it looks even where it hides nothing

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        forward = call.forward
        assert forward is not None and forward.ids is not None
        first = forward.prompt + forward.step // BLOCK * BLOCK
        rows = slice(first - forward.start, first - forward.start + BLOCK)
        if forward.step % BLOCK == 0:
            columns = _maps(call, None).sum(2)  # [batch, head, key]
            self.order[call.layer] = columns.sort(dim=-1, descending=True, stable=True).indices
            self.picked[call.layer] = self._pick(columns, forward.ids)
            return None
        hidden = self.picked[call.layer]
        share = _maps(call, hidden)[:, :, rows].mean(2)  # what each key draws from the block's rows
        self.shares.append(share.gather(-1, self.order[call.layer])[..., :RANKS])
        return hidden if hidden.any() else None

    def _pick(self, columns: Tensor, ids: Tensor) -> Tensor:
        none = torch.zeros_like(columns, dtype=torch.bool)
        if self.which == "nothing":
            return none
        top = none.scatter(-1, columns.argmax(-1, keepdim=True), True)
        if self.which == "structural key":
            assert self.kinds_of is not None
            wanted = torch.tensor([kind in STRUCTURAL for kind in KINDS])[self.kinds_of(ids)]  # [batch, key]
            columns = columns.masked_fill(~wanted[:, None], -1.0)
            return none.scatter(-1, columns.argmax(-1, keepdim=True), True)
        if self.which == "random key":
            noise = torch.rand(columns.shape, generator=self.draw).masked_fill(top, -1.0)
            return none.scatter(-1, noise.argmax(-1, keepdim=True), True)
        return top


def _maps(call: Call, hidden: Tensor | None) -> Tensor:
    """Attention of this call, plainly: [batch, head, query, key]."""
    share = call.q.shape[1] // call.k.shape[1]
    scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = call.q.float() @ call.k.repeat_interleave(share, 1).float().transpose(2, 3) * scale
    return (scores if hidden is None else scores.masked_fill(hidden[:, :, None], -torch.inf)).softmax(-1)


def batches(model: Model, count: int) -> Iterator[tuple[list[Problem], Tensor]]:
    """Problems of both kinds whose prompts are equally long, so that nothing is padded."""
    of: dict[int, list[tuple[Problem, Tensor]]] = {}
    for kind in ("arithmetic", "programs"):
        for problem in sk.tasks.problems(kind, n=count, split="test", seed=0):
            ids = model.encode(problem.prompt)
            of.setdefault(ids.shape[1], []).append((problem, ids))
    for _, rows in sorted(of.items()):
        yield [problem for problem, _ in rows], torch.cat([ids for _, ids in rows])


def measure(name: str, cached: str, count: int) -> dict[str, Any]:
    """Right answers and shares of one model under one protocol, per key: label → one value per problem, or per rank."""
    model = sk.load(name)
    kinds_of = KindsOf(model.tokenizer, model.mask_id)
    settings = sk.Decode.parallel(LENGTH, BLOCK, threshold=None, steps=LENGTH, cache=CACHES[cached])  # type: ignore[arg-type]
    right: dict[str, list[float]] = {}
    shares: dict[str, list[np.ndarray]] = {}
    for problems, ids in batches(model, count):
        for which in KEYS:
            change = AfterFill(which, kinds_of, torch.Generator().manual_seed(0))
            with torch.inference_mode(), sk.intervene(model, change):
                done = sk.decode(model, ids, settings)
            texts = model.require_tokenizer().batch_decode(done.tokens[:, ids.shape[1] :])
            label = f"{which}, {cached}"
            judged = zip(problems, texts, strict=True)
            right.setdefault(label, []).extend(float(problem.check(text)) for problem, text in judged)
            shares.setdefault(label, []).append(torch.stack(change.shares).mean((0, 2)).numpy())  # [row, rank]
    return {
        "right": right,
        "shares": {label: np.concatenate(rows).mean(0).round(5).tolist() for label, rows in shares.items()},
    }


def gather(name: str, count: int, parts: Path) -> dict[str, Any]:
    """All protocols of one model; an existing part is not measured again."""
    right: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    parts.mkdir(parents=True, exist_ok=True)
    for cached in CACHES:
        kept = parts / f"{name}-{cached.replace(' ', '-')}-{count}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(measure(name, cached, count)), encoding="utf-8")
        part = json.loads(kept.read_text(encoding="utf-8"))
        right |= part["right"]
        shares |= part["shares"]
    return {
        "model": name, "problems": len(right["nothing, recomputed"]), "right": right,
        "rows": [row_of(label, right) for label in right], "shares": shares,
    }  # fmt: skip


def row_of(label: str, right: dict[str, list[float]]) -> dict[str, Any]:
    """Against nothing hidden under the same protocol; and what hiding costs beyond what it costs under recomputation."""
    which, _, cached = label.partition(", ")
    lost = np.array(right[label]) - np.array(right[f"nothing, {cached}"])
    usual = np.array(right[f"{which}, recomputed"]) - np.array(right["nothing, recomputed"])
    return {
        "label": label,
        "right": float(np.mean(right[label])),
        "change": _interval(lost),
        "beyond_recomputed": _interval(lost - usual),
    }


def _interval(values: np.ndarray) -> list[float]:
    return [float(values.mean()), *bootstrap(values.tolist(), 2000, 0)]


def as_markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Cache against recomputation in diffusion models",
        "",
        "Made by `python -m lab.experiments.protocols_diffusion --count 30 --write`; its docstring describes the protocols.",
        "Changes in points [95 % over problems], against nothing hidden under the same protocol. Shares: what the keys of the",
        "first three ranks of each head draw from the rows of the block, over all layers.",
        "",
    ]
    for found in results:
        lines += [f"## {found['model']} ({found['problems']} problems)", "",
                  "| hidden | right | change | beyond recomputation | share of rank 1, 2, 3 |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for row in found["rows"]:
            change, beyond = (
                "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * v for v in row[what]))
                for what in ("change", "beyond_recomputed")
            )
            share = ", ".join(f"{value:.3f}" for value in found["shares"][row["label"]][:3])
            lines.append(f"| {row['label']} | {100 * row['right']:.1f} % | {change} | {beyond} | {share} |")
        lines.append("")
    return "\n".join(lines)


def draw_figure(results: list[dict[str, Any]], path: Path) -> None:
    """Share of the attention of a block's rows by the rank of the key, before and after its top key is hidden."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(4.4 * len(results), 3.4), squeeze=False, sharey=True)
    styles = (
        ("nothing, recomputed", "nothing hidden", "#444444", "o"),
        ("top key, recomputed", "top key hidden, recomputed", "#d55e00", "s"),
        ("top key, prefix cache", "top key hidden, prefix cache", "#0072b2", "^"),
    )
    for axis, found in zip(axes[0], results, strict=True):
        for label, name, colour, marker in styles:
            axis.plot(
                range(1, RANKS + 1), found["shares"][label], marker=marker, color=colour, label=name, markersize=4
            )
        axis.set(title=str(found["model"]), xlabel="rank of the key in its head")
        axis.set_xticks(range(1, RANKS + 1, 2))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("share of attention, all layers")
    axes[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-llada", "tiny-dream", "tiny-mmada"])
    parser.add_argument("--count", type=int, default=50, help="problems per kind")
    parser.add_argument("--write", action="store_true", help="into lab/results/protocols")
    parser.add_argument(
        "--parts", type=Path, default=Path("runs/protocols-diffusion"), help="what is measured is kept here"
    )
    given = parser.parse_args()
    results = [gather(name, given.count, given.parts) for name in given.models]
    print(as_markdown(results))
    if given.write:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "diffusion.md").write_text(as_markdown(results), encoding="utf-8")
        (OUT / "diffusion.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
        draw_figure(results, OUT / "diffusion.png")


if __name__ == "__main__":
    main()
