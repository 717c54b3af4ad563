"""The diffusion transformer of MDLM, BD3-LM, GIDD and SEDD: bidirectional, adaptive norms on a time vector.

The time vector is made of one number per sequence. Where a model reads no time the number is 0: the vector is then a
constant, but not zero, and still shifts, scales and gates.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.attention.forward import running
from sinkscope.models.own import OwnForDiffusion, OwnTransformer, Reading, RotaryAttention

FREQUENCIES = 128
LONGEST = 10000.0
EPSILON = 1e-5

# The norm and the time vector of the last forward in this context: the lens applies the final norm after it.
_last: ContextVar[tuple[nn.Module, Tensor] | None] = ContextVar("sinkscope_time_vector", default=None)


class TimeEmbedding(nn.Module):
    """One number per sequence → its time vector."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(2 * FREQUENCIES, config.cond_dim)
        self.leave = nn.Linear(config.cond_dim, config.cond_dim)

    def forward(self, time: Tensor) -> Tensor:
        """time [batch | 1] → [batch | 1, cond_dim]."""
        places = torch.arange(FREQUENCIES, device=time.device, dtype=torch.float32)
        angles = time.float()[:, None] * LONGEST ** (-places / FREQUENCIES)
        features = torch.cat([angles.cos(), angles.sin()], -1).to(self.enter.weight.dtype)
        return functional.silu(self.leave(functional.silu(self.enter(features))))


class Norm(nn.Module):
    """Layer norm with a weight and no bias."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        wide = functional.layer_norm(hidden.float(), self.weight.shape, self.weight.float(), None, EPSILON)
        return wide.to(hidden.dtype)


class AdaptiveNorm(Norm):
    """Scaled and shifted by the time vector of the last forward; the lens applies it to the states of any layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.modulation = nn.Linear(config.cond_dim, 2 * config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        last = _last.get()
        if last is None or last[0] is not self:
            raise RuntimeError("The final norm needs the time vector of a forward; run the model before its norm.")
        shift, scale = self.modulation(last[1].to(hidden.device))[:, None].chunk(2, -1)
        return modulate(super().forward(hidden), shift, scale)


def modulate(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return hidden * (1 + scale) + shift


class DiTAttention(RotaryAttention):
    """One fused matrix for queries, keys and values; the three names behind it are places where hooks can stand."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.q_proj, self.k_proj, self.v_proj = nn.Identity(), nn.Identity(), nn.Identity()
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, gate: Tensor, reading: Reading) -> Tensor:
        q, k, v = self.qkv_proj(hidden).chunk(3, -1)
        out: Tensor = self.o_proj(self.attend((self.q_proj(q), self.k_proj(k), self.v_proj(v)), reading))
        return gate * out


class DiTMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor, gate: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.gelu(self.up_proj(hidden), approximate="tanh"))
        return gate * out


class DiTLayer(nn.Module):
    """Attention and MLP, each behind a norm that the time vector shifts and scales, and a gate that it sets."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(config.cond_dim, 6 * config.hidden_size)
        self.input_layernorm = Norm(config)
        self.self_attn = DiTAttention(config, layer)
        self.post_attention_layernorm = Norm(config)
        self.mlp = DiTMLP(config)

    def forward(self, hidden: Tensor, reading: Reading) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(reading.time)[:, None].chunk(6, -1)
        hidden = hidden + self.self_attn(modulate(self.input_layernorm(hidden), shift1, scale1), gate1, reading)
        out: Tensor = self.mlp(modulate(self.post_attention_layernorm(hidden), shift2, scale2), gate2)
        return hidden + out


class DiT(OwnTransformer):
    layer_class = DiTLayer
    norm_class = AdaptiveNorm

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.time = TimeEmbedding(config)

    def time_vector(self, ids: Tensor, time: Tensor | None) -> Tensor:
        vector: Tensor = self.time(self.time_of(ids, time))
        _last.set((self.norm, vector))
        return vector

    def time_of(self, ids: Tensor, time: Tensor | None) -> Tensor:
        """[batch | 1]: the number that the time vector is made of; where no decoder gives it, by the share of masks."""
        config, forward = self.config, running()
        if config.time_input == "none":
            return torch.zeros(1, device=ids.device)
        if time is None and forward is not None:
            time = forward.time
        if time is not None:
            return time.to(ids.device, torch.float32)
        share: Tensor = (ids == config.mask_token_id).float().mean(1)
        if config.time_input == "t":
            return share.clamp(config.noise, 1 - config.noise)
        return -torch.log1p(-(1 - config.noise) * share)


class DiTForDiffusion(OwnForDiffusion):
    transformer_class = DiT
    # What the authors store beside the weights and their code makes again: rotary tables, the range of noise in training.
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 - transformers declares it so
        r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
        r"sampling_eps_(min|max)$",
    ]
