"""Logits of a few positions become a candidate token each and the confidence that it is right."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.noise import Noise
from sinkscope.decoding.settings import Decode


def llada_candidates(
    logits: Tensor, settings: Decode, eos_id: int | None, eot_id: int | None, uniform: Tensor | None
) -> tuple[Tensor, Tensor]:
    """logits [n, vocab] → candidates [n], confidence [n]; uniform [n, vocab] float64 where temperature > 0.

    The authors' end-of-text options are kept as they are, quirk included: at temperature > 0 `late_eos`
    holds back end-of-turn only.
    """
    if settings.forbid_eos:
        logits[:, eos_id] = -torch.inf
    if uniform is None:
        chosen = logits.argmax(-1)
    else:
        # exp(logits) / (−ln U)^T in float64: in float32 the tail of the noise is cut off and quality falls.
        weights = uniform.to(logits.device).log_().neg_().pow_(settings.temperature)
        chosen = logits.to(torch.float64).exp_().div_(weights).argmax(-1)
    if settings.late_eos:
        logits[:, eot_id] = -torch.inf
        if uniform is None:
            logits[:, eos_id] = -torch.inf
    if settings.confidence == "random":
        return chosen, torch.zeros(len(chosen), device=logits.device)
    probabilities = logits.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
    return chosen, confidence_of(probabilities, chosen, settings.confidence)


def dream_candidates(logits: Tensor, settings: Decode, noise: Noise, where: Tensor) -> tuple[Tensor, Tensor]:
    """logits [n, vocab] at flat positions `where` [n] → candidates [n], confidence [n] (also for sampled ARMs)."""
    if settings.temperature > 0:
        logits = logits / settings.temperature
    probabilities = truncated(logits, settings.top_p, settings.top_k)
    probabilities = probabilities.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
    sampled = settings.temperature > 0
    chosen = noise.draw(probabilities.cpu(), where).to(logits.device) if sampled else probabilities.argmax(-1)
    return chosen, confidence_of(probabilities, chosen, settings.confidence)


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
        beyond = ordered.softmax(-1).cumsum(-1) > top_p
        beyond = torch.cat([torch.zeros_like(beyond[:, :1]), beyond[:, :-1]], dim=-1)
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), lowest)
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, lowest)
    return logits


def confidence_dtype(settings: Decode, model: torch.dtype) -> torch.dtype:
    """The dtype of the softmax; in bfloat16 many confidences tie at 1."""
    return {"model": model, "float32": torch.float32, "float64": torch.float64}[settings.confidence_dtype]
