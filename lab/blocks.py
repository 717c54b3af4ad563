"""Training under block-causal attention: a model goes on as a block-diffusion model in SDAR's format.

Every block of the answer is learned at once from a second, noised copy of the row. A noised block sees itself and the
clean blocks before it, as it does when it is decoded. The clean copy is block-causal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lab import nemotron
from lab.block_recipe import BlockRecipe
from lab.data import Coder, chunks_of, rng_of
from lab.export import DTYPE
from lab.loop import Run, Step
from lab.objectives import Rows
from lab.optimiser import TorchAdamW
from lab.progress import Progress
from sinkscope.models.hub import find_folder
from sinkscope.models.load import load
from sinkscope.models.model import Model


def noised(
    recipe: BlockRecipe, rows: Rows, start: int, mask_id: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Columns from `start` on with a share of every block masked, and the loss weight of each, both [row, column].

    The share of a block is drawn evenly; a block with something of the answer has at least one mask.
    """
    ids = rows.ids[:, start:].clone()
    weight = torch.zeros(ids.shape)
    width, block = ids.shape[1], recipe.block
    for row in range(len(rows)):
        first = int(rows.prompt[row]) - start
        for left in range(0, width, block):
            places = np.arange(max(left, first), min(left + block, width))
            if len(places) == 0:
                continue
            count = max(1, round(float(rng.random()) * len(places)))
            hidden = torch.from_numpy(rng.permutation(places)[:count])
            ids[row, hidden] = mask_id
            filling = hidden >= int(rows.answer[row]) - start
            weight[row, hidden] = torch.where(filling, recipe.padding, 1.0) / count
    return ids, weight / weight.sum()


def two_streams(length: int, start: int, block: int) -> tuple[Tensor, Tensor]:
    """Which keys each query of [clean row, noised columns] sees, bool [1, 1, query, key], and the positions [1, query]."""
    positions = torch.cat([torch.arange(length), torch.arange(start, length)])
    blocks, clean = positions // block, torch.arange(len(positions)) < length
    earlier = blocks[None, :] < blocks[:, None]
    same = blocks[None, :] == blocks[:, None]
    visible = clean[None, :] & earlier | same & (clean[None, :] == clean[:, None])
    return visible[None, None], positions[None]


def loss_of(recipe: BlockRecipe, module: Any, rows: Rows, mask_id: int, rng: np.random.Generator) -> Tensor:
    """Mean cross-entropy of what was masked, each block with the same weight."""
    length = rows.ids.shape[1]
    start = int(rows.prompt.min()) // recipe.block * recipe.block
    ids, weight = noised(recipe, rows, start, mask_id, rng)
    visible, positions = two_streams(length, start, recipe.block)
    hidden = module.model(
        torch.cat([rows.ids, ids], 1), attention_mask=visible, position_ids=positions, use_cache=False, is_causal=False
    ).last_hidden_state
    at = weight.nonzero(as_tuple=True)
    logits = module.lm_head(hidden[:, length:][at])
    entropy = nn.functional.cross_entropy(logits.float(), rows.ids[:, start:][at], reduction="none")
    return (entropy * weight[at]).sum()


def start_module(recipe: BlockRecipe, source: Model) -> tuple[Any, dict[str, Any]]:
    """Qwen3 with the source's weights, and its SDAR config.json; the norms of queries and keys begin at their mean size."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    old, tokenizer = source.config, source.require_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    config = {
        "architectures": ["SDARForCausalLM"], "model_type": "sdar", "attention_bias": False, "attention_dropout": 0.0,
        "block_size": recipe.block, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": [end, tokenizer.eos_token_id],
        "head_dim": old.hidden_size // old.num_attention_heads, "hidden_act": "silu", "hidden_size": old.hidden_size,
        "intermediate_size": old.intermediate_size, "mask_token_id": source.mask_id,
        "max_position_embeddings": old.max_position_embeddings, "num_attention_heads": old.num_attention_heads,
        "num_hidden_layers": old.num_hidden_layers, "num_key_value_heads": old.num_key_value_heads,
        "pad_token_id": tokenizer.pad_token_id, "rms_norm_eps": old.rms_norm_eps, "rope_scaling": None,
        "rope_theta": old.rope_parameters["rope_theta"], "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_sliding_window": False, "sliding_window": None, "vocab_size": old.vocab_size,
        "sinkscope_decode": dict(recipe.decode),
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


class BlockRun(Run):
    """`start` names another checkpoint than the recipe's to start from."""

    def __init__(self, recipe: BlockRecipe, out: Path, start: Path | None = None) -> None:
        super().__init__(recipe, out)
        self.source = load(str(start or recipe.start))
        begin = nemotron.start_module if recipe.family == "nemotron" else start_module
        self.module, self.config = begin(recipe, self.source)
        self.coder = Coder.of(self.source.require_tokenizer(), recipe.data.begin)
        self.optimisation = TorchAdamW(self.module, recipe.optimiser)
        self.counts = {"loss": torch.tensor(0.0, dtype=torch.float64)}  # smoothed
        self.resume()

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        recipe = self.recipe
        chunks = chunks_of(recipe.drawing, self.coder, self.step)
        rng = rng_of(recipe.seed, self.step, 2)
        objective = nemotron.loss_of if recipe.family == "nemotron" else loss_of
        for rows in chunks:
            loss = objective(recipe, self.module, rows, self.config["mask_token_id"], rng)
            yield loss / len(chunks), rows.ids.numel()

    def one_step(self) -> Step:
        found = super().one_step()
        smoothed = 0.95 * float(self.counts["loss"]) + 0.05 * found.loss if self.step > 1 else found.loss
        self.counts["loss"].fill_(smoothed)
        return found

    def record(self, found: Step, progress: Progress) -> dict[str, Any]:
        """Every few steps the smoothed loss."""
        if self.step % self.recipe.log_every:
            return {}
        return {"loss": round(float(self.counts["loss"]), 4), "seconds": round(self.seconds, 1)}

    def export(self, folder: Path) -> Path:
        """The running mean of the weights in the family's own format, with the tokenizer of the model that it began as."""
        folder.mkdir(parents=True, exist_ok=True)
        named = nemotron.stored_name if self.recipe.family == "nemotron" else str
        means = self.optimisation.mean_weights()
        stored = {named(name): part.to(DTYPE).contiguous() for name, part in means.items()}
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        source = find_folder(self.source.name)
        for path in source.glob("*token*.json"):
            shutil.copyfile(path, folder / path.name)
        return folder
