"""Long canvases with every kind of cache: a part of the page that benchmarks/decode.py writes.

    python benchmarks/decode.py --only caches

A random model of 98 M parameters, of which a few steps are timed, not whole answers; each case in a process of its own, on
one thread. What was measured is kept in lab/results/decode.json, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import sinkscope as sk
from attention import MASK, random_module
from decode import RESULTS, machine, process, resident
from sinkscope.decoding import Decode, SparseCache, decode
from sinkscope.models import Model
from sinkscope.models.families.llada import LLaDA

MEASURED = RESULTS.with_suffix(".json")  # delete it to measure anew
BLOCK = 32
TIMED = 4  # steps after a block's first one
CACHES: dict[str, tuple[Any, str]] = {  # and what its answer is, compared with decoding without a cache
    "none": (None, "exact"),
    "prefix": ("prefix", "approximate: keys before the block are as old as the block"),
    "dual": ("dual", "approximate: keys around the block are as old as the block"),
    "sparse, keep 1/4": (SparseCache(keep=0.25), "approximate: as dual, and three quarters of those keys are left out"),
    "sparse, keep 1/4, a look for 4 blocks": (
        SparseCache(keep=0.25, blocks=4),
        "approximate: as sparse, and keys outside may be four blocks old",
    ),
}
CANVASES = (512, 2048, 8192)
TRACED = (512, 2048)  # canvases at which traced generation is timed too


class EnoughError(Exception):
    """As many steps as were to be timed are done."""


def run_cache(cache: str, canvas: int, traced: bool) -> None:
    """In a process of its own: seconds of a block's first step, and of the steps after it."""
    torch.set_num_threads(1)
    model = Model(
        module=random_module(), tokenizer=None, family=LLaDA(), name="random", mask_id=MASK, shift=False, causal=False,
        context=2 * max(CANVASES), eos_ids=(1,), pad_id=1, eot_id=None,
    )  # fmt: skip
    length = canvas // 4
    settings = replace(Decode.llada(length=length, block=BLOCK, steps=length), cache=CACHES[cache][0])
    prompt = torch.randint(2, MASK, (1, canvas - length), generator=torch.Generator().manual_seed(2))
    model.logits(prompt[:, :64])
    moments: list[float] = []
    several = blocks_of(cache) > 1
    wanted = 1 if cache == "none" else BLOCK + 1 if several else TIMED  # without a cache all steps are alike

    def note(_: object) -> None:
        moments.append(time.process_time())
        if len(moments) > wanted:
            raise EnoughError

    Path("/proc/self/clear_refs").write_text("5")
    before, started = resident("VmRSS"), time.process_time()
    try:
        if traced:
            sk.trace(model, prompt, settings, on_step=note)
        else:
            decode(model, prompt, settings, history=False, on_step=note)
    except EnoughError:
        pass
    steps = [later - earlier for earlier, later in itertools.pairwise([started, *moments])]
    took = {"first": steps[0], "later": statistics.median(steps[1:BLOCK]), "bytes": resident("VmHWM") - before}
    print(json.dumps(took | ({"moved": steps[BLOCK]} if several else {})))


def blocks_of(cache: str) -> int:
    """How many blocks a look at the whole canvas serves."""
    settings = CACHES[cache][0]
    return int(settings.blocks) if isinstance(settings, SparseCache) else 1


def per_token(took: dict[str, float], cache: str) -> float:
    """Seconds per token: a step over the whole canvas, one as each further block begins, and one for every other token."""
    blocks = blocks_of(cache)
    return (took["first"] + (blocks - 1) * took.get("moved", 0) + blocks * (BLOCK - 1) * took["later"]) / (
        blocks * BLOCK
    )


def kept(*words: str) -> dict[str, Any]:
    """What was measured of a case, or measure it now: a page that was broken off goes on where it was."""
    found: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
    key = " ".join(word.removeprefix("--") for word in words)
    if key not in found:
        found[key] = {**process(*words, file=__file__), "load": round(os.getloadavg()[0], 1)}
        MEASURED.write_text(json.dumps(found, indent=1) + "\n")
    taken: dict[str, Any] = found[key]
    return taken


def cache_lines(canvases: Sequence[int]) -> list[str]:
    lines = [
        "| canvas | cache | first step of a block, s | each later step, s | s per token | against none | against dual "
        "| memory, MiB | traced |", "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for canvas in canvases:
        found: dict[str, dict[str, Any]] = {}
        for cache in CACHES:
            words = ("--canvas", str(canvas), "--cache", cache)
            took = found[cache] = kept(*words)
            ratio = "not run"
            if canvas in TRACED:
                ratio = f"{per_token(kept(*words, '--traced'), cache) / per_token(took, cache):.3f} ×"
            none, dual = (per_token(found[name], name) if name in found else None for name in ("none", "dual"))
            seconds = per_token(took, cache)
            lines.append(
                f"| {canvas} | {cache} | {took['first']:.2f} | {took['later']:.3f} | {seconds:.3f} "
                f"| {(none or seconds) / seconds:.1f} × | {f'{dual / seconds:.2f} ×' if dual else '–'} "
                f"| {took['bytes'] / 2**20:.0f} | {ratio} |"
            )
            print(lines[-1], flush=True)
    return lines


def cache_page(canvases: Sequence[int]) -> list[str]:
    missing = [str(canvas) for canvas in CANVASES if canvas not in canvases]
    return [
        "## Long canvases, every kind of cache", "",
        f"`python benchmarks/decode.py --only caches` on {machine()}.", "",
        "A random model of 98 M parameters (12 layers × 12 heads of 64, float32). A quarter of the canvas is the answer, in "
        f"blocks of {BLOCK}, one token per step. The first {TIMED + 1} steps of the first block are timed (2 without a "
        "cache), not whole answers: "
        "its first step, over the whole canvas, and the median of the later ones. Seconds per token follow from these for a "
        f"block of {BLOCK}, or for the blocks that share a look (there the first step of the second block "
        "was timed too). For the prefix cache the first block is the most expensive, since later ones compute fewer columns. "
        "`traced` is traced against untraced, per token, each in a process of its own.", "",
        *cache_lines(canvases), "",
        *([f"Not run yet: canvas {', '.join(missing)}.", ""] if missing else []),
        "How exact each is:", "", *(f"- **{name}**: {told}" for name, (_, told) in CACHES.items()), "", "A sparse cache that keeps "
        "all keys is the dual cache, token for token; one that is refreshed at every step is decoding without a cache.", "",
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", choices=list(CACHES), required=True)
    parser.add_argument("--canvas", type=int, required=True)
    parser.add_argument("--traced", action="store_true")
    asked = parser.parse_args()
    run_cache(asked.cache, asked.canvas, asked.traced)
