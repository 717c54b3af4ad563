"""DiffusionGemma: transformers' own class and its own generate; random tokens are denoised, there is no mask token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.attention.forward import Forward, forward_context
from sinkscope.errors import CheckpointError
from sinkscope.models.family import Config, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

NATIVE = "DiffusionGemmaForBlockDiffusion"


class DiffusionGemma(Family):
    """google/diffusiongemma-26B-A4B-it."""

    name = "diffusion_gemma"
    model_type = "diffusion_gemma.*"
    samplers = ("diffusion_gemma",)
    sampler = "diffusion_gemma"
    native_class = NATIVE
    end_of_turn = "<turn|>"

    @property
    def causal_module(self) -> bool:
        return True  # its encoder is; its decoder says that it is not, call by call

    def native_config(self, config: Config) -> PretrainedConfig:
        import transformers

        if not hasattr(transformers, NATIVE):
            raise CheckpointError("DiffusionGemma needs a newer transformers, which has its class; 5.22 does.")
        _ = config["text_config"]["num_experts"]  # left out, transformers would build experts of no size
        made: PretrainedConfig = transformers.DiffusionGemmaConfig.from_dict(config)
        return made

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        return None

    def cap(self, module: Any, logits: Tensor) -> Tensor:
        most = float(module.final_logit_softcapping)
        return torch.tanh(logits.float() / most) * most

    def logits(self, model: Model, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """ids [batch, position] as a canvas that follows the begin token alone, which the encoder reads."""
        from transformers import DynamicCache

        module: Any = model.module
        first = ids.new_full((len(ids), 1), model.config.bos_token_id or 0)
        cache = DynamicCache(config=model.config)
        forward = Forward(object(), 0, torch.full_like(first, -1), len(ids), 0, None, 1, kind="encode")
        with forward_context(forward):
            module.model.encoder(input_ids=first, past_key_values=cache)
        seen = None if mask is None else nn.functional.pad(mask, (1, 0), value=1).bool()
        logits: Tensor = module(decoder_input_ids=ids, past_key_values=cache, decoder_attention_mask=seen).logits
        return logits

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        config: Any = model.module.config
        canvas = int(config.canvas_length)
        return "diffusion_gemma", {"length": canvas, "block": canvas}
