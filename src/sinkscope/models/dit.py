"""The diffusion transformer of MDLM, BD3-LM, GIDD and SEDD in plain torch: bidirectional, adaptive norms on a time vector.

The time vector is made of one number per sequence. Where a model reads no time the number is 0: the vector is then a
constant, but not zero, and still shifts, scales and gates.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention.forward import running

FREQUENCIES = 128
ROTARY_BASE = 10000.0
EPSILON = 1e-5

# The norm and the time vector of the last forward in this context: the lens applies the final norm after it.
_last: ContextVar[tuple[nn.Module, Tensor] | None] = ContextVar("sinkscope_time_vector", default=None)


class DiTConfig(PretrainedConfig):
    """Sizes, and what number the time vector is made of: "none" (0), "sigma" or "t"."""

    model_type = "sinkscope_dit"

    def __init__(
        self,
        vocab_size: int = 2,
        hidden_size: int = 128,
        num_hidden_layers: int = 1,
        num_attention_heads: int = 2,
        cond_dim: int = 128,
        time_input: str = "none",
        noise: float = 1e-3,
        mask_token_id: int = 1,
        window: int = 1024,
        max_position_embeddings: int = 1 << 20,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        **rest: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.intermediate_size = 4 * hidden_size
        self.cond_dim = cond_dim
        self.time_input = time_input
        self.noise = noise  # share of clean tokens at the end of time
        self.mask_token_id = mask_token_id
        self.window = window  # length of the texts that it was trained on
        self.max_position_embeddings = max_position_embeddings  # no table of positions: any length runs
        super().__init__(**{"tie_word_embeddings": False, **rest})
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id


class TimeEmbedding(nn.Module):
    """One number per sequence → its time vector."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.enter = nn.Linear(2 * FREQUENCIES, config.cond_dim)
        self.leave = nn.Linear(config.cond_dim, config.cond_dim)

    def forward(self, time: Tensor) -> Tensor:
        """time [batch | 1] → [batch | 1, cond_dim]."""
        places = torch.arange(FREQUENCIES, device=time.device, dtype=torch.float32)
        frequencies = torch.exp(-math.log(ROTARY_BASE) * places / FREQUENCIES)
        angles = time.float()[:, None] * frequencies
        features = torch.cat([angles.cos(), angles.sin()], -1).to(self.enter.weight.dtype)
        made: Tensor = functional.silu(self.leave(functional.silu(self.enter(features))))
        return made


class AdaptiveNorm(nn.Module):
    """Layer norm with a weight, then scale and shift by the time vector; the lens applies the last one by itself."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.modulation = nn.Linear(config.cond_dim, 2 * config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        last = _last.get()
        if last is None or last[0] is not self:
            raise RuntimeError("The final norm needs the time vector of a forward; run the model before its norm.")
        shift, scale = self.modulation(last[1])[:, None].chunk(2, -1)
        return modulate(layer_norm(hidden, self.weight), shift, scale)


def layer_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.layer_norm(hidden.float(), weight.shape, weight.float(), None, EPSILON).to(hidden.dtype)


def modulate(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return hidden * (1 + scale) + shift


class Norm(nn.Module):
    """Layer norm with a weight and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return layer_norm(hidden, self.weight)


def rotary(positions: Tensor, head_dim: int, base: float = ROTARY_BASE) -> tuple[Tensor, Tensor]:
    """positions [batch | 1, position] → cosines and sines [batch | 1, 1, position, head_dim / 2]."""
    places = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None, :, None].float() * base ** (-places / head_dim)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate half-split pairs of states [batch, head, position, dim] in float32."""
    first, second = states.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(states.dtype)


class DiTAttention(nn.Module):
    """One fused matrix for queries, keys and values; the three names behind it are places where hooks can stand."""

    is_causal = False

    def __init__(self, config: DiTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.head_dim = config, layer, config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.q_proj, self.k_proj, self.v_proj = nn.Identity(), nn.Identity(), nn.Identity()
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self, hidden: Tensor, gate: Tensor, place: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        parts = zip((self.q_proj, self.k_proj, self.v_proj), self.qkv_proj(hidden).chunk(3, -1), strict=True)
        q, k, v = (name(part).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for name, part in parts)
        q, k = rotate(q, *place), rotate(k, *place)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation or "sdpa"]
        out = attention(self, q, k, v, mask, scaling=self.head_dim**-0.5, is_causal=False, dropout=0.0)[0]
        added: Tensor = gate * self.o_proj(out.flatten(2))
        return added


class DiTMLP(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.down_proj = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, gate: Tensor) -> Tensor:
        added: Tensor = gate * self.down_proj(functional.gelu(self.up_proj(hidden), approximate="tanh"))
        return added


class DiTLayer(nn.Module):
    """Attention and MLP, each behind a norm that the time vector shifts and scales, and a gate that it sets."""

    def __init__(self, config: DiTConfig, layer: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(config.cond_dim, 6 * config.hidden_size)
        self.input_layernorm = Norm(config.hidden_size)
        self.self_attn = DiTAttention(config, layer)
        self.post_attention_layernorm = Norm(config.hidden_size)
        self.mlp = DiTMLP(config)

    def forward(
        self, hidden: Tensor, time: Tensor, place: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(time)[:, None].chunk(6, -1)
        read = modulate(self.input_layernorm(hidden), shift1, scale1)
        hidden = hidden + self.self_attn(read, gate1, place, mask, cache)
        read = modulate(self.post_attention_layernorm(hidden), shift2, scale2)
        changed: Tensor = hidden + self.mlp(read, gate2)
        return changed


class DiTPreTrained(PreTrainedModel):
    config_class = DiTConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules: ClassVar[list[str]] = ["DiTLayer"]
    # What the authors store beside the weights and their code makes again: rotary tables, the range of noise in training.
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [
        r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
        r"sampling_eps_(min|max)$",
    ]

    def _init_weights(self, module: nn.Module) -> None:
        """All weights come from the checkpoint."""


class DiT(DiTPreTrained):
    """Ids → hidden states behind the final norm."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.time = TimeEmbedding(config)
        self.layers = nn.ModuleList(DiTLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = AdaptiveNorm(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        time: Tensor | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        """attention_mask: [batch, key] with 0 at padding, or bool [batch | 1, 1, query, key]. time: [batch | 1]."""
        if position_ids is None:
            before = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = before + torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask.bool()[:, None, None]
        vector = self.time(self.time_of(input_ids, time))
        _last.set((self.norm, vector))
        place = rotary(position_ids, self.config.head_dim)
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, vector, place, attention_mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)

    def time_of(self, ids: Tensor, time: Tensor | None) -> Tensor:
        """[batch | 1]: the number that the time vector is made of; what no decoder gives is the share of masks."""
        if self.config.time_input == "none":
            return torch.zeros(1, device=ids.device)
        forward = running()
        if time is None and forward is not None and forward.time is not None:
            time = forward.time
        if time is not None:
            return time.to(ids.device, torch.float32)
        share = (ids == self.config.mask_token_id).float().mean(1)
        if self.config.time_input == "t":
            return share.clamp(self.config.noise, 1 - self.config.noise)
        return -torch.log1p(-(1 - self.config.noise) * share)


class DiTForDiffusion(DiTPreTrained):
    """The transformer and its output head."""

    _tied_weights_keys = None

    def __init__(self, config: DiTConfig) -> None:
        super().__init__(config)
        self.model = DiT(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, **words: Any) -> CausalLMOutputWithPast:
        output = self.model(input_ids, **words)
        return CausalLMOutputWithPast(logits=self.lm_head(output.last_hidden_state))
