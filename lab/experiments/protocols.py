"""Since when a key is hidden: an autoregressive model without its sink from the first row on, or after a clean prefill.

    python -m lab.experiments.protocols --data DATA --write

A text is read in two forwards with one key-value cache: the first `read` tokens, then the rest, whose likelihood counts.
(a) hidden from the first row on: in both forwards. For key 0 that is the text without its first token, one place later.
(b) hidden after a clean prefill: in the second forward alone; the cache holds what the first rows read from the sink.
(c) hidden after a clean prefill, with every row computed again at every step: the prefill's rows lose the sink too. That is
    (a) by construction; a few steps are really recomputed, and the largest difference to (a) is printed.
Which key: position 0; the key that draws most of each head in the clean prefill (per row that sees it); a random key per head.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

import sinkscope as sk
from sinkscope.attention.call import Call
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.models import Model
from sinkscope.statistics import bootstrap
from sinkscope.study.units.likelihood import held_out

OUT = Path(__file__).parents[2] / "lab" / "results" / "protocols"
PROTOCOLS = {"clean": (), "a": (0, 1), "b": (1,)}  # in which of the two forwards the key is hidden
KEYS = 16  # keys whose share is shown


@dataclass(frozen=True)
class Picked(Selector):
    """The same keys hidden in every forward; picks: layer → bool [head, key]."""

    picks: dict[int, Tensor] = field(default_factory=dict, hash=False)

    @property
    def is_noop(self) -> bool:
        return not self.picks

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        mine = self.picks[call.layer]
        return torch.nn.functional.pad(mine, (0, call.keys - mine.shape[-1]))[None].expand(len(call.q), -1, -1)


def texts(model: Model, data: Path | None, count: int) -> Iterator[tuple[str, Tensor, int]]:
    """Source, ids [1, position] and how many of them are read before the key is hidden."""
    if model.name.startswith("tiny"):
        for kind in ("arithmetic", "programs"):
            for problem in sk.tasks.problems(kind, n=count, split="test", seed=11):
                prompt = model.encode(problem.prompt)
                answer = model.require_tokenizer()(problem.answer, return_tensors="pt", add_special_tokens=False)[
                    "input_ids"
                ]
                yield kind, torch.cat([prompt, answer], 1), prompt.shape[1]
        return
    for passage in held_out()[:count]:
        yield "passage", model.encode(passage.strip(), chat=False)[:, :97], 48
    if data is not None:
        for line in (data / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()[:count]:
            row = json.loads(line)
            ids = model.encode(f"Question: {row['question']}\nAnswer: {row['answer']}", chat=False)[:, :97]
            yield "gsm8k", ids, min(48, ids.shape[1] // 2)


def sinks_of(model: Model, ids: Tensor, read: int, draw: np.random.Generator) -> dict[str, dict[int, Tensor]]:
    """Key choice → picks, from the clean prefill: what each key drew per row that sees it (at least four rows)."""
    with sk.observe(model) as seen:
        model.logits(ids[:, :read])
    rows = torch.arange(read, 0, -1).clamp(min=4)
    chosen: dict[str, dict[int, Tensor]] = {"position 0": {}, "top key": {}, "random key": {}}
    for layer, received in zip(seen.layers, seen.received, strict=True):
        score = received.sum(2)[0] / rows  # [head, key]
        heads = len(score)
        top = torch.zeros_like(score, dtype=torch.bool).scatter(1, score.argmax(1, keepdim=True), True)
        others = torch.tensor([[draw.choice(np.flatnonzero(~row.numpy()))] for row in top])
        chosen["position 0"][layer] = (torch.arange(read) == 0).expand(heads, -1)
        chosen["top key"][layer] = top
        chosen["random key"][layer] = torch.zeros_like(top).scatter(1, others, True)
    return chosen


@torch.inference_mode()
def score(
    model: Model, ids: Tensor, read: int, picks: dict[int, Tensor], hidden: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """log p of the scored tokens [token], whether each is the model's first choice, and shares [layer, key] in their rows."""
    cache = DynamicCache(config=model.config)
    parts = (ids[:, :read], ids[:, read:-1])
    rows = []
    for number, part in enumerate(parts):
        with sk.intervene(model, *([Picked(picks)] if number in hidden else [])), sk.observe(model) as seen:
            output = model.module(part, past_key_values=cache, use_cache=True)
        rows.append(output.logits[:, -1:] if number == 0 else output.logits)
    logits = torch.cat(rows, 1)[0].float()  # row i speaks for token read + i
    target = ids[0, read:]
    logs = logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
    shares = torch.stack(
        [received.sum((1, 2))[0] / received.shape[1] / parts[1].shape[1] for received in seen.received]
    )
    return logs[1:], (logits.argmax(-1) == target)[1:], shares  # the first token is predicted by a row of the prefill


@torch.inference_mode()
def recomputed(model: Model, ids: Tensor, read: int, picks: dict[int, Tensor], steps: int = 4) -> Tensor:
    """log p of the first scored tokens under (c): every row computed again, without a cache, the key hidden from all."""
    logs = []
    for column in range(read + 1, min(read + 1 + steps, ids.shape[1])):
        with sk.intervene(model, Picked(picks)):
            row = model.logits(ids[:, :column])[0, -1].float().log_softmax(-1)
        logs.append(row[ids[0, column]])
    return torch.stack(logs)


def measure(name: str, data: Path | None, count: int) -> dict[str, object]:
    """Everything about one model."""
    model = sk.load(name)
    draw = np.random.default_rng(0)
    found: dict[str, dict[str, list[float]]] = {}
    shares: dict[str, list[np.ndarray]] = {}
    apart, sources = 0.0, []
    for source, ids, read in texts(model, data, count):
        sources.append(source)
        chosen = sinks_of(model, ids, read, draw)
        for choice, picks in chosen.items():
            for protocol, hidden in PROTOCOLS.items():
                label = "clean" if protocol == "clean" else f"{choice}, ({protocol})"
                if protocol == "clean" and choice != "position 0":
                    continue
                logs, right, share = score(model, ids, read, picks, hidden)
                entry = found.setdefault(label, {"nats": [], "right": []})
                entry["nats"].append(float(logs.double().mean()))
                entry["right"].append(float(right.double().mean()))
                shares.setdefault(label, []).append(
                    np.concatenate([share.numpy()[:, :KEYS], share.numpy().max(1, keepdims=True)], 1)
                )
                if protocol == "a" and choice == "position 0" and len(sources) <= 3:
                    steps = recomputed(model, ids, read, picks)
                    apart = max(apart, float((steps - logs[: len(steps)]).abs().max()))
    return {
        "model": name, "texts": len(sources), "sources": {s: sources.count(s) for s in dict.fromkeys(sources)},
        "recomputed_against_a": apart, "rows": [row_of(label, entry, found["clean"]) for label, entry in found.items()],
        "shares": {label: np.mean(rows, 0).round(5).tolist() for label, rows in shares.items()},
    }  # fmt: skip


def row_of(label: str, entry: dict[str, list[float]], clean: dict[str, list[float]]) -> dict[str, object]:
    row: dict[str, object] = {
        "label": label,
        "nats": float(np.mean(entry["nats"])),
        "top1": float(np.mean(entry["right"])),
    }
    for what in ("nats", "right"):
        change = (np.array(entry[what]) - np.array(clean[what])).tolist()
        low, high = bootstrap(change, 2000, 0)
        row[f"{what}_change"] = [float(np.mean(change)), low, high]
    return row


def as_markdown(results: list[dict[str, object]]) -> str:
    lines = [
        "# Since when is the sink hidden?",
        "",
        "Made by `python -m lab.experiments.protocols --data DATA --write`; its docstring describes the protocols.",
        "",
    ]
    for found in results:
        told = ", ".join(f"{count} {source}" for source, count in found["sources"].items())  # type: ignore[attr-defined]
        lines += [f"## {found['model']} ({found['texts']} texts: {told})", "",
                  f"(c), recomputed step by step, is within {found['recomputed_against_a']:.0e} nats per token of (a).", "",
                  "| hidden | nats per token | change [95 %] | top-1 right | change [95 %] | share on key 0, 1, 2 | largest |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        for row in found["rows"]:  # type: ignore[attr-defined]
            share = np.array(found["shares"][row["label"]]).mean(0)  # type: ignore[index]
            nats, right = ("{:+.3f} [{:+.3f}, {:+.3f}]".format(*row[f"{what}_change"]) for what in ("nats", "right"))
            keys = ", ".join(f"{value:.3f}" for value in share[:3])
            lines.append(
                f"| {row['label']} | {row['nats']:.3f} | {nats} | {row['top1']:.3f} | {right} | {keys} | {share[-1]:.3f} |"
            )
        lines.append("")
    return "\n".join(lines)


def draw_figure(results: list[dict[str, object]], path: Path) -> None:
    """Share of attention by key, before and after: where the sink goes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(5.2 * len(results), 3.4), squeeze=False)
    for axis, found in zip(axes[0], results, strict=True):
        for label, colour, marker in (
            ("clean", "#444444", "o"),
            ("position 0, (a)", "#d55e00", "s"),
            ("position 0, (b)", "#0072b2", "^"),
        ):
            share = np.array(found["shares"][label]).mean(0)[:KEYS]  # type: ignore[index]
            name = {
                "clean": "nothing hidden",
                "position 0, (a)": "key 0 hidden from the first row",
                "position 0, (b)": "key 0 hidden after a clean prefill",
            }[label]
            axis.plot(range(KEYS), share, marker=marker, color=colour, label=name, markersize=4)
        axis.set(title=str(found["model"]), xlabel="key", ylabel="share of attention, all layers")
        axis.set_xticks(range(0, KEYS, 3))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "smollm2-135m"])
    parser.add_argument("--data", type=Path, help="folder with gsm8k_test.jsonl")
    parser.add_argument("--count", type=int, default=16, help="texts per source")
    parser.add_argument("--write", action="store_true", help="into lab/results/protocols")
    given = parser.parse_args()
    results = [measure(name, given.data, given.count) for name in given.models]
    print(as_markdown(results))
    if given.write:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "protocols.md").write_text(as_markdown(results), encoding="utf-8")
        (OUT / "protocols.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draw_figure(results, OUT / "protocols.png")


if __name__ == "__main__":
    main()
