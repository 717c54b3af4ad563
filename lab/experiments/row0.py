"""Does row 0 alone decide, by surgery on the mask of a model: `python -m lab.experiments.row0 MODEL…`.

Four masks for one set of weights: causal; causal with row 0 seeing all; bidirectional; bidirectional with row 0 seeing only itself.
A sink may stand at position 0 because that row cannot be told apart (it sees only itself). Then the third mask's sink comes back
under the fourth, and the first one's goes under the second. Measured of every mask: the share of attention on position 0, heads
with a key above 0.3, the largest key's share. Also the mean log-likelihood per token of true answers behind their questions.

The likelihood of a causal mask is the chain rule, each token behind its own prefix: row 0 sees all tokens so far and none of those
that are asked for. Of a bidirectional one it is that of single masked tokens of the answer, all
others known (an ARM that never learned its mask token is only measured by attention there). So compare a mask with its own
surgery, not across directions. MODEL: zoo names or folders of adapters, such as the checkpoints that a training kept; give them
in the order of training to follow the adaptation.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.models.model import Model
from sinkscope.statistics import bootstrap
from sinkscope.tasks import problems

OUT = Path("lab/results/pair/row0.md")
MASKS = ("causal", "causal, row 0 sees all", "bidirectional", "bidirectional, row 0 sees itself")
STRONG, FEWEST_ROWS = 0.3, 4


def mask_of(name: str, size: int) -> Tensor:
    """bool [1, 1, query, key], True where a query may look."""
    may = torch.ones(size, size, dtype=torch.bool)
    if name.startswith("causal"):
        may = may.tril()
    if name.endswith("sees all"):
        may[0] = True
    if name.endswith("sees itself"):
        may[0, 1:] = False
    return may[None, None]


@torch.inference_mode()
def logits(model: Model, ids: Tensor, may: Tensor) -> Tensor:
    """[batch, position, vocab] under a mask [batch | 1, 1, query, key], whatever direction the model was made for."""
    bias = torch.zeros(may.shape, dtype=model.dtype).masked_fill(~may, torch.finfo(model.dtype).min)
    output: Any = model.module(ids, attention_mask=bias.expand(len(ids), -1, -1, -1), use_cache=False, is_causal=False)
    found: Tensor = output.logits
    return found


def attention(model: Model, ids: Tensor, name: str) -> dict[str, float]:
    """Shares per row that sees a key, over layers and heads of one text."""
    with sk.observe(model.module) as seen:
        logits(model, ids, mask_of(name, ids.shape[1]))
    received = torch.stack([one.sum(2)[0] for one in seen.received])  # [layer, head, key]
    rows = mask_of(name, ids.shape[1])[0, 0].sum(0)
    share = (received / rows).masked_fill(rows < FEWEST_ROWS, 0.0)
    largest, place = share.max(-1)
    return {
        "position_0": float(share[..., 0].mean()), "strong": float((largest > STRONG).float().mean()),
        "largest": float(largest.mean()), "largest_at_0": float((place == 0).float().mean()),
    }  # fmt: skip


def likelihood(model: Model, ids: Tensor, start: int, name: str) -> float | None:
    """Mean log-likelihood of the tokens from `start` on, in nats per token."""
    places, may = torch.arange(start, ids.shape[1]), mask_of(name, ids.shape[1])
    if model.causal != name.startswith("causal") or (not model.causal and model.mask_id is None):
        return None  # it never learned to answer so
    asked, copies = ids.repeat(len(places), 1), may.repeat(len(places), 1, 1, 1)  # one row of the batch per token
    if model.causal:
        copies[:, :, 0] &= (torch.arange(ids.shape[1]) < places[:, None])[:, None]  # row 0 sees what is written so far
    elif model.mask_id is not None:
        asked[torch.arange(len(places)), places] = model.mask_id
    sources = places - 1 if model.shift else places
    rows = torch.cat([
        logits(model, part, seen)[torch.arange(len(part)), where]
        for part, seen, where in zip(asked.split(12), copies.split(12), sources.split(12), strict=True)
    ])  # fmt: skip
    return float(rows.float().log_softmax(-1).gather(1, ids[0, places][:, None]).mean())


def look(name: str, count: int, dtype: str) -> pl.DataFrame:
    model = sk.load(name, dtype=dtype)
    tokenizer = model.require_tokenizer()
    found = []
    for number, problem in enumerate(problems("arithmetic", n=count, difficulty=3)):
        prompt = model.encode(problem.prompt)
        answer = torch.tensor([tokenizer(problem.answer, add_special_tokens=False)["input_ids"]])
        ids = torch.cat([prompt, answer], 1)
        for mask in MASKS:
            value = likelihood(model, ids, prompt.shape[1], mask)
            found.append({"model": name, "mask": mask, "problem": number, "nats": value, **attention(model, ids, mask)})
    return pl.DataFrame(found, schema_overrides={"nats": pl.Float64})


def line(table: pl.DataFrame) -> str:
    cells = []
    for name, scale in (("position_0", 100), ("largest_at_0", 100), ("largest", 100), ("strong", 100), ("nats", 1)):
        values = [scale * value for value in table[name].drop_nulls().to_list()]
        low, high = bootstrap(values)
        digits = 1 if scale == 100 else 3
        cells.append(f"{sum(values) / len(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" if values else "–")
    return f"| {Path(table['model'][0]).name} | {table['mask'][0]} | {table.height} | {' | '.join(cells)} |"


def change(table: pl.DataFrame) -> str:
    """What the surgery changes in the likelihood of the same texts, for a model in the direction it answers in."""
    with_nats = table.drop_nulls("nats")
    masks = with_nats["mask"].unique(maintain_order=True)
    before, after = (with_nats.filter(pl.col("mask") == mask).sort("problem")["nats"] for mask in masks)
    values = (after - before).to_list()
    low, high = bootstrap(values)
    return (
        f"| {Path(table['model'][0]).name} | {masks[1]} | {sum(values) / len(values):+.3f} [{low:+.3f}, {high:+.3f}] |"
    )


def page(table: pl.DataFrame, command: str) -> str:
    head = ["model", "mask", "n", "% on position 0", "% of heads whose largest key it is", "% on the largest key",
            "% of heads with a key above 0.3", "nats per token"]  # fmt: skip
    by_model = [part for _, part in table.group_by("model", maintain_order=True)]
    text = ["# Surgery on row 0", "", f"Made by `{command}`; intervals of 95 % over texts.", "",
            *__doc__.strip().split("\n")[2:], "",
            f"| {' | '.join(head)} |", "|" + "---|" * len(head),
            *(line(part) for _, part in table.group_by("model", "mask", maintain_order=True)), "",
            "What the surgery changes in nats per token, text by text:", "",
            "| model | surgery | change [95 %] |", "|---|---|---|", *map(change, by_model), ""]  # fmt: skip
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2-135m", "smol-llama", "smol-dream"])
    parser.add_argument("-n", type=int, default=50, help="sums of three steps with their worked answers")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for name in given.models:
        tables.append(look(name, given.n, given.dtype))
        print(*(line(part) for _, part in tables[-1].group_by("mask", maintain_order=True)), sep="\n", flush=True)
    table = pl.concat(tables)
    command = f"python -m lab.experiments.row0 {' '.join(given.models)} -n {given.n}"
    given.out.write_text(page(table, command), encoding="utf-8")
    table.write_parquet(given.out.with_suffix(".parquet"), compression="zstd")


if __name__ == "__main__":
    main()
