"""What a denoising step asks of a GPU: kernels, waits of the host, copies. Counted on a pretend GPU, so nothing is timed.

    python benchmarks/gpu_counts.py                # prints the table of a model of LLaDA-8B's shape
    python benchmarks/gpu_counts.py --write        # … and writes docs/results/gpu-counts.md

The model has LLaDA-8B's 32 layers, 32 heads and 126464 tokens; its width is small, because counts do not depend on it.
Attention gives zeros here. A kernel is one operation of ATen or one launch of Triton.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import pretend_cuda as pretend

import sinkscope as sk
import sinkscope.attention.triton as kernels
from sinkscope.models import Model
from sinkscope.models.llada import LLaDA

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "gpu-counts.md"
sdpa = torch.nn.functional.scaled_dot_product_attention
MODES = ("plain", "traced", "masked", "masked and traced", "random control", "sampled")


def model_of(layers: int, width: int = 64, heads: int = 32, vocabulary: int = 126464) -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    config.is_causal = False
    module = LlamaForCausalLM(config).eval().to(torch.bfloat16)
    for part in module.modules():
        if hasattr(part, "is_causal"):
            part.is_causal = False
    made = Model(
        module=module, tokenizer=None, family="llada", name="LLaDA-8B's shape", mask_id=vocabulary - 1, shift=False,
        causal=False, context=4096, eos_ids=(1,), pad_id=1, eot_id=2, recipe=LLaDA(),
    )  # fmt: skip
    LLaDA().adapt(module, {})
    return made


def step(model: Model, mode: str, batch: int, length: int, padded: bool, **words: Any) -> dict[str, Any]:
    """Counts of the third denoising step (the first has nothing to rank, the second nothing on its way to the host)."""
    prompt = torch.arange(batch * (length - 64)).reshape(batch, -1) % 100 + 5
    mask = torch.ones_like(prompt)
    if padded:
        mask[0, :2] = 0
    settings = replace(sk.Decode.llada(length=64, block=32, steps=8), **words)
    if mode == "sampled":
        settings = replace(settings, temperature=0.7)
    made = {"masked": sk.MaskSinks(k=1), "masked and traced": sk.MaskSinks(k=1), "random control": sk.MaskRandom(k=1)}.get(mode)
    gpu, seen = pretend.PretendCuda(), []

    class EnoughError(Exception): ...

    def on_step(_: object) -> None:
        seen.append(({**gpu.counts()}, gpu.waits.copy(), gpu.kernels.copy()))
        gpu.forget()
        if len(seen) == 3:
            raise EnoughError

    with gpu, ExitStack() as stack:
        if batch * length > 4096:  # what attention gives does not matter here
            stack.callback(setattr, torch.nn.functional, "scaled_dot_product_attention", sdpa)
            torch.nn.functional.scaled_dot_product_attention = no_attention
        for name in ("output_kernel", "received_kernel"):
            if isinstance(before := getattr(kernels, name), pretend.Kernel):
                continue
            stack.callback(setattr, kernels, name, before)
            setattr(kernels, name, pretend.Kernel(before, pretend.count_only))
        try:
            if "traced" in mode:
                sk.trace(model, prompt, settings, attention_mask=mask, interventions=[made] if made else [], on_step=on_step,
                         keep=sk.Keep(budget=1 << 40))
            else:
                with sk.intervene(model, made) if made else nullcontext():
                    sk.decode(model, prompt, settings, attention_mask=mask, history=False, on_step=on_step)
        except EnoughError:
            pass
    counts, waits, each = seen[2]
    return {**counts, "where": dict(waits.most_common(12)), "each": dict(each.most_common(14))}


def no_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.zeros_like(query)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--large", action="store_true", help="batch 16, 1280 positions")
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    model = model_of(asked.layers)
    pretend.PretendCuda.now = pretend.PretendCuda()
    pretend.put(model.module)
    batch, length = (16, 1280) if asked.large else (2 if asked.padded else 1, 320)
    for mode in asked.modes:
        found = step(model, mode, batch, length, asked.padded)
        print(json.dumps({"mode": mode, **found}) if asked.json else f"{mode}: {found}", flush=True)


if __name__ == "__main__":
    main()
