"""What a denoising step asks of a GPU: kernels, waits of the host, copies. Counted on a pretend GPU, so nothing is timed.

    python benchmarks/gpu_counts.py                # a model of LLaDA-8B's shape: batch 1 and 320 positions, batch 16 and 1280
    python benchmarks/gpu_counts.py --write        # … and writes lab/results/gpu-counts.md
    python benchmarks/gpu_counts.py --json --modes masked --shapes small    # one of them, with where the host waits

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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import pretend_cuda as pretend
import sinkscope as sk
import sinkscope.attention.triton as kernels
from sinkscope.decoding import resolve_settings
from sinkscope.models import Model
from sinkscope.models.families.llada import LLaDA

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "gpu-counts.md"
MODES = ("plain", "traced", "masked", "masked and traced", "random control", "random control, counter", "sampled")


def model_of(layers: int, width: int = 32, heads: int = 32, vocabulary: int = 126464) -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=8, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    config.is_causal = False
    module = LlamaForCausalLM(config).eval().to(torch.bfloat16)
    for part in module.modules():
        if hasattr(part, "is_causal"):
            part.is_causal = False
    made = Model(
        module=module, tokenizer=None, family=LLaDA(), name="LLaDA-8B's shape", mask_id=vocabulary - 1, shift=False,
        causal=False, context=4096, eos_ids=(1,), pad_id=1, eot_id=2,
    )  # fmt: skip
    LLaDA().adapt(module, {})
    return made


def step(
    model: Model, mode: str, batch: int, length: int, padded: bool, settings: sk.Decode | None = None
) -> dict[str, Any]:
    """Counts of the third denoising step (the first has nothing to rank, the second nothing on its way to the host)."""
    prompt = torch.arange(batch * (length if settings else length - 64)).reshape(batch, -1) % 100 + 5
    mask = torch.ones_like(prompt)
    if padded:
        mask[0, :2] = 0
    settings = settings or sk.Decode.llada(length=64, block=32, steps=8)
    if mode == "sampled":
        settings = replace(settings, temperature=0.7, noise="per_row")
    made = {
        "masked": sk.MaskSinks(k=1),
        "masked and traced": sk.MaskSinks(k=1),
        "random control": sk.MaskRandom(k=1),
        "random control, counter": sk.MaskRandom(k=1, noise="counter"),
    }.get(mode)
    gpu, seen = pretend.PretendCuda(attends=False), []

    class EnoughError(Exception): ...

    def on_step(_: object) -> None:
        seen.append(({**gpu.counts()}, gpu.waits.copy(), gpu.kernels.copy()))
        gpu.forget()
        if len(seen) == 3:
            raise EnoughError

    with gpu, ExitStack() as stack:
        for name in ("output_kernel", "received_kernel"):
            if isinstance(before := getattr(kernels, name), pretend.Kernel):
                continue
            stack.callback(setattr, kernels, name, before)
            setattr(kernels, name, pretend.Kernel(before, pretend.count_only))
        try:
            if "traced" in mode:
                sk.trace(
                    model,
                    prompt,
                    settings,
                    attention_mask=mask,
                    interventions=[made] if made else [],
                    on_step=on_step,
                    keep=sk.Keep(budget=1 << 40),
                )
            else:
                with sk.intervene(model, made) if made else nullcontext():
                    sk.decode(model, prompt, settings, attention_mask=mask, history=False, on_step=on_step)
        except EnoughError:
            pass
    counts, waits, each = seen[2]
    return {**counts, "where": dict(waits.most_common(12)), "each": dict(each.most_common(14))}


SHAPES = {  # batch, positions, padded
    "small": (1, 320, False), "small padded": (2, 320, True), "large": (16, 1280, False), "large padded": (16, 1280, True),
}  # fmt: skip
FAMILIES = ("tiny-dream", "tiny-sdar", "tiny-mmada", "tiny-llama")


def family_step(name: str, mode: str) -> dict[str, Any]:
    """The third step of a small model of another family."""
    model = sk.load(name, dtype="bfloat16")
    pretend.put(model.module)
    settings = resolve_settings(model.defaults, model, 12, {"length": 12})
    return step(model, mode, 2, 12, False, settings)


# The first table of the review that began this work, batch 1 (padded: 2), 320 positions; MB were not counted.
BEFORE = {
    "plain": (1350, 3, 0), "traced": (1478, 39, 36), "masked": (2278, 131, 0), "masked and traced, padded": (2452, 201, 37),
}  # fmt: skip


def before(large: dict[str, dict[str, Any]]) -> list[str]:
    """Kernels, host waits and copies to the host, then and now."""
    lines = ["| mode | kernels | now | host waits | now | copies to the host | now |", "|---" * 7 + "|"]
    for mode, then in BEFORE.items():
        shape, plain = ("small padded", mode.removesuffix(", padded")) if "padded" in mode else ("small", mode)
        if (one := large.get(shape, {}).get(plain)) is None:
            continue
        now = one["kernels"], one["waits"], one["to_host"]
        lines.append(f"| {mode} | " + " | ".join(f"{old} | {new}" for old, new in zip(then, now, strict=True)) + " |")
    return [*lines, ""]


def two_devices() -> list[str]:
    """Tokens of a model whose layers are split over two pretend GPUs, against those of one."""
    import test_pretend_gpu as cases

    def found(name: str, mode: str, **words: Any) -> str:
        one, two = (cases.Ran(name, mode, place, **words).tokens for place in ("one", "two"))
        return "equal" if torch.equal(one, two) else "different"

    caches = {"none": None, "prefix": "prefix", "dual": "dual", "sparse": sk.SparseCache(keep=0.5)}
    modes = ("plain", "traced", "masked", "random")
    with ExitStack() as stack:
        for name, compute in (("output_kernel", pretend.output), ("received_kernel", pretend.received)):
            stack.callback(setattr, kernels, name, getattr(kernels, name))
            setattr(kernels, name, pretend.Kernel(getattr(kernels, name), compute))
        lines = [
            f"| tiny-llada, cache {kind} | " + " | ".join(found("tiny-llada", mode, cache=cache, block=4) for mode in modes) + " |"
            for kind, cache in caches.items()
        ]  # fmt: skip
        lines += [
            f"| {name} | " + " | ".join(found(name, mode, block=None if name == "tiny-dream" else 8) for mode in modes) + " |"
            for name in ("tiny-dream", "tiny-sdar", "tiny-llama")
        ]  # fmt: skip
    return ["| tokens on two against one | plain | traced | masked | random keys |", "|---" * 5 + "|", *lines, ""]


def line(head: str, found: dict[str, dict[str, Any]]) -> str:
    cells = [
        f"{one['kernels']} | {one['waits']} | {one['to_host']} | {one['to_device']} | {one['bytes_to_host'] / 1e6:.2f}"
        for one in found.values()
    ]
    return f"| {head} | {' | '.join(cells)} |"


def page(command: str, large: dict[str, dict[str, Any]], families: dict[str, dict[str, Any]]) -> str:
    columns = "kernels | host waits | copies to the host | to the device | MB to the host"
    lines = [
        "# What a step asks of a GPU", "",
        f"`{command}`. Counted on a pretend GPU (tests/pretend_cuda.py): nothing here was timed, and no GPU was there. A kernel "
        "is one operation of ATen or one launch of Triton; a host wait is anything that stops Python until the device has caught "
        "up. The third denoising step, bfloat16.", "",
        "## A model of LLaDA-8B's shape", "",
        "32 layers, 32 heads, 126464 tokens. No layer waits or copies: what is left are the commit rule's and the "
        "recorder's, once per step. Noise is drawn on the CPU.", "",
    ]  # fmt: skip
    lines += ["### Before and now, 320 positions", "", *before(large)]
    for shape, found in large.items():
        batch, positions, padded = SHAPES[shape]
        lines += [f"### Batch {batch}, {positions} positions{', padded' if padded else ''}", ""]
        lines += [
            f"| mode | {columns} |",
            "|---" * 6 + "|",
            *(line(mode, {"": one}) for mode, one in found.items()),
            "",
        ]
    lines += ["## Other families", "", "Small models of the package, batch 2, 12 + 12 positions.", ""]
    lines += [
        f"| model, mode | {columns} |",
        "|---" * 6 + "|",
        *(line(name, {"": one}) for name, one in families.items()),
    ]
    lines += [
        "",
        "## Two pretend GPUs",
        "",
        "Half of the layers on each, as a device map puts them; padded batches of two.",
        "",
    ]
    return "\n".join([*lines, *two_devices()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write lab/results/{RESULTS.name}")
    asked = parser.parse_args()
    pretend.PretendCuda.now = pretend.PretendCuda()
    model = model_of(asked.layers)
    pretend.put(model.module)
    large: dict[str, dict[str, Any]] = {}
    for shape in asked.shapes:
        most = {"large": MODES[:4], "large padded": ("plain", "masked")}.get(shape, MODES)  # the others take minutes
        for mode in (one for one in asked.modes if one in most):
            found = large.setdefault(shape, {})[mode] = step(model, mode, *SHAPES[shape])
            print(
                json.dumps({"shape": shape, "mode": mode, **found})
                if asked.json
                else line(f"{shape} {mode}", {"": found})
            )
            sys.stdout.flush()
    families = {
        f"{name}, {mode}": family_step(name, mode) for name in FAMILIES for mode in ("plain", "traced", "masked")
    }  # fmt: skip
    text = page("python benchmarks/gpu_counts.py --write", large, families)
    print(text)
    if asked.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
