"""Traces made up for the page's tests: words on a canvas, heads whose sinks are put where we want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from playwright.sync_api import Page
from pydantic import TypeAdapter

from sinkscope import paper
from sinkscope.conditions import Condition
from sinkscope.decoding.settings import Decode
from sinkscope.results.claims import STATEMENTS
from sinkscope.results.rows import (
    TABLES,
    Cell,
    Claim,
    ClaimControl,
    Curve,
    Dynamics,
    Heads,
    Interval,
    LikelihoodChange,
    Mechanism,
    Results,
    RunFacts,
    TokenShare,
    Verdict,
)
from sinkscope.tracing import Trace

TEXT = "Tom has 12 apples and gives 5 to Ann . How many are left ? ⏎ 12 − 5 = 7 , so the answer is 7 . ⏎"
WORDS = TEXT.split()
MASK = 0
Opener = Callable[..., Page]  # (file, fragment, width, height, scheme) → the page, drawn


def until(page: Page, holds: str, seconds: float = 30) -> None:
    """Wait until an expression is true; asked from outside, since the page's policy lets nobody evaluate text in it."""
    end = time.monotonic() + seconds
    while not page.evaluate(holds):
        assert time.monotonic() < end, f"Still not true after {seconds} s: {holds}"
        page.wait_for_timeout(20)


def made_trace(
    model: str = "made-llada",
    steps: int = 16,
    layers: int = 3,
    heads: int = 4,
    prompt: int = 12,
    length: int = 16,
    way: str = "right",
    words: list[str] | None = None,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
    maps: bool = True,
    block: int = 8,
    **more: Any,
) -> Trace:
    """A diffusion trace in which even heads have a sink that goes `way` and odd heads one that stays at the start."""
    draw = torch.Generator().manual_seed(seed)
    texts = words or WORDS
    positions = prompt + length
    final = torch.tensor([1 + i % len(texts) for i in range(positions)])
    order = torch.arange(length) if way == "right" else torch.arange(length).flip(0)
    done_at = torch.full((positions,), -1, dtype=torch.int32)
    done_at[prompt + order] = (torch.arange(length) * steps // length).int()
    canvas = torch.stack([torch.where(done_at < step, final, MASK) for step in range(steps + 1)])
    kinds = torch.stack(
        [(canvas[:-1] == MASK), (canvas[:-1] != MASK) & (done_at >= 0), (done_at < 0).expand(steps, -1)], 1
    )  # [step, group, position]
    logits = torch.randn(layers, heads, 1, 1, positions, generator=draw) * 0.5
    logits = logits + torch.randn(layers, heads, steps, 1, positions, generator=draw) * 0.3
    logits = logits + torch.randn(layers, heads, 1, positions, positions, generator=draw) * 0.8
    front = torch.stack([(done_at < step).sum() for step in range(steps)]).clamp(max=positions - 1)
    if way == "left":
        front = (positions - 1 + prompt - front).clamp(0, positions - 1)
    for head in range(heads):
        for step in range(steps):
            sink = int(front[step]) if head % 2 == 0 else head // 2
            logits[:, head, step, :, sink] += 2.5 + 0.4 * torch.arange(layers)[:, None]
    attention = logits.softmax(-1)  # [layer, head, step, query, key]
    received = torch.einsum("lhtqk,tgq->tlhgk", attention, kinds.float())
    confidence = torch.rand(steps, positions, generator=draw)
    confidence[~kinds[:, 0]] = torch.nan
    start = prompt + torch.arange(steps) * length // steps // block * block
    vocabulary = {MASK: ("<|mask|>", "mask")} | {i: (text, kind_of(text)) for i, text in enumerate(texts, 1)}
    about: dict[str, Any] = {
        "prompt": " ".join(texts[i % len(texts)] for i in range(prompt)),
        "text": " ".join(texts[i % len(texts)] for i in range(prompt, positions)),
        "model": {"name": model, "family": model.rsplit("-", maxsplit=1)[-1]},
        **more,
    }
    return Trace(
        received=received.to(dtype), queries=kinds.sum(-1).int(), canvas=canvas, confidence=confidence,
        committed_at=done_at, blocks=torch.stack([start, start + block], 1).int(), prompt_length=prompt,
        settings=Decode.llada(length=length, block=block, steps=steps), backend="reference",
        vocabulary=vocabulary, mask_id=MASK, causal=False,
        maps=attention[0, :2].to(torch.float16) if maps else None, map_heads=((0, 0), (0, 1)) if maps else (), **about,
    )  # fmt: skip


def kind_of(text: str) -> str:
    if text == "⏎":
        return "newline"
    return "digit" if text.isdigit() else "word" if text.isalpha() else "punctuation"


def causal_trace(
    model: str = "made-llama", prompt: int = 10, length: int = 14, layers: int = 3, heads: int = 4
) -> Trace:
    """An autoregressive trace: one row a step after the prompt's, most of it on the first key."""
    draw = torch.Generator().manual_seed(1)
    positions = prompt + length
    canvas = torch.tensor([1 + i % len(WORDS) for i in range(positions)]).expand(length + 1, -1).clone()
    done_at = torch.cat([torch.full((prompt,), -1), torch.arange(length)]).int()
    received = torch.zeros(length, layers, heads, 3, positions)
    for step in range(length):
        rows = range(prompt) if step == 0 else [prompt + step - 1]
        for row in rows:
            logits = torch.randn(layers, heads, row + 1, generator=draw)
            logits[..., 0] += 4
            received[step, :, :, 2 if step == 0 else 1, : row + 1] += logits.softmax(-1)
    queries = torch.tensor([[0, 0, prompt]] + [[0, 1, 0]] * (length - 1)).int()
    return Trace(
        received=received.half(), queries=queries, canvas=canvas, confidence=torch.rand(length, positions, generator=draw),
        committed_at=done_at, blocks=torch.tensor([[prompt + t, prompt + t + 1] for t in range(length)]).int(),
        prompt_length=prompt, settings=Decode.autoregressive(length=length), model={"name": model, "family": "llama"},
        backend="reference", vocabulary={i: (text, kind_of(text)) for i, text in enumerate(WORDS, 1)}, mask_id=None,
        causal=True, prompt=" ".join(WORDS[:prompt]), text="",
    )  # fmt: skip


def made_results(**more: Any) -> dict[str, Any]:
    """results.json of a small study; more: tables in place of its own."""
    cells = []
    for model, drop in (("made-llada", 0.01), ("made-dream", 0.03), ("made-llama", 0.4)):
        for task, base in (("arithmetic", 0.9), ("recall", 0.8)):
            cells.append(made_cell(model, task, "none", 0, base, 0.0))
            for k in (1, 5, 10):
                cells.append(made_cell(model, task, "mask_sinks", k, base - drop * k**0.5, -drop * k**0.5))
                cells.append(made_cell(model, task, "mask_random", k, base - 0.005 * k, -0.005 * k, match="count"))
    tokens = [
        made_token(model, token, kind, share, base)
        for model in ("made-llada", "made-dream")
        for token, kind, share, base in (
            ("⏎", "newline", 0.37, 0.05),
            ("<|mask|>", "mask", 0.33, 0.4),
            (".", "punctuation", 0.05, 0.04),
        )
    ]
    verdicts = [
        Verdict("made-llada", "sinks", "moving", "Sinks of 83 % of the heads move."),
        Verdict("made-llama", "arm_like", "yes", "One masked sink costs 40 points."),
    ]
    about: dict[str, Any] = {
        "study": "made",
        "versions": {},
        "backend": "reference",
        "about": "",
        "units": 1,
        "conditions": 1,
        "margin": 5.0,
    }
    models: list[Mapping[str, Any]] = [
        {"name": name, "family": name.removeprefix("made-")} for name in ("made-llada", "made-dream", "made-llama")
    ]
    run = RunFacts(seed=0, models=models, **about)
    rows: dict[str, Any] = {
        **{name: [] for name in TABLES}, "cells": cells, "tokens": tokens, "mechanism": [made_mechanism()],
        "likelihood": made_scores(), "verdicts": verdicts, "claims": made_claims(),
        "curves": [row for model in ("made-llada", "made-dream", "made-llama") for row in made_curve(model)],
        "dynamics": [made_dynamics("made-llada", static=0.5, moving=0.5)], **more,
    }  # fmt: skip
    return Results(**rows, run=run).to_dict()


def typed(results: dict[str, Any]) -> Results:
    return TypeAdapter(Results).validate_python(results)


def made_token(model: str, token: str, kind: str, share: float, base: float) -> TokenShare:
    return TokenShare(
        model, "", "none", kind, share, share, share, base, share / base, 9, 3, "threshold", "uniform", token
    )


def made_curve(model: str) -> list[Curve]:
    points = [(unit, epsilon) for unit in ("uniform", "percent") for epsilon in (0.0, 3.0, 10.0)]
    return [Curve(model, "", "none", unit, epsilon, 0.9 + epsilon / 100) for unit, epsilon in points]


def made_dynamics(model: str, **shares: float) -> Dynamics:
    heads: dict[str, Any] = {item.name: shares.get(item.name, 0.0) for item in fields(Heads)}
    return Dynamics(
        model=model, setting="", condition="none", generations=3, **heads, sinks_found=9, non_sinks=0.9, places={}, rules=[],
        layers=[], rule="threshold", unit="uniform", epsilon=3.0,
    )  # fmt: skip


def made_claims() -> list[Claim]:
    """A cell of each verdict, and one with two conditions."""
    control = ClaimControl("mask random K=1", -0.5, -3.0, 2.0, 0.1)
    rows: list[tuple[str, str, str, Any, float]] = [
        ("one_sink", "made-llada", "mask sinks K=1", "supports", -2.0),
        ("one_sink", "made-llada", "mask sinks K=1 as run", "undecided", -5.0),
        ("one_sink", "made-dream", "mask sinks K=1", "contradicts", -30.0),
        ("arm_sink", "made-llama", "mask sinks K=1 by last row", "undecided", -40.0),
        ("sinks_exist", "made-llama", "none", "no test", 90.0),
    ]
    return [
        Claim(
            name=name, claim=STATEMENTS[name].sentence, paper_model=paper.STANDS_FOR.get(model), model=model, condition=condition,
            verdict=verdict, estimate=estimate, low=estimate - 3, high=estimate + 2.5, unit="points", n=400,
            dose=None if condition == "none" else 0.3, control=None if condition == "none" else control,
            because="Right answers may fall by at most 5 points.", limit=-5.0,
        )
        for name, model, condition, verdict, estimate in rows
    ]  # fmt: skip


def made_scores() -> list[LikelihoodChange]:
    """Two models scored on the same true answers, under two conditions."""
    top = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}
    return [
        LikelihoodChange(
            model, {**top, **words}, "made", 20, 400, "nats per token", -1.0, -1.1, -0.9, nats, nats - 0.1, nats + 0.05, 0.1,
            0.02, 0.4, 0.0, "answers", causal,
        )
        for model, causal, nats in (("made-llama", True, -0.6), ("made-dream", False, -0.2))
        for words in ({}, {"kinds": "content"})
    ]  # fmt: skip


def made_mechanism() -> Mechanism:
    gaps = {"confidence_sinks_gap": -0.12, "confidence_random_gap": 0.01}
    rows: dict[str, Any] = {name: Interval(value, value - 0.05, value + 0.05) for name, value in gaps.items()}
    return Mechanism("made-llada", 1, 20, "points", **rows)


def made_cell(model: str, task: str, name: str, k: int, accuracy: float, difference: float, **words: Any) -> Cell:
    accuracy = max(0.0, accuracy)
    ranked = {"rank": "clean", "rows": "all"} if name.startswith("mask") else {"rank": None, "rows": None}
    condition = {"name": name, "k": k, **ranked, **words}
    return Cell(
        model=model, family=model.removeprefix("made-"), causal="llama" in model, task=task, setting="", condition=condition,
        label=Condition.from_dict(condition).label, n=200, correct=round(200 * accuracy), accuracy=accuracy,
        low=max(0.0, accuracy - 0.04), high=min(1.0, accuracy + 0.03), difference=difference,
        difference_low=difference - 0.03, difference_high=difference + 0.03, p=0.02, lost=0, won=0, p_holm=0.02,
        key_share=0.1, mass_share=0.1, leak=0.0, confidence=0.5, controls={}, paper=None,
    )  # fmt: skip
