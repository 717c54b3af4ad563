"""Random weights in the real shapes of the small diffusion models: load, trace, mask; memory, time, cost over plain.

    python benchmarks/small_shapes.py FOLDER [mdlm bd3lm gidd-small gidd-base sedd-small]

Weights are written to FOLDER under the authors' keys and removed again. Times are of the process (CPU seconds), the least of
several runs that take turns, so that a busy machine counts for little.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import sinkscope as sk

SMALL, BASE = (768, 12, 12), (1024, 24, 16)
WORDS, COND, TURNS = 50258, 128, 3
Settings = tuple[dict[str, Any], dict[str, Any]]  # of config.json, and of decoding


def kuleshov(kind: str, **more: Any) -> dict[str, Any]:
    width, layers, heads = SMALL
    return {
        "model_type": kind, "vocab_size": WORDS, "model_length": 1024, "hidden_dim": width, "n_blocks": layers,
        "n_heads": heads, "cond_dim": COND, "time_conditioning": False, **more,
    }  # fmt: skip


def gidd(shape: tuple[int, int, int]) -> dict[str, Any]:
    width, layers, heads = shape
    return {
        "model_type": "dit", "architectures": ["DIT"], "vocab_size": WORDS, "max_seq_len": 512, "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "timestep_cond_dim": COND, "p_uniform": 0.1, "t_eps": 1e-4,
    }  # fmt: skip


def sedd(shape: tuple[int, int, int]) -> dict[str, Any]:
    width, layers, heads = shape
    net = {"hidden_size": width, "n_blocks": layers, "n_heads": heads, "cond_dim": COND, "length": 1024}
    return {"tokens": WORDS - 1, "graph": {"type": "absorb"}, "model": {**net, "scale_by_sigma": True}}


SHAPES: dict[str, tuple[tuple[int, int, int], str, dict[str, Any], dict[str, Any]]] = {
    "mdlm": (SMALL, "backbone.", kuleshov("mdlm"), {"length": 1023, "steps": 2}),
    "bd3lm": (SMALL, "backbone.", kuleshov("bd3lm", block_size=4), {"length": 127, "entropy_test": False}),
    "gidd-small": (SMALL, "", gidd(SMALL), {"length": 511, "steps": 3}),
    "gidd-base": (BASE, "", gidd(BASE), {"length": 511, "steps": 3}),
    "sedd-small": (SMALL, "", sedd(SMALL), {"length": 1023, "steps": 2}),
}


def weights(shape: tuple[int, int, int], prefix: str) -> dict[str, Tensor]:
    """Random numbers under the authors' keys."""
    width, layers, _ = shape
    sizes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (WORDS, width), "sigma_map.mlp.0.weight": (COND, 256), "sigma_map.mlp.0.bias": (COND,),
        "sigma_map.mlp.2.weight": (COND, COND), "sigma_map.mlp.2.bias": (COND,),
        "output_layer.norm_final.weight": (width,), "output_layer.linear.weight": (WORDS, width),
        "output_layer.linear.bias": (WORDS,), "output_layer.adaLN_modulation.weight": (2 * width, COND),
        "output_layer.adaLN_modulation.bias": (2 * width,),
    }  # fmt: skip
    for layer in range(layers):
        block = {
            "norm1.weight": (width,), "norm2.weight": (width,), "attn_qkv.weight": (3 * width, width),
            "attn_out.weight": (width, width), "mlp.0.weight": (4 * width, width), "mlp.0.bias": (4 * width,),
            "mlp.2.weight": (width, 4 * width), "mlp.2.bias": (width,), "adaLN_modulation.weight": (6 * width, COND),
            "adaLN_modulation.bias": (6 * width,),
        }  # fmt: skip
        sizes |= {f"blocks.{layer}.{name}": size for name, size in block.items()}
    torch.manual_seed(0)
    return {
        prefix + name: torch.randn(size) * (0.2 if len(size) == 1 else size[-1] ** -0.5) for name, size in sizes.items()
    }


def timed(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(name: str, folder: Path) -> None:
    shape, prefix, config, words = SHAPES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(shape, prefix), folder / "model.safetensors", {"format": "pt"})
    started = time.perf_counter()
    model = sk.load(folder)
    size = sum(part.numel() for part in model.module.parameters())
    print(f"{name}: {size:,} parameters, loaded in {time.perf_counter() - started:.1f} s", flush=True)
    ids, settings = torch.tensor([[WORDS - 2]]), model.defaults.changed(words)

    def plain() -> None:
        sk.decode(model, ids, settings)

    def traced() -> None:
        made = sk.trace(model, ids, settings)
        assert isinstance(made, sk.Trace)

    def masked() -> None:
        with sk.intervene(model, sk.MaskSinks(k=1)) as active:
            sk.decode(model, ids, settings)
        assert active.effect.keys and not active.effect.leak

    runs = {"plain": plain, "trace": traced, "mask": masked}
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for kind, run in runs.items():
            least[kind] = min(least[kind], timed(run))
    done = sk.decode(model, ids, settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"  {done.tokens.shape[1]} positions, {done.forwards} forwards: plain {least['plain']:.1f} s, trace "
        f"{least['trace'] / least['plain']:.2f} x, masked {least['mask'] / least['plain']:.2f} x, peak {peak:.1f} GB",
        flush=True,
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    for asked in sys.argv[2:] or SHAPES:
        measure(asked, Path(sys.argv[1]) / asked)
