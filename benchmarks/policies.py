"""Every cache policy on long canvases: time, memory and what it computes, against no cache, the dual cache and a floor.

    python benchmarks/policies.py --canvas 2048            # about ten minutes of one core
    python benchmarks/policies.py --canvas 2048 8192 --write

A random model of 98 M parameters, one thread, each case in a process of its own. A quarter of the canvas is the answer, in
blocks of 32, one token per step. The first steps of the first block are timed, not whole answers. The floor is the
arithmetic of a step over the block alone, written by hand: its matrix products, and attention over the keys that are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from attention import MASK, random_module
from decode import machine, process, resident
from sinkscope.decoding import Decode, decode
from sinkscope.decoding.canvas import Step
from sinkscope.decoding.loop import Denoiser
from sinkscope.models import Model
from sinkscope.models.families.llada import LLaDA

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "policies.md"
BLOCK = 32
TIMED = 9  # steps, the first one included; policies with a period of 7 show it
CASES: dict[str, Any] = {
    "no cache": None,
    "floor": None,
    "floor, keep 1/4": None,
    "dual": "dual",
    "prefix": "prefix",
    "h2o, keep 1/4": {"name": "h2o", "keep": 0.25},
    "streaming, keep 1/4": {"name": "streaming", "keep": 0.25},
    "random, keep 1/4": {"name": "random", "keep": 0.25},
    "sparse_dllm, keep 1/4": {"name": "sparse_dllm", "keep": 0.25},
    "focus, keep 1/4": {"name": "focus", "keep": 0.25},
    "dllm_cache": {"name": "dllm_cache"},
    "dkv_cache": {"name": "dkv_cache"},
    "d2cache": {"name": "d2cache"},
}


class EnoughError(Exception):
    """As many steps as were to be timed are done."""


def random_model(canvas: int) -> Model:
    return Model(
        module=random_module(), tokenizer=None, family=LLaDA(), name="random", mask_id=MASK, shift=False, causal=False,
        context=2 * canvas, eos_ids=(1,), pad_id=1, eot_id=None,
    )  # fmt: skip


def run_case(case: str, canvas: int) -> None:
    """In a process of its own: seconds of the first step and of the later ones, bytes, and the share of columns computed."""
    torch.set_num_threads(1)
    model = random_model(canvas)
    length = canvas // 4
    settings = replace(Decode.llada(length=length, block=BLOCK, steps=length), cache=CASES[case])
    prompt = torch.randint(2, MASK, (1, canvas - length), generator=torch.Generator().manual_seed(2))
    model.logits(prompt[:, :64])
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    if case.startswith("floor"):
        steps, use = time_floor(model, canvas, 0.25 if "1/4" in case else 1.0), None
    else:
        steps, use = time_decoder(model, prompt, settings, 3 if case == "no cache" else TIMED)
    found = {
        "first": steps[0], "later": statistics.median(steps[1:]), "mean": statistics.mean(steps[1:]),
        "process": resident("VmHWM") - before,
        "kept": use.kept_bytes if use else 0, "peak": use.peak_bytes if use else 0,
        "computed": use.computed_share if use else BLOCK / canvas if case.startswith("floor") else 1.0,
    }  # fmt: skip
    print(json.dumps(found))


def time_decoder(model: Model, prompt: torch.Tensor, settings: Decode, count: int) -> tuple[list[float], Any]:
    """Processor seconds of each of the first steps, and what the policy computed and held in them."""
    moments, states = [], []
    begin = Denoiser.__init__

    def remember(self: Denoiser, *words: Any) -> None:
        begin(self, *words)
        states.append(self)

    def note(_: Step) -> None:
        moments.append(time.process_time())
        if len(moments) >= count:
            raise EnoughError

    Denoiser.__init__ = remember  # type: ignore[method-assign]
    started = time.process_time()
    with contextlib.suppress(EnoughError):
        decode(model, prompt, settings, history=False, on_step=note)
    steps = [later - earlier for earlier, later in itertools.pairwise([started, *moments])]
    return steps, states[0].forwards.use()


@torch.inference_mode()
def time_floor(model: Model, canvas: int, keep: float) -> list[float]:
    """The arithmetic of one step over the block, against this share of the keys outside it."""
    base: Any = model.module.base_model
    config = model.config
    heads, dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    keys = int((canvas - BLOCK) * keep) + BLOCK
    stored = [torch.randn(2, 1, heads, keys, dim) for _ in base.layers]
    hidden = base.embed_tokens(torch.full((1, BLOCK), MASK))
    seconds = []
    for _ in range(TIMED):
        started = time.process_time()
        x = hidden
        for layer, (k, v) in zip(base.layers, stored, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            q, new_k, new_v = (
                part(x).view(1, BLOCK, heads, dim).transpose(1, 2)
                for part in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            k[:, :, -BLOCK:], v[:, :, -BLOCK:] = new_k, new_v
            mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, BLOCK, -1)
            x = x + attention.o_proj(mixed)
            x = x + mlp.down_proj(silu(mlp.gate_proj(x)) * mlp.up_proj(x))
        model.family.head(model.module, x[0]).argmax(-1)
        seconds.append(time.process_time() - started)
    return seconds


def table(canvases: list[int]) -> list[str]:
    lines = [
        "| canvas | policy | first step, s | later steps, s (median, mean) | against none | against dual | against its floor "
        "| keys and values, MiB (kept, peak) | process peak, MiB | columns computed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for canvas in canvases:
        found: dict[str, dict[str, float]] = {}
        for case in CASES:
            took = found[case] = process("--case", case, "--canvas", str(canvas), "--measure", file=__file__)
            none, dual = found["no cache"]["mean"], found.get("dual", {}).get("mean")
            floor = found.get("floor, keep 1/4" if "1/4" in case else "floor", {}).get("mean")
            against_dual = f"{dual / took['mean']:.2f} ×" if dual else "–"
            against_floor = f"{took['mean'] / floor:.2f} ×" if floor else "–"
            mib = {name: f"{took[name] / 2**20:.0f}" for name in ("kept", "peak", "process")}
            lines.append(
                f"| {canvas} | {case} | {took['first']:.2f} | {took['later']:.3f}, {took['mean']:.3f} "
                f"| {none / took['mean']:.1f} × | {against_dual} "
                f"| {against_floor} | {mib['kept']}, {mib['peak']} | {mib['process']} "
                f"| {100 * took['computed']:.1f} % |"
            )
            print(lines[-1], flush=True)
    return lines


def write_page(canvases: list[int]) -> None:
    lines = [
        "# Cache policies on long canvases", "",
        f"`python benchmarks/policies.py --canvas {' '.join(map(str, canvases))} --write` on {machine()}.", "",
        "A random model of 98 M parameters (12 layers × 12 heads of 64, float32), a quarter of the canvas is the answer, blocks "
        f"of {BLOCK}, one token per step, one thread, each case in a process of its own. The first {TIMED} steps of the first "
        "block are timed (3 without a cache). `later` is of the steps after the first; where a policy looks at the whole canvas "
        "again within them (sparse_dllm at the second step, dkv_cache at the second and eighth, dllm_cache at the eighth), the "
        "mean says so and the median does not. Ratios are of means, in one run; above 1 is faster than none or dual, and slower "
        "than the floor. Floor: a step over the block alone, written by hand. Columns computed are of the timed steps, over "
        "all layers. Memory is above what the process held before it decoded.", "",
        *table(canvases), "",
        "Not measured: a GPU, a model of 8 B, whole answers at these lengths. Random weights say nothing about answers; the "
        "study `keep` does.", "",
    ]  # fmt: skip
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--canvas", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--case", choices=list(CASES))
    parser.add_argument("--measure", action="store_true", help="one case, as JSON")
    parser.add_argument("--write", action="store_true", help="write lab/results/policies.md")
    asked = parser.parse_args()
    if asked.measure:
        run_case(asked.case, asked.canvas[0])
    elif asked.write:
        write_page(asked.canvas)
    else:
        print("\n".join(table(asked.canvas)[:2]))
