"""GIDD v2's transformer in plain torch: scores have a cap, and every head a learned key and value in front of all others."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention.attend import attend
from sinkscope.attention.call import BuiltIn
from sinkscope.models.dit import rotary, rotate

CAPPED = "sinkscope_capped"


class GIDDv2Config(PretrainedConfig):
    """The authors' fields that a forward or a decoder reads."""

    model_type = "sinkscope_gidd_v2"

    def __init__(self, mask_token_id: int = 3, bos_token_id: int = 0, eos_token_id: int = 1, pad_token_id: int = 2,
                 **fields: Any) -> None:  # fmt: skip
        super().__init__(tie_word_embeddings=False)
        self.mask_token_id = mask_token_id
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        for name, value in fields.items():
            setattr(self, name, value)


def capped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
    cap: float, built_in: BuiltIn | None = None, **unused: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention of this model where nobody listens."""
    if built_in is not None:
        key, value = (
            torch.cat([own.to(part).expand(len(part), -1, -1, -1), part], 2)
            for own, part in zip(built_in, (key, value), strict=True)
        )
        attention_mask = None if attention_mask is None else functional.pad(attention_mask, (1, 0), value=True)
    out = attend(query, key, value, mask=attention_mask, scale=scaling, cap=cap)[0]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(CAPPED, capped_attention)
AttentionMaskInterface.register(CAPPED, sdpa_mask)


class RMSNorm(nn.Module):
    """Root mean square norm whose weight is stored as its distance from 1."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (normed * (1 + self.weight.float())).to(hidden.dtype)


class ScaledLinear(nn.Linear):
    """A linear layer whose product, not its bias, has a constant factor."""

    def __init__(self, config: Any, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)
        scaling = config.weight_scaling
        self.scaling = inputs**-0.5 if scaling == "fan_in" else float(scaling)

    def forward(self, hidden: Tensor) -> Tensor:
        made = functional.linear(hidden, self.weight) * self.scaling
        return made if self.bias is None else made + self.bias


class GIDDv2Attention(nn.Module):
    is_causal = False

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.num_attention_heads * config.head_dim
        self.config, self.layer_idx, self.head_dim = config, layer, config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (ScaledLinear(config, width, inner) for _ in range(3))
        self.o_proj = ScaledLinear(config, inner, width)
        self.q_norm, self.k_norm = (RMSNorm(inner, config.rms_norm_eps) for _ in range(2))
        self.added = config.resid_scale / config.num_hidden_layers
        if config.attention_bias:
            shape = (config.num_attention_heads, config.head_dim)
            self.k_bias, self.v_bias = (nn.Parameter(torch.zeros(shape)) for _ in range(2))

    @property
    def built_in(self) -> BuiltIn | None:
        """The learned key and value; neither is rotated, so that they stand on no position."""
        if not self.config.attention_bias:
            return None
        return BuiltIn(self.k_bias[None, :, None], self.v_bias[None, :, None])

    def forward(self, hidden: Tensor, place: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        parts = self.q_norm(self.q_proj(hidden)), self.k_norm(self.k_proj(hidden)), self.v_proj(hidden)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        q, k = rotate(q, *place), rotate(k, *place)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        out = attention(
            self, q, k, v, mask, scaling=self.head_dim**-0.5, cap=float(self.config.attn_soft_cap),
            built_in=self.built_in, is_causal=False,
        )[0]  # fmt: skip
        return self.added * self.o_proj(out.flatten(2))  # type: ignore[no-any-return]


class GIDDv2MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up_proj = ScaledLinear(config, config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = ScaledLinear(config, config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.added = config.resid_scale / config.num_hidden_layers

    def forward(self, hidden: Tensor) -> Tensor:
        return self.added * self.down_proj(self.up_proj(hidden).relu().square())  # type: ignore[no-any-return]


class GIDDv2Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.attn_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = GIDDv2Attention(config, layer)
        self.mlp_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GIDDv2MLP(config)

    def forward(self, hidden: Tensor, place: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        hidden = hidden + self.self_attn(self.attn_layernorm(hidden), place, mask, cache)
        return hidden + self.mlp(self.mlp_layernorm(hidden))  # type: ignore[no-any-return]


class GIDDv2PreTrained(PreTrainedModel):
    config_class = GIDDv2Config
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules: ClassVar[list[str]] = ["GIDDv2Layer"]

    def _init_weights(self, module: nn.Module) -> None:
        """All weights come from the checkpoint."""


class GIDDv2(GIDDv2PreTrained):
    """Ids → hidden states behind the final norm."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(GIDDv2Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        """attention_mask: [batch, key] with 0 at padding, or bool [batch | 1, 1, query, key]."""
        if position_ids is None:
            before = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = before + torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask.bool()[:, None, None]
        place = rotary(position_ids, self.config.head_dim, self.config.rope_theta)
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, place, attention_mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)


class GIDDv2ForDiffusion(GIDDv2PreTrained):
    """The transformer and its output head, whose logits have a constant factor."""

    _tied_weights_keys = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = GIDDv2(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, **words: Any) -> CausalLMOutputWithPast:
        output = self.model(input_ids, **words)
        return CausalLMOutputWithPast(logits=self.lm_head(output.last_hidden_state) * self.config.head_scaling)
