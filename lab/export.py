"""A trained model in its family's own checkpoint format: config.json, key names and tokenizer files.

So the package's loaders for the real LLaDA, Dream, MMaDA and Llama checkpoints are the ones that load the tiny ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import sinkscope
from lab.errors import TrainingError
from lab.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ZOO = Path(sinkscope.__file__).parent / "zoo"
DTYPE = torch.float16  # three bits more than bf16; no weight here comes near its limits

# Native Llama names on the left, LLaDA's and MMaDA's on the right.
_NAMES = {
    "model.embed_tokens.weight": "model.transformer.wte.weight",
    "model.norm.weight": "model.transformer.ln_f.weight",
    "lm_head.weight": "model.transformer.ff_out.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


def to_llada(name: str) -> str:
    """LLaDA's name of a Llama weight."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if found:
        return f"model.transformer.blocks.{found[1]}.{_IN_LAYER[found[2]]}.weight"
    return _NAMES[name]


def from_llada(name: str) -> str:
    """Llama's name of a LLaDA weight; other names stay as they are."""
    found = re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(.+)\.weight", name)
    if found:
        back = {theirs: ours for ours, theirs in _IN_LAYER.items()}
        return f"model.layers.{found[1]}.{back.get(found[2], found[2])}.weight"
    return {theirs: ours for ours, theirs in _NAMES.items()}.get(name, name)


def export(recipe: Recipe, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """Write the checkpoint folder whole, in place of an older one; variants that no format knows are refused."""
    if recipe.variant != "plain":
        return folder  # an ablation: its curve is the result, no loader would know its attention
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        names = to_llada if recipe.family in ("llada", "mmada") else str
        stored = {names(name): tensor.detach().to(DTYPE).contiguous() for name, tensor in weights.items()}
        save_file(stored, temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
        config = json.dumps(config_of(recipe, tokenizer), indent=2, sort_keys=True) + "\n"
        (temporary / "config.json").write_text(config, encoding="utf-8")
        save_tokenizer(tokenizer, temporary, names_mask=not recipe.causal)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the checkpoint could not be written to {folder} ({error}); free some space.") from error
    return folder


# What the tiny models are decoded with unless told otherwise: the canvas they were trained on, one token per step.
_DECODE: dict[str, dict[str, Any]] = {
    "llama": {"length": 24},
    "llada": {"length": 24, "block": 8, "steps": 24},
    "mmada": {"length": 24, "block": 8, "steps": 24},
    "dream": {"length": 24, "steps": 24, "temperature": 0.0, "top_p": None, "top_k": None},
}


def config_of(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """config.json with the field names of the family's own, and the decode settings of the tiny models."""
    return {**_family_config(recipe, tokenizer), "sinkscope_decode": _DECODE[recipe.family]}


def _family_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    shape, vocabulary = recipe.shape, len(tokenizer)
    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    mask = {"mask_token_id": tokenizer.convert_tokens_to_ids("<|mdm_mask|>")}
    if recipe.family in ("llama", "dream"):
        plain = {
            "attention_dropout": 0.0,
            "bos_token_id": tokenizer.bos_token_id,
            "hidden_act": "silu",
            "hidden_size": shape.width,
            "initializer_range": 0.02,
            "intermediate_size": shape.ffn,
            "max_position_embeddings": shape.positions,
            "num_attention_heads": shape.heads,
            "num_hidden_layers": shape.layers,
            "num_key_value_heads": shape.heads,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "use_cache": True,
            "vocab_size": vocabulary,
            **ids,
        }
        if recipe.family == "llama":
            # A turn ends with its own token, so generation stops at either.
            stop = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot_id|>")]
            own: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
            return {**plain, **own, "attention_bias": False, "mlp_bias": False, "eos_token_id": stop}
        own = {"architectures": ["DreamModel"], "model_type": "Dream", "sliding_window": None, "use_mrope": False}
        return {**plain, **own, **mask, "use_sliding_window": False, "max_window_layers": shape.layers}
    config: dict[str, Any] = {
        "activation_type": "silu",
        "alibi": False,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": shape.width,
        "embedding_dropout": 0.0,
        "embedding_size": vocabulary,
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "max_sequence_length": shape.positions,
        "mlp_hidden_size": shape.ffn,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": shape.heads,
        "n_kv_heads": shape.heads,
        "n_layers": shape.layers,
        "residual_dropout": 0.0,
        "rms_norm_eps": 1e-05,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 10000.0,
        "scale_logits": False,
        "torch_dtype": "float16",
        "use_cache": False,
        "vocab_size": vocabulary,
        "weight_tying": False,
        **ids,
        **mask,
    }
    if recipe.family == "mmada":
        codes = sum(token.startswith("<|image_") for token in tokenizer.get_vocab())
        config |= {
            "architectures": ["MMadaModelLM"],
            "model_type": "mmada",
            "codebook_size": codes,
            "llm_vocab_size": vocabulary - codes,
            "new_vocab_size": vocabulary,
            "num_new_special_tokens": 0,
            "num_vq_tokens": 36,
            "tie_word_embeddings": False,
            "w_clip_vit": False,
        }
    return config


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, names_mask: bool) -> None:
    """tokenizer.json, tokenizer_config.json with the chat template in it, and special_tokens_map.json.

    A causal checkpoint must not name a mask token: that is how loaders tell a converted diffusion model.
    """
    tokenizer.save_pretrained(folder)
    template = folder / "chat_template.jinja"
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if template.is_file():
        settings["chat_template"] = template.read_text(encoding="utf-8")
        template.unlink()
    special = dict(tokenizer.special_tokens_map)
    if not names_mask:
        settings.pop("mask_token", None)
        special.pop("mask_token", None)
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n", encoding="utf-8")


def weights_to_start_from(recipe: Recipe, start: Path | None, out: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Weights in native names, and the vocabulary, of the checkpoint that a recipe starts from.

    That is the folder given, or the run of that name beside `out`, or the model of that name in the zoo.
    """
    beside = out.parent / str(recipe.start) / "model"
    folder = start or (beside if beside.is_dir() else ZOO / str(recipe.start))
    weights, vocabulary = folder / "model.safetensors", folder / "tokenizer.json"
    if not weights.is_file() or not vocabulary.is_file():
        raise TrainingError(
            f"{recipe.name} starts from {recipe.start}, but {folder} is no checkpoint; train that recipe first, into a "
            f"folder of its name beside this one."
        )
    try:
        tokenizer = json.loads(vocabulary.read_text(encoding="utf-8"))
        stored = load_file(weights)
        names = dict(tokenizer["model"]["vocab"]) | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
        return {from_llada(name): tensor.float() for name, tensor in stored.items()}, names
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder} is not a whole checkpoint ({error}); train that recipe again.") from error
