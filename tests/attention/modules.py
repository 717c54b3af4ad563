"""Small modules of the kinds that people write themselves, with attention in torch's own ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A nanoGPT-like block: one linear for q, k, v, then scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(batch, positions, width))


class Stack(nn.Module):
    def __init__(self, depth: int = 3, width: int = 16, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class VisionTransformer(nn.Module):
    """Patches, a class token and torch's own encoder."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.start = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, picture: Tensor) -> Tensor:
        patches = self.patches(picture).flatten(2).mT
        return self.encoder(torch.cat([self.start.expand(len(patches), -1, -1), patches], 1))


class HandWritten(nn.Module):
    """Attention with a softmax of its own, that nobody can catch."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x
