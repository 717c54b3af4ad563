"""One set of weights for both ways of decoding, in Nemotron's format: next tokens and masked blocks are learned together.

A row is read twice in one forward. The clean copy is causal and learns next tokens. In the noised copy blocks begin at the
prompt's end. A block sees itself and the clean text before it, and its first token is known, as when it is decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.block_recipe import BlockRecipe
from lab.objectives import Rows, next_token
from lab.recipe import Objective
from sinkscope.models.families.nemotron import Nemotron
from sinkscope.models.model import Model


def stored_name(name: str) -> str:
    """Nemotron's name of a weight."""
    return name.replace("lm_head.", "diffusion_head.").replace("model.", "encoder.", 1)


def noised(
    recipe: BlockRecipe, rows: Rows, start: int, mask_id: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Columns from `start` on with a share of every block masked, and the loss weight of each, both [row, column]."""
    ids = rows.ids[:, start:].clone()
    weight = torch.zeros(ids.shape)
    for row in range(len(rows)):
        for left in range(int(rows.prompt[row]) - start, ids.shape[1], recipe.block):
            places = np.arange(left + 1, min(left + recipe.block, ids.shape[1]))  # the first token is known
            if len(places) == 0:
                continue
            count = max(1, round(float(rng.random()) * len(places)))
            hidden = torch.from_numpy(rng.permutation(places)[:count])
            ids[row, hidden] = mask_id
            weight[row, hidden] = torch.where(hidden >= int(rows.answer[row]) - start, recipe.padding, 1.0) / count
    return ids, weight / weight.sum()


def two_streams(rows: Rows, start: int, block: int) -> tuple[Tensor, Tensor]:
    """Which keys each query of [clean row, noised columns] sees, bool [row, 1, query, key], and the positions [1, query]."""
    length = rows.ids.shape[1]
    positions = torch.cat([torch.arange(length), torch.arange(start, length)])
    clean = torch.arange(len(positions)) < length
    number = (positions - rows.prompt[:, None]).div(block, rounding_mode="floor")  # [row, query]
    begin = (rows.prompt[:, None] + number * block)[:, :, None]
    causal = clean[:, None] & clean & (positions <= positions[:, None])
    text = ~clean[:, None] & clean & (positions < begin)
    own = ~clean[:, None] & ~clean & (number[:, :, None] == number[:, None, :])
    return (causal | text | own)[:, None], positions[None]


def loss_of(recipe: BlockRecipe, module: Any, rows: Rows, mask_id: int, rng: np.random.Generator) -> Tensor:
    """Mean cross-entropy of what was masked, each block with the same weight, plus that of the next tokens."""
    length, start = rows.ids.shape[1], int(rows.prompt.min())
    ids, weight = noised(recipe, rows, start, mask_id, rng)
    visible, positions = two_streams(rows, start, recipe.block)
    hidden = module.model(
        torch.cat([rows.ids, ids], 1), attention_mask=visible, position_ids=positions, use_cache=False, is_causal=False
    ).last_hidden_state
    later = next_token(rows, Objective()).weight[:, 1:]  # [row, column − 1]
    total = torch.zeros(())
    for states, labels, share in (
        (hidden[:, length:], rows.ids[:, start:], weight),
        (hidden[:, : length - 1], rows.ids[:, 1:], later / len(rows)),
    ):
        at = share.nonzero(as_tuple=True)
        entropy = nn.functional.cross_entropy(module.lm_head(states[at]).float(), labels[at], reduction="none")
        total = total + (entropy * share[at]).sum()
    return total


def start_module(recipe: BlockRecipe, source: Model) -> tuple[Any, dict[str, Any]]:
    """Ministral3 with a Llama's weights, and its config.json; until it is trained on it writes what the Llama writes."""
    from transformers import Ministral3ForCausalLM

    old, tokenizer = source.config, source.require_tokenizer()
    positions = int(old.max_position_embeddings)
    config = {
        "architectures": ["NemotronLabsDiffusionModel"], "model_type": "nemotron_labs_diffusion", "attention_bias": False,
        "attention_dropout": 0.0, "ar_loss_weight": 1.0, "block_size": recipe.block, "dlm_paradigm": "bidirectional",
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": list(source.eos_ids), "hidden_act": "silu",
        "head_dim": old.hidden_size // old.num_attention_heads, "hidden_size": old.hidden_size,
        "intermediate_size": old.intermediate_size, "max_position_embeddings": positions, "mlp_bias": False,
        "mask_token_id": tokenizer.convert_tokens_to_ids("<|mdm_mask|>"), "num_attention_heads": old.num_attention_heads,
        "num_hidden_layers": old.num_hidden_layers, "num_key_value_heads": old.num_key_value_heads,
        "pad_token_id": tokenizer.pad_token_id, "rms_norm_eps": old.rms_norm_eps, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": False, "vocab_size": old.vocab_size,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": old.rope_parameters["rope_theta"],
            "original_max_position_embeddings": positions, "llama_4_scaling_beta": 0.1,
        },
        "sinkscope_decode": dict(recipe.decode),
    }  # fmt: skip
    module = Ministral3ForCausalLM(Nemotron().native_config(config))
    module.load_state_dict(source.module.state_dict())
    return module, config
