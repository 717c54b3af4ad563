"""Are sink heads idle heads?

How likely answers are without each head, against how much of its attention goes to a sink:

    python -m lab.experiments.heads tiny-llada tiny-llama -n 32 --out FOLDER [--heads 8]

A head's importance is what the log-likelihood of the worked answers of n problems (nats per token) loses when the head puts
out nothing (`ZeroAttention`). An autoregressive model reads the answer token by token. Half of the tokens of a diffusion
model's answer are masked, in --maskings fixed ways that are the same for every head. A head's sink share is the share of its
attention on its top key. Silencing a head leaves the layers below it as they were, so the forward starts at its layer, from
the untouched states. Writes MODEL.json with every head, and the rank correlation of the two with a bootstrap interval
over heads. The same is given within layers, since late layers differ from early ones in both. MODEL.yaml is a study that
confirms the most and the least important heads by answers (n = 100), each with its random control.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.stats import rankdata, spearmanr
from torch import Tensor

import sinkscope as sk
from sinkscope.interventions.hooks import find_places, layers_of
from sinkscope.models import pad


class Answers:
    """Problems with their worked answers, as the model reads them."""

    def __init__(self, model: sk.Model, task: str, count: int, maskings: int) -> None:
        self.model = model
        found = list(sk.tasks.problems(task, n=count, split="test", seed=0))
        tokenizer = model.require_tokenizer()
        rows, sizes = [], []
        for problem in found:
            prompt = model.encode(problem.prompt)
            answer = torch.tensor([tokenizer.encode(problem.answer, add_special_tokens=False)])
            rows.append(torch.cat([prompt, answer], 1))
            sizes.append(answer.shape[1])
        self.ids, self.mask = pad(rows, model)
        columns = torch.arange(self.ids.shape[1])
        self.answer = columns >= self.ids.shape[1] - torch.tensor(sizes)[:, None]  # bool [problem, position]
        generator = torch.Generator().manual_seed(0)
        self.hidden = [
            self.answer & (torch.rand(self.ids.shape, generator=generator) < 0.5)
            for _ in range(1 if model.causal else maskings)
        ]
        self.tail = max(sizes) + 1  # columns whose logits are read: the answers stand at the right end
        self.entering: list[list[Tensor]] = []  # masking → layer → what enters it untouched

    @torch.inference_mode()
    def likelihood(self, start: int = 0) -> np.ndarray[Any, Any]:
        """Mean log-likelihood per scored token, [problem]; layers below `start` are taken from the untouched forward."""
        total, count = torch.zeros(len(self.ids)), torch.zeros(len(self.ids))
        for number, hidden in enumerate(self.hidden):
            scored = self.answer if self.model.causal else hidden
            shown = self.ids if self.model.causal else self.ids.masked_fill(hidden, self.model.mask_id or 0)
            with tail_of_logits(self.model, self.tail), ExitStack() as stack:
                if start:
                    stack.enter_context(started_at(self.model, start, self.entering[number][start]))
                elif number == len(self.entering):
                    self.entering.append(stack.enter_context(kept_states(self.model)))
                logs = self.model.logits(shown, self.mask).float().log_softmax(-1)
            if self.model.shift:
                logs = logs.roll(1, 1)  # row i predicts token i + 1
            own = logs.gather(-1, self.ids[:, -self.tail :, None])[..., 0]
            total += (own * scored[:, -self.tail :]).sum(1)
            count += scored.sum(1)
        return (total / count.clamp(min=1)).double().numpy()

    @torch.inference_mode()
    def sink_shares(self) -> Tensor:
        """[layer, head]: share of attention on the top key, mean over problems."""
        shown = self.ids if self.model.causal else self.ids.masked_fill(self.hidden[0], self.model.mask_id or 0)
        with sk.observe(self.model) as seen:
            self.model.logits(shown, self.mask)
        queries = self.mask.sum(1)[:, None]
        return torch.stack([(received.sum(2).amax(-1) / queries).mean(0) for received in seen.received])


@contextmanager
def silenced(model: sk.Model, layer: int, head: int) -> Iterator[None]:
    """What `ZeroAttention` does to one head; that asks for a call of every layer, and the layers below are skipped here."""
    (place,) = find_places(model.module, f"layers.{layer}.z")

    def act(_: Any, states: tuple[Tensor]) -> tuple[Tensor]:
        heads = place.split(states[0].clone())
        assert heads[:, :, head].any()  # the head puts something out
        heads[:, :, head] = 0
        return (heads.flatten(-2),)

    hook = place.part.register_forward_pre_hook(act)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def tail_of_logits(model: sk.Model, columns: int) -> Iterator[None]:
    """The output head sees the last columns alone; on all of them it costs as much as half of a small model's layers."""
    head: Any = model.module.get_output_embeddings()  # type: ignore[operator]
    hook = head.register_forward_pre_hook(lambda _, states: (states[0][:, -columns:],))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def kept_states(model: sk.Model) -> Iterator[list[Tensor]]:
    """What enters each layer, [batch, position, width]."""
    found: list[Tensor] = []
    layers = layers_of(model.module)
    hooks = [layer.register_forward_pre_hook(lambda _, states: found.append(states[0])) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def started_at(model: sk.Model, start: int, entering: Tensor) -> Iterator[None]:
    """Layers below `start` hand on what enters it."""
    layers = list(layers_of(model.module))[:start]
    for layer in layers:
        layer.forward = lambda *_, **__: entering
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def study(name: str, given: Any) -> dict[str, Any]:
    model = sk.load(name)
    answers = Answers(model, given.task, given.n, given.maskings)
    plain, shares = answers.likelihood(), answers.sink_shares()
    layers, heads = shares.shape
    chosen = [(layer, head) for layer in range(layers) for head in range(heads)]
    if given.heads is not None:
        chosen = sorted(random.Random(0).sample(chosen, min(given.heads, len(chosen))))
    rows, start = [], time.process_time()
    for layer, head in chosen:
        with silenced(model, layer, head):
            loss = plain - answers.likelihood(layer)
        error = float(loss.std(ddof=1) / len(loss) ** 0.5) if len(loss) > 1 else None
        rows.append(
            {
                "layer": layer,
                "head": head,
                "loss": float(loss.mean()),
                "error": error,
                "sink": float(shares[layer, head]),
            }
        )
    minutes = (time.process_time() - start) / 60
    return {
        "model": model.identity(), "task": given.task, "problems": given.n, "maskings": len(answers.hidden),
        "likelihood": float(plain.mean()), "heads": rows, **correlations(rows), "core minutes": minutes,
    }  # fmt: skip


def correlations(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Spearman's correlation of loss and sink share over heads, and within layers, each with a 95 % bootstrap interval."""
    layers, losses, sinks = (np.array([row[what] for row in rows]) for what in ("layer", "loss", "sink"))

    def ranked(values: np.ndarray[Any, Any], drawn: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """From 0 to 1 within each layer."""
        found = np.zeros(len(values))
        for layer in set(drawn.tolist()):
            found[drawn == layer] = (rankdata(values[drawn == layer]) - 0.5) / (drawn == layer).sum()
        return found

    def both(at: np.ndarray[Any, Any]) -> tuple[float, float]:
        within = (ranked(values[at], layers[at]) for values in (losses, sinks))
        return spearmanr(losses[at], sinks[at]).statistic, spearmanr(*within).statistic

    if len(rows) < 4:
        return {"correlation": None, "interval": None, "within layers": None, "within layers interval": None}
    draws = [both(draw) for draw in np.random.default_rng(0).integers(0, len(rows), (2000, len(rows)))]
    (over, within), bounds = both(np.arange(len(rows))), np.nanpercentile(np.array(draws), [2.5, 97.5], axis=0)
    return {
        "correlation": float(over), "interval": bounds[:, 0].tolist(),
        "within layers": float(within), "within layers interval": bounds[:, 1].tolist(),
    }  # fmt: skip


def group(order: list[dict[str, Any]], heads: int, count: int) -> list[list[int]]:
    """The first `count` heads of an order, but at most half of a layer's, so that as many others are left for the control."""
    taken: list[list[int]] = []
    for row in order:
        if len(taken) < count and sum(layer == row["layer"] for layer, _ in taken) < heads // 2:
            taken.append([row["layer"], row["head"]])
    return taken


def confirmation(name: str, found: dict[str, Any], task: str) -> dict[str, Any]:
    """A study file: the ten (at most a quarter of all) most and least important heads at once, and as many others each."""
    order, heads = sorted(found["heads"], key=lambda row: -row["loss"]), found["model"]["heads"]
    count = min(10, len(order) // 4)
    groups = [group(one, heads, count) for one in (order, order[::-1])]
    conditions = [{"name": "zero_attention", "heads": taken, **of} for taken in groups for of in ({}, {"of": "random"})]
    return {
        "name": f"heads-{Path(name).name}", "models": [name], "seed": 0, "split": "test",
        "about": "Are the heads that likelihood calls important the ones that answers need? The most and the least important.",
        "tasks": [{"name": task, "problems": 100}], "decode": {"stop": "eos"},
        "conditions": ["none", "noop", *conditions],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--maskings", type=int, default=2)
    parser.add_argument("--heads", type=int, help="only so many heads, drawn at random")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        found = study(name, given)
        path = given.out / f"{Path(name).name}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        study_file = path.with_suffix(".yaml")
        run = f"# Run: sinkscope study {study_file} -o runs/heads-{path.stem}\n"
        study_file.write_text(run + yaml.safe_dump(confirmation(name, found, given.task), sort_keys=False))
        print(
            f"{name}: rank correlation of loss and sink share {found['correlation']} {found['interval']}, "
            f"within layers {found['within layers']} {found['within layers interval']}"
        )
        print(f"{name}: {found['core minutes']:.2f} core minutes for {len(found['heads'])} heads")


if __name__ == "__main__":
    main()
