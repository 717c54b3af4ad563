"""A tiny block-diffusion model in SDAR's format: `python -m sinkscope.training.blocks --out runs/tiny-sdar`.

It starts from tiny-llada. Every block of the answer is learned at once from a second, noised copy of the row: a noised
block sees itself and the clean blocks before it, as it does when it is decoded; the clean copy is block-causal.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sinkscope.models.load import load
from sinkscope.training.data import Coder, chunks_of, rng_of
from sinkscope.training.export import DTYPE, ZOO
from sinkscope.training.objectives import Rows
from sinkscope.training.recipe import Recipe, load_recipe

START = "tiny-llada"
BLOCK = 4
PADDING = 0.2  # loss weight of end-of-text after the answer's end
RATE = 1.5e-3
WARMUP = 30
EMA = 0.99


def noised(rows: Rows, start: int, mask_id: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Columns from `start` on with a share of every block masked, and the loss weight of each, both [row, column].

    The share of a block is drawn evenly; a block with something of the answer has at least one mask.
    """
    ids = rows.ids[:, start:].clone()
    weight = torch.zeros(ids.shape)
    width = ids.shape[1]
    for row in range(len(rows)):
        first = int(rows.prompt[row]) - start
        for left in range(0, width, BLOCK):
            places = np.arange(max(left, first), min(left + BLOCK, width))
            if len(places) == 0:
                continue
            count = max(1, round(float(rng.random()) * len(places)))
            hidden = torch.from_numpy(rng.permutation(places)[:count])
            ids[row, hidden] = mask_id
            filling = hidden >= int(rows.answer[row]) - start
            weight[row, hidden] = torch.where(filling, PADDING, 1.0) / count
    return ids, weight / weight.sum()


def two_streams(length: int, start: int) -> tuple[Tensor, Tensor]:
    """Which keys each query of [clean row, noised columns] sees, bool [1, 1, query, key], and the positions [1, query]."""
    positions = torch.cat([torch.arange(length), torch.arange(start, length)])
    blocks, clean = positions // BLOCK, torch.arange(len(positions)) < length
    earlier = blocks[None, :] < blocks[:, None]
    same = blocks[None, :] == blocks[:, None]
    visible = clean[None, :] & earlier | same & (clean[None, :] == clean[:, None])
    return visible[None, None], positions[None]


def loss_of(module: Any, rows: Rows, mask_id: int, rng: np.random.Generator) -> Tensor:
    """Mean cross-entropy of what was masked, each block with the same weight."""
    length = rows.ids.shape[1]
    start = int(rows.prompt.min()) // BLOCK * BLOCK
    ids, weight = noised(rows, start, mask_id, rng)
    visible, positions = two_streams(length, start)
    hidden = module.model(
        torch.cat([rows.ids, ids], 1), attention_mask=visible, position_ids=positions, use_cache=False, is_causal=False
    ).last_hidden_state
    at = weight.nonzero(as_tuple=True)
    logits = module.lm_head(hidden[:, length:][at])
    entropy = nn.functional.cross_entropy(logits.float(), rows.ids[:, start:][at], reduction="none")
    return (entropy * weight[at]).sum()


def start_module() -> tuple[Any, dict[str, Any]]:
    """Qwen3 with tiny-llada's weights, and its SDAR config.json; the norms of queries and keys begin at their mean size."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    source = load(START)
    old, tokenizer = source.config, source.require_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    config = {
        "architectures": ["SDARForCausalLM"], "model_type": "sdar", "attention_bias": False, "attention_dropout": 0.0,
        "block_size": BLOCK, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": [end, tokenizer.eos_token_id],
        "head_dim": old.hidden_size // old.num_attention_heads, "hidden_act": "silu", "hidden_size": old.hidden_size,
        "intermediate_size": old.intermediate_size, "mask_token_id": source.mask_id,
        "max_position_embeddings": old.max_position_embeddings, "num_attention_heads": old.num_attention_heads,
        "num_hidden_layers": old.num_hidden_layers, "num_key_value_heads": old.num_key_value_heads,
        "pad_token_id": tokenizer.pad_token_id, "rms_norm_eps": old.rms_norm_eps, "rope_scaling": None,
        "rope_theta": old.rope_parameters["rope_theta"], "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_sliding_window": False, "sliding_window": None, "vocab_size": old.vocab_size,
        "sinkscope_decode": {"length": 24, "temperature": 0.0, "top_p": None},
    }  # fmt: skip
    kept = {name: value for name, value in config.items() if name not in ("architectures", "model_type", "torch_dtype")}
    native = Qwen3Config(**{**kept, "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]}})
    module = Qwen3ForCausalLM(native)
    missing, strange = module.load_state_dict(source.module.state_dict(), strict=False)
    assert not strange and all("_norm" in name for name in missing)
    ids = source.encode("Tom has 12 apples and gives 5 away. How many are left?")
    sizes: dict[str, float] = {}
    for name, part in source.module.named_modules():
        if name.endswith(("q_proj", "k_proj")):
            part.register_forward_hook(
                lambda _, __, out, name=name: sizes.update({name: float(out.square().mean() ** 0.5)})
            )
    source.logits(ids)
    with torch.no_grad():
        for layer, part in enumerate(module.model.layers):
            for letter in "qk":
                norm = getattr(part.self_attn, f"{letter}_norm")
                norm.weight.fill_(sizes[f"model.layers.{layer}.self_attn.{letter}_proj"])
    return module, config


def train(out: Path, steps: int, save_every: int = 50) -> Path:
    """Train, with a running mean of the weights; the checkpoint is written anew from time to time."""
    recipe: Recipe = replace(load_recipe(START), batch=32, chunks=2, seed=4)
    module, config = start_module()
    coder = Coder.of(load(START).require_tokenizer(), recipe.data.begin)
    mean = {name: part.detach().clone() for name, part in module.named_parameters()}
    optimiser = torch.optim.AdamW(module.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    out.mkdir(parents=True, exist_ok=True)
    started, seen = time.process_time(), 0.0
    for step in range(steps):
        rate = RATE * min((step + 1) / WARMUP, (steps - step) / steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        chunks = chunks_of(recipe, coder, step)
        rng = rng_of(recipe.seed, step, 2)
        total = 0.0
        for rows in chunks:
            loss = loss_of(module, rows, config["mask_token_id"], rng) / len(chunks)
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        weight = min(EMA, (step + 1) / (step + 10))
        with torch.no_grad():
            for name, part in module.named_parameters():
                mean[name].lerp_(part, 1 - weight)
        seen = total if step == 0 else 0.95 * seen + 0.05 * total
        if (step + 1) % 20 == 0:
            line = {"step": step + 1, "loss": round(seen, 4), "seconds": round(time.process_time() - started, 1)}
            with (out / "curve.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if (step + 1) % save_every == 0 or step + 1 == steps:
            write(out / "model", mean, config)
    return out / "model"


def write(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """The checkpoint in SDAR's own format, with tiny-llada's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: part.to(DTYPE).contiguous() for name, part in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for path in (ZOO / START).glob("*token*.json"):
        shutil.copyfile(path, folder / path.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sinkscope.training.blocks", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args(arguments)
    print(train(given.out, given.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
