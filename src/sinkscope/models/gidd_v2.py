"""GIDD v2's transformer: scores have a cap, and every head has a learned key and value in front of all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from sinkscope.attention.attend import attend
from sinkscope.attention.call import BuiltIn
from sinkscope.models.own import OwnForDiffusion, OwnTransformer, Reading, RotaryAttention

CAPPED = "sinkscope_capped"


def capped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
    cap: float, built_in: BuiltIn | None = None, **unused: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention of this model where nobody listens."""
    if built_in is not None:
        own_key, own_value = (own.expand(len(key), -1, -1, -1) for own in built_in)
        key, value = torch.cat([own_key, key], 2), torch.cat([own_value, value], 2)
        attention_mask = None if attention_mask is None else functional.pad(attention_mask, (1, 0), value=True)
    out = attend(query, key, value, mask=attention_mask, scale=scaling, cap=cap)[0]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(CAPPED, capped_attention)
AttentionMaskInterface.register(CAPPED, sdpa_mask)


class RMSNorm(nn.Module):
    """Root mean square norm whose weight is stored as its distance from 1."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.hidden_size))
        self.epsilon = config.rms_norm_eps

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
        product = functional.linear(hidden, self.weight) * self.scaling
        bias: Any = self.bias
        return product if bias is None else product + bias


class GIDDv2Attention(RotaryAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        width, shape = config.hidden_size, (config.num_attention_heads, config.head_dim)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (ScaledLinear(config, width, width) for _ in range(4))
        self.q_norm, self.k_norm = RMSNorm(config), RMSNorm(config)
        if config.attention_bias:
            self.k_bias, self.v_bias = (nn.Parameter(torch.zeros(shape)) for _ in range(2))

    @property
    def built_in(self) -> BuiltIn | None:
        """The learned key and value; neither is rotated, so that they stand on no position."""
        if not self.config.attention_bias:
            return None
        return BuiltIn(self.k_bias[None, :, None], self.v_bias[None, :, None])

    def forward(self, hidden: Tensor, reading: Reading) -> Tensor:
        parts = self.q_norm(self.q_proj(hidden)), self.k_norm(self.k_proj(hidden)), self.v_proj(hidden)
        out = self.attend(parts, reading, cap=float(self.config.attn_soft_cap), built_in=self.built_in)
        return self.config.branch_scale * self.o_proj(out)  # type: ignore[no-any-return]


class GIDDv2MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.up_proj = ScaledLinear(config, config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = ScaledLinear(config, config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.config.branch_scale * self.down_proj(self.up_proj(hidden).relu().square())  # type: ignore[no-any-return]


class GIDDv2Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.attn_layernorm = RMSNorm(config)
        self.self_attn = GIDDv2Attention(config, layer)
        self.mlp_layernorm = RMSNorm(config)
        self.mlp = GIDDv2MLP(config)

    def forward(self, hidden: Tensor, reading: Reading) -> Tensor:
        hidden = hidden + self.self_attn(self.attn_layernorm(hidden), reading)
        return hidden + self.mlp(self.mlp_layernorm(hidden))  # type: ignore[no-any-return]


class GIDDv2(OwnTransformer):
    layer_class = GIDDv2Layer
    norm_class = RMSNorm


class GIDDv2ForDiffusion(OwnForDiffusion):
    transformer_class = GIDDv2
