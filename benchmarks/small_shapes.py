"""Random weights in the real shapes of the small diffusion models: load, trace, mask; memory, time, cost over plain.

    python benchmarks/small_shapes.py FOLDER [mdlm bd3lm gidd-small gidd-base sedd-small gidd-v2-3b]

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

SMALL, BASE, LARGE = (768, 12, 12), (1024, 24, 16), (2560, 32, 40)
LARGE_WORDS = 131072
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


def gidd_v2(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Sizes from 3 B parameters, the vocabulary and the training code's rules (MLP 4 × width, heads of 64)."""
    width, layers, heads = shape
    return {
        "model_type": "gidd", "vocab_size": LARGE_WORDS, "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": 64, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": True, "mlp_bias": True,
        "attn_soft_cap": 30.0, "head_scaling": 512 / width, "weight_scaling": 1.0, "resid_scale": 4.0, "use_qk_norm": True,
        "noise_type": -1000.0, "min_log_snr": -9.0, "max_log_snr": 9.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


SHAPES: dict[str, tuple[tuple[int, int, int], str, dict[str, Any], dict[str, Any]]] = {
    "mdlm": (SMALL, "backbone.", kuleshov("mdlm"), {"length": 1023, "steps": 2}),
    "bd3lm": (SMALL, "backbone.", kuleshov("bd3lm", block_size=4), {"length": 127, "entropy_test": False}),
    "gidd-small": (SMALL, "", gidd(SMALL), {"length": 511, "steps": 3}),
    "gidd-base": (BASE, "", gidd(BASE), {"length": 511, "steps": 3}),
    "sedd-small": (SMALL, "", sedd(SMALL), {"length": 1023, "steps": 2}),
    "gidd-v2-3b": (LARGE, "", gidd_v2(LARGE), {"length": 4, "block": 4, "steps": 2, "canvas": 64}),
}


def dit_sizes(shape: tuple[int, int, int], prefix: str) -> dict[str, tuple[int, ...]]:
    """Sizes under the authors' keys."""
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
    return {prefix + name: size for name, size in sizes.items()}


def large_sizes(shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Of GIDD v2: two norms a layer, a learned key and value per head, no bias in the projections of attention."""
    width, layers, heads = shape
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (LARGE_WORDS, width), "model.norm.weight": (width,),
        "lm_head.weight": (LARGE_WORDS, width),
    }  # fmt: skip
    for layer in range(layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_layernorm.weight": (width,), "mlp_layernorm.weight": (width,), "mlp.up_proj.weight": (4 * width, width),
            "mlp.up_proj.bias": (4 * width,), "mlp.down_proj.weight": (width, 4 * width), "mlp.down_proj.bias": (width,),
            "self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,),
            "self_attn.k_bias": (heads, width // heads), "self_attn.v_bias": (heads, width // heads),
            **{f"self_attn.{part}_proj.weight": (width, width) for part in "qkvo"},
        }  # fmt: skip
        sizes |= {f"model.layers.{layer}.{name}": size for name, size in block.items()}
    return sizes


def write_weights(sizes: dict[str, tuple[int, ...]], folder: Path, dtype: torch.dtype) -> None:
    """Random numbers in files of about a gigabyte, so that none but one is ever in memory."""
    torch.manual_seed(0)
    index: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for place, (name, size) in enumerate(sizes.items()):
        tensors[name] = (torch.randn(size) * (0.2 if len(size) == 1 else size[-1] ** -0.5)).to(dtype)
        if place == len(sizes) - 1 or sum(one.nbytes for one in tensors.values()) > 2**30:
            file = f"model-{len(set(index.values())):05}.safetensors"
            save_file(tensors, folder / file, {"format": "pt"})
            index |= dict.fromkeys(tensors, file)
            tensors.clear()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def timed(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(name: str, folder: Path) -> None:
    shape, prefix, config, words = SHAPES[name]
    is_large = name == "gidd-v2-3b"
    dtype = torch.bfloat16 if is_large else torch.float32
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(large_sizes(shape) if is_large else dit_sizes(shape, prefix), folder, dtype)
    started = time.perf_counter()
    model = sk.load(folder, dtype=dtype)
    size = sum(part.numel() for part in model.module.parameters())
    print(f"{name}: {size:,} parameters, loaded in {time.perf_counter() - started:.1f} s", flush=True)
    ids, settings = torch.tensor([[WORDS - 2]]), model.defaults.changed(words)

    done: list[Any] = []

    def plain() -> None:
        done[:] = [sk.decode(model, ids, settings)]

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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"  {done[0].tokens.shape[1]} positions, {done[0].forwards} forwards: plain {least['plain']:.1f} s, trace "
        f"{least['trace'] / least['plain']:.2f} x, masked {least['mask'] / least['plain']:.2f} x, peak {peak:.1f} GB",
        flush=True,
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    for asked in sys.argv[2:] or SHAPES:  # one a process, where the memory of each is to be told
        measure(asked, Path(sys.argv[1]) / asked)
