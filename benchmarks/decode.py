"""Decoding against a straightforward loop that computes all logits, and long canvases with every kind of cache.

    python benchmarks/decode.py                  # prints both tables and writes docs/results/decode.md
    python benchmarks/decode.py --only caches    # one of them; the other stays as the page has it

The loop: a random LLaDA-shaped model with the real vocabulary of 126464 rows. Caches: a random one of 98 M parameters
(benchmarks/attention.py), of which a few steps are timed, not whole answers. Each side runs in its own process, on one
thread. Time is processor time, so that other work on the machine does not count; memory is the highest resident size
during decoding above the resident size before it (Linux only).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import Decode, decode
from sinkscope.models import Model
from sinkscope.models.llada import LLaDA
from sinkscope.settings import SparseCache

VOCABULARY, WIDTH, LAYERS, CANVAS, MASK = 126464, 512, 4, 512, 126336
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "decode.md"

# Name → settings of ours, and whether the straightforward loop must give the same tokens (per_row is another stream).
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "greedy": ({}, True),
    "temperature 0.7, noise per row": ({"temperature": 0.7, "noise": "per_row"}, False),
    "temperature 0.7, the authors' noise": ({"temperature": 0.7, "noise": "reference"}, True),
    "greedy, the whole answer one block": ({"block": 128}, True),
}


def random_model() -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    config.is_causal = False
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        module.lm_head.weight.mul_(6)  # as sharp as a trained model, so that rounding decides nothing
    return Model(
        module=module, tokenizer=None, family="llada", name="random LLaDA", mask_id=MASK, shift=False, causal=False,
        context=4096, eos_ids=(126081,), pad_id=126081, eot_id=126348, recipe=LLaDA(),
    )  # fmt: skip


@torch.inference_mode()
def straightforward(model: Model, prompt: Tensor, settings: Decode) -> Tensor:
    """What the published sampler does: logits, noise in float64 and softmax for the whole canvas at every step."""
    torch.manual_seed(settings.seed)
    canvas = torch.cat([prompt, torch.full((1, settings.length), MASK)], dim=1)
    size = settings.block or settings.length
    steps = (settings.steps or settings.length) * size // settings.length
    for start in range(prompt.shape[1], canvas.shape[1], size):
        masks = int((canvas[:, start : start + size] == MASK).sum())
        for step in range(steps):
            masked = canvas == MASK
            logits = model.module(canvas, is_causal=False, use_cache=False).logits
            noisy = logits
            if settings.temperature > 0:
                noise = torch.rand_like(logits, dtype=torch.float64)
                noisy = logits.to(torch.float64).exp() / (-torch.log(noise)) ** settings.temperature
            candidates = noisy.argmax(-1)
            confidence = logits.softmax(-1).gather(-1, candidates.unsqueeze(-1)).squeeze(-1)
            confidence[:, start + size :] = -torch.inf
            confidence = confidence.masked_fill(~masked, -torch.inf)
            count = masks // steps + (step < masks % steps)
            places = confidence[0].topk(count).indices
            canvas[0, places] = candidates[0, places]
    return canvas


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (highest so far) in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit("memory can be measured on Linux only")


def run_one(side: str, case: str, steps: int) -> None:
    """In a process of its own: build, warm up, forget the peak so far, decode, report."""
    torch.set_num_threads(1)
    model = random_model()
    words, _ = CASES[case]
    settings = Decode.llada(**{"length": 128, "block": 32, "steps": steps, "seed": 1, **words})
    prompt = torch.randint(0, 100_000, (1, CANVAS - settings.length), generator=torch.Generator().manual_seed(2))
    model.logits(prompt[:, :8])
    Path("/proc/self/clear_refs").write_text("5")
    before, started = resident("VmRSS"), time.process_time()
    ours = side == "ours"
    tokens = decode(model, prompt, settings, history=False).tokens if ours else straightforward(model, prompt, settings)
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "bytes": resident("VmHWM") - before, "tokens": tokens[0].tolist()}))


def process(*words: str) -> dict[str, Any]:
    """Run one side in a process of its own, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(side: str, case: str, steps: int) -> dict[str, Any]:
    return process("--side", side, "--case", case, "--steps", str(steps))


# ---- long canvases, every kind of cache ----

BLOCK = 32
TIMED = 4  # steps after a block's first one
CACHES: dict[str, tuple[Any, str]] = {  # and what its answer is, compared with decoding without a cache
    "none": (None, "exact"),
    "prefix": ("prefix", "approximate: keys before the block are as old as the block"),
    "dual": ("dual", "approximate: keys around the block are as old as the block"),
    "sparse, keep 1/4": (SparseCache(keep=0.25), "approximate: as dual, and three quarters of those keys are left out"),
}
CANVASES = (512, 2048, 8192)
TRACED = (512, 2048)  # canvases at which traced generation is timed too


class EnoughError(Exception):
    """As many steps as were to be timed are done."""


def run_cache(cache: str, canvas: int, traced: bool) -> None:
    """In a process of its own: seconds of a block's first step, and of the steps after it."""
    import sinkscope as sk
    from attention import MASK as LAST
    from attention import random_module

    torch.set_num_threads(1)
    model = Model(
        module=random_module(), tokenizer=None, family="llada", name="random", mask_id=LAST, shift=False, causal=False,
        context=2 * max(CANVASES), eos_ids=(1,), pad_id=1, eot_id=None, recipe=LLaDA(),
    )  # fmt: skip
    length = canvas // 4
    settings = replace(Decode.llada(length=length, block=BLOCK, steps=length), cache=CACHES[cache][0])
    prompt = torch.randint(2, LAST, (1, canvas - length), generator=torch.Generator().manual_seed(2))
    model.logits(prompt[:, :64])
    moments: list[float] = []

    def note(_: object) -> None:
        moments.append(time.process_time())
        if len(moments) > TIMED:
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
    print(json.dumps({"first": steps[0], "later": statistics.median(steps[1:]), "bytes": resident("VmHWM") - before}))


def per_token(took: dict[str, float]) -> float:
    """Seconds per token of a block: its first step, and one more for each of its other tokens."""
    return (took["first"] + (BLOCK - 1) * took["later"]) / BLOCK


def cache_lines(canvases: Sequence[int]) -> list[str]:
    lines = [
        "| canvas | cache | first step of a block, s | each later step, s | s per token | against none | against dual "
        "| memory, MiB | traced |", "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for canvas in canvases:
        found: dict[str, dict[str, Any]] = {}
        for cache in CACHES:
            words = ["--cache", cache, "--canvas", str(canvas)]
            took = found[cache] = process(*words)
            ratio = "not run"
            if canvas in TRACED:
                ratio = f"{per_token(process(*words, '--traced')) / per_token(took):.3f} ×"
            none, dual = (per_token(found[name]) if name in found else None for name in ("none", "dual"))
            seconds = per_token(took)
            lines.append(
                f"| {canvas} | {cache} | {took['first']:.2f} | {took['later']:.3f} | {seconds:.3f} "
                f"| {(none or seconds) / seconds:.1f} × | {f'{dual / seconds:.2f} ×' if dual else '–'} "
                f"| {took['bytes'] / 2**20:.0f} | {ratio} |"
            )
            print(lines[-1], flush=True)
    return lines


def cache_page(canvases: Sequence[int]) -> list[str]:
    return [
        "## Long canvases, every kind of cache", "",
        f"`python benchmarks/decode.py --only caches` on {machine()}.", "",
        "A random model of 98 M parameters (12 layers × 12 heads of 64, float32); a quarter of the canvas is the answer, in "
        f"blocks of {BLOCK}, a token per step. Timed are the first {TIMED + 1} steps of the first block, not whole answers: "
        "its first step, over the whole canvas, and the median of the later ones; seconds per token are what they make of a "
        f"block of {BLOCK}. For the prefix cache the first block is the dearest: later ones compute fewer columns. "
        "`traced` is traced against untraced, per token, each in a process of its own.", "",
        *cache_lines(canvases), "",
        "Exactness: " + "; ".join(f"**{name}** {told}" for name, (_, told) in CACHES.items()) + ". A sparse cache that keeps "
        "all keys is the dual cache, token for token; one that is refreshed at every step is decoding without a cache.", "",
    ]  # fmt: skip


# ---- the page ----


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    processor = names[0] if names else platform.processor()
    return f"{processor}, one thread, Python {platform.python_version()}, torch {torch.__version__}"


def loop_page(steps: int) -> list[str]:
    rows = []
    plain: dict[str, dict[str, Any]] = {}
    for case, (words, same) in CASES.items():
        ours = measured("ours", case, steps)
        # The straightforward loop knows one noise only; its run serves both of ours.
        key = json.dumps({name: value for name, value in words.items() if name != "noise"})
        plain[key] = theirs = plain.get(key) or measured("straightforward", case, steps)
        if same and ours["tokens"] != theirs["tokens"]:
            raise SystemExit(f"{case}: the tokens differ")
        rows.append(
            f"| {case} | {'yes' if same else 'another stream'} | {theirs['seconds']:.1f} | {ours['seconds']:.1f} "
            f"| {theirs['seconds'] / ours['seconds']:.1f} × | {theirs['bytes'] / 2**20:.0f} | {ours['bytes'] / 2**20:.0f} "
            f"| {ours['bytes'] / theirs['bytes']:.0%} |"
        )
        print(rows[-1], flush=True)
    return [
        "## Against a straightforward loop", "",
        f"`python benchmarks/decode.py --only loop --steps {steps}` on {machine()}.", "",
        f"A random LLaDA-shaped model: {VOCABULARY} rows, width {WIDTH}, {LAYERS} layers, float32, canvas {CANVAS}",
        f"(answer 128, block 32 unless said otherwise), {steps} steps. The straightforward loop computes logits,",
        "softmax and noise (float64) for the whole canvas at every step, as the published sampler does;",
        "ours computes them where a token can be committed.", "",
        "| case | same tokens | straightforward, s | ours, s | faster | straightforward, MiB | ours, MiB | share |",
        "|---|---|---|---|---|---|---|---|",
        *rows, "",
    ]  # fmt: skip


def write(part: str, lines: list[str]) -> None:
    """Put one part of the page in its place; the other one stays."""
    parts = {"loop": "## Against a straightforward loop", "caches": "## Long canvases, every kind of cache"}
    old = RESULTS.read_text() if RESULTS.is_file() else ""
    kept = {name: head + old.partition(head)[2].partition("\n## ")[0] for name, head in parts.items() if head in old}
    kept[part] = "\n".join(lines)
    head = "Time is processor time; memory is the peak above what the process held before decoding."
    body = [kept[name].strip() for name in parts if name in kept]
    RESULTS.write_text("\n\n".join(["# What decoding costs", head, *body]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", choices=["loop", "caches"])
    parser.add_argument("--canvases", type=int, nargs="+", default=CANVASES)
    parser.add_argument("--side", choices=["ours", "straightforward"], help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--cache", choices=list(CACHES), help=argparse.SUPPRESS)
    parser.add_argument("--canvas", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side is not None:
        run_one(asked.side, asked.case, asked.steps)
    elif asked.cache is not None:
        run_cache(asked.cache, asked.canvas, asked.traced)
    else:
        if asked.only in (None, "loop"):
            write("loop", loop_page(asked.steps))
        if asked.only in (None, "caches"):
            write("caches", cache_page(asked.canvases))


if __name__ == "__main__":
    main()
