"""The networks of small diffusion models, which no class of transformers computes: plain torch under transformers' names.

So hooks, caches and the attention call fit. MDLM, BD3-LM, GIDD and SEDD are one diffusion transformer: bidirectional, adaptive
norms on a time vector that is made of one number per sequence. Where a model reads no time the number is 0: the vector is
then a constant, but not zero, and still shifts, scales and gates. GIDD v2's scores have a cap, and every head has a learned
key and value in front of all others.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention.attend import attend
from sinkscope.attention.call import BuiltIn
from sinkscope.attention.forward import running


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


# ---- MDLM, BD3-LM, GIDD and SEDD

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


# ---- GIDD v2

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
