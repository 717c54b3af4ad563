"""Do sinks, their strength and what masking costs stay when weights are quantised? `python -m lab.experiments.quantised -n 100`.

Models: the pair smol-llama and smol-dream. Weights of the linear layers: float32, bfloat16, int8 (a scale per row), int4 (a scale
and a zero point per 32 inputs), packed by `sk.load(…, quantization=…)` and unpacked again to float32, so that only the weights
differ and a step costs the same. Measured of each, with intervals of 95 %:

- sinks over fixed texts, a question with its worked answer (diffusion: every second token of the answer masked): heads with a
  strong sink (more than 0.3 of what each query has to give), the largest key's share, and where strong sinks stand;
- drift from the float32 weights over the same texts: KL, likeliest token, attention that moved, strong sinks kept;
- answers to sums with nothing masked, with strong sinks masked, with the top key of every head masked.

Every cell is a JSON file that is written after each batch: rerun the command to resume.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sinkscope as sk
from sinkscope.attention.forward import seeded
from sinkscope.decoding import resolve_settings
from sinkscope.files import write_file
from sinkscope.models.model import Model, pad
from sinkscope.models.weights import SCHEMES, unpack
from sinkscope.statistics import bootstrap, paired, wilson
from sinkscope.tasks.problem import Problem
from sinkscope.tracing.states import FEWEST_ROWS, drift

OUT = Path("lab/results/quantised")
WEIGHTS = ("float32", "bfloat16", *SCHEMES)
STRONG, BATCH = 0.3, 8
CONDITIONS: dict[str, Any] = {
    "none": None,
    "strong sinks": sk.MaskSinks(k=1, above=sk.HeadShare(STRONG)),
    "top key": sk.MaskSinks(k=1),
}


def load_as(name: str, weights: str) -> Model:
    """The model with the weights of its linear layers rounded so, and stored as float32 again."""
    model = sk.load(name, dtype="float32", quantization=weights if weights in SCHEMES else None)
    ends: Any = model.module
    with torch.no_grad():
        for part in model.module.modules():
            if isinstance(part, nn.Linear) and part is not ends.get_output_embeddings():
                plain = unpack(part.weight)
                plain = plain.bfloat16().float() if weights == "bfloat16" else plain
                part.weight = nn.Parameter(plain, requires_grad=False)
    return model


def problems_of(count: int) -> list[Problem]:
    return list(sk.tasks.problems("arithmetic", n=count, split="test", seed=0))


def text_of(model: Model, problem: Problem) -> Tensor:
    """Question and worked answer as ids [1, position]; a diffusion model finds every second token of the answer masked."""
    prompt = model.encode(problem.prompt)
    answer = torch.tensor([model.require_tokenizer()(problem.answer, add_special_tokens=False)["input_ids"]])
    if model.mask_id is not None:
        answer[:, 1::2] = model.mask_id
    return torch.cat([prompt, answer], 1)


def sinks_of(model: Model, ids: Tensor) -> dict[str, float]:
    """Over all layers and heads of one text; a key is judged by the queries that see it."""
    with sk.observe(model) as seen:
        model.logits(ids)
    received = torch.stack([one.sum(2)[0] for one in seen.received])  # [layer, head, key]
    width = ids.shape[1]
    rows = torch.arange(width, 0, -1) if model.causal else torch.full((width,), width)
    largest, place = (received / rows).masked_fill(rows < FEWEST_ROWS, 0.0).max(-1)
    strong = largest > STRONG
    counts = place[strong].bincount(minlength=width)  # strong sinks by their position
    most = int(counts.argmax())
    shares = counts / counts.sum().clamp(min=1)
    return {
        "strong": float(strong.float().mean()), "largest": float(largest.mean()), "strong_at_0": float(shares[0]),
        "place": most, "strong_at_place": float(shares[most]),
    }  # fmt: skip


class Cell:
    """Rows by problem in a JSON file, which is written whole after each batch."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.path = folder / f"{'-'.join(names).replace(' ', '_')}.json"
        kept: dict[str, Any] = {"rows": [], "seconds": 0.0}  # of the processor
        if self.path.is_file():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        self.rows: dict[int, dict[str, Any]] = {row["problem"]: row for row in kept["rows"]}
        self.seconds = float(kept["seconds"])

    def left(self, count: int) -> list[int]:
        return [number for number in range(count) if number not in self.rows]

    def add(self, rows: list[dict[str, Any]], seconds: float) -> None:
        self.rows |= {row["problem"]: row for row in rows}
        self.seconds += seconds
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ordered = [self.rows[number] for number in sorted(self.rows)]
        write_file(self.path, json.dumps({"rows": ordered, "seconds": round(self.seconds, 1)}, indent=0) + "\n")

    def column(self, name: str, count: int) -> list[Any]:
        return [self.rows[number][name] for number in range(count) if self.rows[number].get(name) is not None]


def answers(model: Model, change: Any, asked: list[tuple[int, Problem]]) -> list[dict[str, Any]]:
    """One batch, where a diffusion model commits whatever it is sure of and stops at its end, as in the study `pair`."""
    ids, mask = pad([model.encode(problem.prompt) for _, problem in asked], model)
    words: dict[str, Any] = {"noise": "per_row"}
    if not model.causal:
        words |= {"commit": "threshold", "threshold": 0.9, "steps": None, "stop": "eos"}
    settings = resolve_settings(model.defaults, model, ids.shape[1], words)
    with ExitStack() as stack:
        stack.enter_context(seeded(tuple(number for number, _ in asked)))
        if change is not None:
            stack.enter_context(sk.intervene(model, change))
        done = sk.decode(model, ids, settings, attention_mask=mask, history=False)
    texts = [model.decode_text(tokens) for tokens in done.returned]
    return [
        {"problem": number, "correct": bool(problem.check(text)), "text": text}
        for (number, problem), text in zip(asked, texts, strict=True)
    ]


def measure(name: str, weights: str, count: int, texts: int, folder: Path) -> None:
    """All cells of one model in one kind of weights that are not there yet."""
    asked, model = problems_of(max(count, texts)), None
    sinks = Cell(folder, name, weights, "sinks")
    if left := sinks.left(texts):
        model, plain = load_as(name, weights), load_as(name, "float32")
        for number in left:
            started, ids = time.process_time(), text_of(plain, asked[number])
            row = {"problem": number, **sinks_of(model, ids), **drift(plain, model, ids, STRONG)._asdict()}
            sinks.add([row], time.process_time() - started)
        del plain
    for condition, change in CONDITIONS.items():
        cell = Cell(folder, name, weights, condition)
        waiting = sorted(cell.left(count), key=lambda number: (len(asked[number].prompt), number))  # little is padded
        for first in range(0, len(waiting), BATCH):
            model = model or load_as(name, weights)
            started = time.process_time()
            rows = answers(model, change, [(number, asked[number]) for number in waiting[first : first + BATCH]])
            cell.add(rows, time.process_time() - started)
            print(f"{name}, {weights}, {condition}: {len(cell.rows)} of {count}, {cell.seconds:.0f} s", flush=True)


def page(names: list[str], kinds: list[str], count: int, texts: int, folder: Path, command: str) -> str:
    """Both tables."""
    lines = [
        "# Sinks under quantised weights",
        "",
        f"Made by `{command}`.",
        "",
        *(_conclusions(names, kinds, count, texts, folder) if "float32" in kinds else ()),
        *(__doc__ or "").strip().split("\n")[2:],
        "",
    ]
    lines += ["## Sinks and drift", "", f"{texts} texts per row.", ""]
    lines += _header(
        "model", "weights", "% of heads with a strong sink", "% on the largest key", "% of strong sinks at position 0",
        "% at the commonest position", "which", "KL from float32, nats", "% same likeliest token", "% of attention moved",
        "% of strong sinks kept",
    )  # fmt: skip
    for name, weights in ((name, weights) for name in names for weights in kinds):
        cell = Cell(folder, name, weights, "sinks")

        def means(*columns: str, cell: Cell = cell) -> str:
            return " | ".join(_mean(cell.column(key, texts), 1 if key == "kl" else 100) for key in columns)

        places = Counter(cell.column("place", texts)).most_common(2)
        where = ", ".join(f"{place} ({count} texts)" for place, count in places)
        found = means("strong", "largest", "strong_at_0", "strong_at_place")
        lines.append(f"| {name} | {weights} | {found} | {where} | {means('kl', 'top1', 'moved', 'sinks_kept')} |")
    lines += ["", "## Answers to sums", "", "Differences are paired on the same problems, in points.", ""]
    lines += _header("model", "weights", "masked", "right", "against nothing masked", "against float32")
    lines += list(_answers(names, kinds, count, folder))
    return "\n".join(lines) + "\n"


def _conclusions(names: list[str], kinds: list[str], count: int, texts: int, folder: Path) -> Iterator[str]:
    """What stays, model by model: strong sinks, and what each masking costs, against float32 on the same problems."""
    yield from ("What stays under packed weights, with 95 % intervals:", "")
    for name, weights in ((name, weights) for name in names for weights in kinds if weights in SCHEMES):
        kept = _mean(Cell(folder, name, weights, "sinks").column("sinks_kept", texts), 100)
        costs = []
        for condition in (one for one in CONDITIONS if one != "none"):
            cost = {
                kind: [
                    float(after) - float(before)
                    for before, after in zip(
                        *(Cell(folder, name, kind, one).column("correct", count) for one in ("none", condition)),
                        strict=True,
                    )
                ]
                for kind in ("float32", weights)
            }
            change = [after - before for before, after in zip(cost["float32"], cost[weights], strict=True)]
            points = [f"{100 * sum(cost[kind]) / count:+.0f}" for kind in (weights, "float32")]
            what = {"top key": "top keys"}.get(condition, condition)
            # A bootstrap has no width where nothing changed, and n problems cannot rule out a change of about 4 / n.
            between = _mean(change, 100) if any(change) else f"0, n = {count} leaves ± {400 / count:.0f}"
            costs.append(
                f"Masking {what} changes right answers by {points[0]} points, and by {points[1]} with float32 "
                f"(difference {between})."
            )
        yield f"- **{name}, {weights}.** {kept} % of the strong sinks stay. {' '.join(costs)}"
    yield ""


def _answers(names: list[str], kinds: list[str], count: int, folder: Path) -> Iterator[str]:
    for name, weights in ((name, weights) for name in names for weights in kinds):
        plain = Cell(folder, name, weights, "none").column("correct", count)
        for condition in CONDITIONS:
            right = Cell(folder, name, weights, condition).column("correct", count)
            low, high = wilson(sum(right), count)
            shown = f"{sum(right)} of {count} [{100 * low:.0f}, {100 * high:.0f}] %"
            whole = Cell(folder, name, "float32", condition).column("correct", count) if "float32" in kinds else []
            masked = "–" if condition == "none" else _difference(plain, right)
            packed = "–" if weights == "float32" or not whole else _difference(whole, right)
            yield f"| {name} | {weights} | {condition} | {shown} | {masked} | {packed} |"


def _header(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


def _mean(values: list[float], scale: int) -> str:
    if not values:
        return "–"
    low, high = bootstrap(values)
    digits = 1 if scale == 100 else 4
    return f"{scale * sum(values) / len(values):.{digits}f} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"


def _difference(before: list[bool], after: list[bool]) -> str:
    found = paired(before, after)
    return f"{100 * found.difference:+.0f} [{100 * found.difference_low:+.0f}, {100 * found.difference_high:+.0f}], p {found.p:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smol-llama", "smol-dream"])
    parser.add_argument("-n", type=int, default=100, help="sums")
    parser.add_argument(
        "--texts", type=int, default=None, help="texts for sinks and drift; default: at most 20 of the sums"
    )
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the cells; the page is written beside it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = min(given.n, 20) if given.texts is None else given.texts
    for name in given.models:
        for weights in given.weights:
            measure(name, weights, given.n, texts, given.out)
    kinds = "" if given.weights == list(WEIGHTS) else f" --weights {' '.join(given.weights)}"
    command = f"python -m lab.experiments.quantised {' '.join(given.models)} -n {given.n} --texts {texts}{kinds}"
    write_file(given.out.with_suffix(".md"), page(given.models, given.weights, given.n, texts, given.out, command))


if __name__ == "__main__":
    main()
