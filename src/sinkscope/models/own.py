"""What our own modules share: plain torch under transformers' names, so that hooks, caches and the attention call fit."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Reading(NamedTuple):
    """What all layers of a forward read beside the hidden states."""

    place: tuple[Tensor, Tensor]  # cosines and sines of the positions
    mask: Tensor | None  # bool [batch | 1, 1, query | 1, key]
    cache: Any
    time: Tensor | None  # [batch | 1, width], where the model has a time vector


def own_config(**fields: Any) -> PretrainedConfig:
    """A configuration of these fields; transformers takes any."""
    make: Any = PretrainedConfig
    made: PretrainedConfig = make(tie_word_embeddings=False, **fields)
    return made


def rotary(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """positions [batch | 1, position] → cosines and sines [batch | 1, 1, position, head_dim / 2]."""
    places = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None, :, None].float() * base ** (-places / head_dim)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate half-split pairs of states [batch, head, position, dim] in float32."""
    first, second = states.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(states.dtype)


class RotaryAttention(nn.Module):
    """From queries, keys and values to what the heads hand to the output projection."""

    is_causal = False

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.head_dim = config, layer, int(config.head_dim)

    def attend(self, parts: tuple[Tensor, ...], reading: Reading, **options: Any) -> Tensor:
        """parts: queries, keys and values [batch, position, width]."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        q, k = rotate(q, *reading.place), rotate(k, *reading.place)
        if reading.cache is not None:
            k, v = reading.cache.update(k, v, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation or "sdpa"]
        out: Tensor = attention(
            self, q, k, v, reading.mask, scaling=self.head_dim**-0.5, is_causal=False, dropout=0.0, **options
        )[0]
        return out.flatten(2)


class OwnPreTrained(PreTrainedModel):
    config_class = PretrainedConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["DiTLayer", "GIDDv2Layer"]  # noqa: RUF012 - transformers declares it so

    def _init_weights(self, module: nn.Module) -> None:
        """All weights come from the checkpoint."""


class OwnTransformer(OwnPreTrained):
    """Ids → hidden states behind the final norm; a subclass names what its layers and its norm are made by."""

    layer_class: ClassVar[Any]  # of the configuration and the layer's number
    norm_class: ClassVar[Any]  # of the configuration

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.layer_class(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = self.norm_class(config)

    def time_vector(self, ids: Tensor, time: Tensor | None) -> Tensor | None:
        """[batch | 1, width]; time [batch | 1] is what a caller says, in place of the decoder."""
        return None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past_key_values: Any = None, time: Tensor | None = None, **unused: Any,
    ) -> BaseModelOutputWithPast:  # fmt: skip
        """attention_mask: [batch, key] with 0 at padding, or bool [batch | 1, 1, query, key]."""
        if position_ids is None:
            before = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = before + torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask.bool()[:, None, None]
        place = rotary(position_ids, self.config.head_dim, self.config.rope_theta)
        reading = Reading(place, attention_mask, past_key_values, self.time_vector(input_ids, time))
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, reading)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)


class OwnForDiffusion(OwnPreTrained):
    """A transformer and its output head, whose logits may have a constant factor."""

    transformer_class: ClassVar[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.transformer_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, **words: Any) -> CausalLMOutputWithPast:
        hidden = self.model(input_ids, **words).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden) * self.config.head_scaling)
