"""Parts of a choice: confidence of several kinds, and the tail of a distribution cut off."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.settings import Decode


def confidence_of(probabilities: Tensor, chosen: Tensor, kind: str) -> Tensor:
    """probabilities [n, vocab], chosen [n] → confidence [n]; larger is surer in every kind."""
    if kind == "margin":
        best = probabilities.topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]
    if kind == "entropy":
        return (probabilities * (probabilities + 1e-10).log()).sum(-1)
    return probabilities.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def truncated(logits: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """Tail removed: top_p keeps the token that crosses the limit, then top_k keeps everything equal to the k-th."""
    lowest = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True, dim=-1)
        shares = ordered.softmax(-1)
        # CUDA adds up in no fixed order: in float64 that decides nothing.
        beyond = (shares.double() if shares.is_cuda else shares).cumsum(-1) > top_p
        beyond = torch.cat([torch.zeros_like(beyond[:, :1]), beyond[:, :-1]], dim=-1)
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), lowest)
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, lowest)
    return logits


def confidence_dtype(settings: Decode, model: torch.dtype) -> torch.dtype:
    """The dtype of the softmax; in bfloat16 many confidences tie at 1."""
    return {"model": model, "float32": torch.float32, "float64": torch.float64}[settings.confidence_dtype]
