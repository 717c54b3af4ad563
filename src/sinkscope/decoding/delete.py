"""Tokens taken out of a prompt before it is read: what a model does without them, not without attention to them."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.errors import PromptError


def delete_positions(
    prompt: Tensor, attention_mask: Tensor | None, positions: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Ids and mask [batch, position] without the tokens at these positions; each row counts its own real tokens.

    What follows a deleted token moves one place to the left. Negative positions count from the end of the prompt.
    """
    if not positions:
        return prompt, attention_mask
    real = torch.ones_like(prompt, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    lengths = real.sum(1, keepdim=True)  # [batch, 1]
    wanted = torch.tensor(positions, device=prompt.device)
    own = (real.cumsum(1) - 1).masked_fill(~real, -1)
    wanted = torch.where(wanted < 0, lengths + wanted, wanted)  # [batch, position]
    hit = (own[:, :, None] == wanted[:, None]).any(-1) & real
    counts = hit.sum(1)
    if bool((counts != len(positions)).any()) or bool((lengths[:, 0] <= counts).any()):
        raise PromptError(
            f"Expected {len(positions)} different positions of every prompt to delete, and a token that stays, got "
            f"{positions} and a prompt of {int(lengths.min())} tokens; choose others."
        )
    shape = (len(prompt), prompt.shape[1] - len(positions))
    kept = ~hit
    return prompt[kept].view(shape), None if attention_mask is None else attention_mask[kept].view(shape)
