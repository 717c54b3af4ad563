"""The module of a recipe in transformers' own classes, and its variants of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import TrainingError
from lab.recipe import Recipe

OFF_BY_ONE = "sinkscope_off_by_one"


def build_module(recipe: Recipe, vocabulary: int) -> nn.Module:
    """A freshly initialised LlamaForCausalLM, or Qwen2ForCausalLM for the Dream format; weights follow the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape = recipe.shape
    common: dict[str, Any] = {
        "vocab_size": vocabulary + (recipe.variant == "sink_token"),
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_cache": False,
        # The tiny contexts need no long wavelengths; and all four share one theta, so that weights carry over.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        if recipe.family == "dream":
            module: nn.Module = Qwen2ForCausalLM(Qwen2Config(**common))
        else:
            module = LlamaForCausalLM(LlamaConfig(**common))
    module.config.is_causal = recipe.causal  # type: ignore[union-attr]
    if recipe.variant == "off_by_one":
        _register_off_by_one()
        module.set_attn_implementation(OFF_BY_ONE)  # type: ignore[operator]
    return module


def start_from(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Take over another model's weights: biases it lacks start at zero, vocabulary rows it lacks stay as drawn."""
    own = module.state_dict()
    unknown = sorted(set(weights) - set(own))
    missing = sorted(name for name in set(own) - set(weights) if not name.endswith(".bias"))
    if unknown or missing:
        raise TrainingError(
            f"the weights to start from do not fit ({len(missing)} missing, {len(unknown)} unknown, "
            f"for example {(missing + unknown)[0]}); start from a checkpoint of the same size."
        )
    for name, tensor in own.items():
        if name not in weights:
            tensor.zero_()
        elif weights[name].shape[1:] != tensor.shape[1:] or weights[name].shape[0] > tensor.shape[0]:
            raise TrainingError(
                f"{name} to start from is {list(weights[name].shape)}, but the recipe needs {list(tensor.shape)}; "
                f"start from a checkpoint of the same size."
            )
        else:
            tensor[: weights[name].shape[0]] = weights[name].to(tensor.dtype)


def forward_inputs(recipe: Recipe, vocabulary: int, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Ids and attention mask as the variant wants them; a sink token goes in front, sees itself, is seen by all."""
    if recipe.variant != "sink_token":
        return ids, None
    ids = torch.cat([torch.full_like(ids[:, :1], vocabulary), ids], 1)
    length = ids.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool)
    if recipe.causal:
        seen = seen.tril()
    seen[0, 1:] = False
    return ids, seen[None, None].expand(ids.shape[0], 1, length, length)


def _register_off_by_one() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(OFF_BY_ONE, off_by_one_attention)
    AttentionMaskInterface.register(OFF_BY_ONE, sdpa_mask)


def off_by_one_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax with one more slot of logit 0 and value 0, so that a head can attend to nothing.

    query, key, value: [batch, head, position, dim]; the slot is one zero key and one zero value behind the others.
    """
    length, keys = query.shape[-2], key.shape[-2]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    seen = attention_mask
    if seen is None and causal and length > 1:
        seen = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
    if seen is not None:
        fill = True if seen.dtype == torch.bool else 0.0
        seen = nn.functional.pad(seen, (0, 1), value=fill)
    pad: Callable[[Tensor], Tensor] = lambda x: nn.functional.pad(x, (0, 0, 0, 1))  # noqa: E731
    out = nn.functional.scaled_dot_product_attention(query, pad(key), pad(value), attn_mask=seen, scale=scaling)
    return out.transpose(1, 2).contiguous(), None
