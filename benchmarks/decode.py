"""Decoding against a straightforward loop that computes all logits, and long canvases with every kind of cache.

    python benchmarks/decode.py                  # prints both tables and writes lab/results/decode.md
    python benchmarks/decode.py --only caches    # one of them; the other stays as the page has it

The loop: a random LLaDA-shaped model with the real vocabulary of 126464 rows; caches: see long_canvases.py. Each side runs
in its own process, on one thread. Time is processor time, so that other work on the machine does not count; memory is the
highest resident size during decoding above the resident size before it (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import Decode, decode
from sinkscope.models import Model
from sinkscope.models.families.llada import LLaDA

VOCABULARY, WIDTH, LAYERS, CANVAS, MASK = 126464, 512, 4, 512, 126336
RESULTS = Path(__file__).parents[1] / "lab" / "results" / "decode.md"

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
        module=module, tokenizer=None, family=LLaDA(), name="random LLaDA", mask_id=MASK, shift=False, causal=False,
        context=4096, eos_ids=(126081,), pad_id=126081, eot_id=126348,
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


def process(*words: str, file: str = __file__) -> dict[str, Any]:
    """Run one side in a process of its own, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, file, *words], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(side: str, case: str, steps: int) -> dict[str, Any]:
    return process("--side", side, "--case", case, "--steps", str(steps))


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
    there = {name: head + old.partition(head)[2].partition("\n## ")[0] for name, head in parts.items() if head in old}
    there[part] = "\n".join(lines)
    head = "Time is processor time; memory is the peak above what the process held before decoding."
    body = [there[name].strip() for name in parts if name in there]
    RESULTS.write_text("\n\n".join(["# What decoding costs", head, *body]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", choices=["loop", "caches"])
    parser.add_argument("--canvases", type=int, nargs="+", help="only these")
    parser.add_argument("--side", choices=["ours", "straightforward"], help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side is not None:
        run_one(asked.side, asked.case, asked.steps)
    else:
        if asked.only in (None, "loop"):
            write("loop", loop_page(asked.steps))
        if asked.only in (None, "caches"):
            from long_canvases import CANVASES, cache_page

            write("caches", cache_page(asked.canvases or CANVASES))


if __name__ == "__main__":
    main()
