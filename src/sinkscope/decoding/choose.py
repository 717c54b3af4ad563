"""How logits become tokens and how sure each is: the authors' ways to choose, by the names that `Decode.choice` gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.noise import Noise
from sinkscope.decoding.settings import Decode


class Chooser:
    """Chooses tokens in one generation; a subclass writes `choose`."""

    def __init__(self, settings: Any, noise: Noise, eos_id: int | None, eot_id: int | None) -> None:
        self.settings, self.noise = settings, noise
        self.eos_id, self.eot_id = eos_id, eot_id

    @property
    def whole(self) -> bool:
        """Whether all positions must come in one call, because the authors' draw is one call."""
        return False

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """logits [n, vocab] at flat positions `where` [n] of the noise's frame → candidates [n], confidence [n]."""
        raise TypeError(f"{type(self).__name__} must choose")

    def end(self, vocabulary: int) -> None:
        """Called after the positions of a step."""


class Draw(Chooser):
    """Dream's choice, and a sampled ARM's: top_p first, then top_k."""

    @property
    def whole(self) -> bool:
        # The authors' draw is one call over all rows: torch gives other numbers if it is split.
        return bool(self.settings.temperature > 0 and self.settings.noise == "reference")

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        sampled = settings.temperature > 0
        if sampled:
            logits = logits / settings.temperature
        logits = self.cut(logits)
        probabilities = logits.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
        chosen = self.noise.draw(probabilities, where).to(logits.device) if sampled else probabilities.argmax(-1)
        return chosen, confidence_of(probabilities, chosen, settings.confidence)

    def cut(self, logits: Tensor) -> Tensor:
        return truncated(logits, self.settings.top_p, self.settings.top_k)


class BlockDraw(Draw):
    """LLaDA2's and SDAR's: top_k first, then top_p among what is left; at temperature 0 nothing is cut."""

    def cut(self, logits: Tensor) -> Tensor:
        if self.settings.temperature == 0:
            return logits
        return truncated(truncated(logits, None, self.settings.top_k), self.settings.top_p, None)


class Likeliest(Chooser):
    """The largest logit; temperature only sharpens or flattens how sure it is."""

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        chosen = logits.argmax(-1)
        shares = (logits / (self.settings.temperature or 1.0)).float().softmax(-1)
        return chosen, confidence_of(shares, chosen, self.settings.confidence)


class ByEntropy(Chooser):
    """Temperature, top_k, top_p, then the likeliest token or a draw; confidence is the negative entropy.

    With the authors' noise it is not a number under top_k or top_p, as in their code; noise="per_row" has the entropy.
    """

    log_probability: Tensor  # [n]: of the tokens chosen last, for the rule that ranks by it

    @property
    def whole(self) -> bool:
        return self.settings.gamma is not None or (not self.settings.greedy and self.settings.noise == "reference")

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        logits = truncated(logits / (settings.temperature or 1.0), None, settings.top_k)
        logs = truncated(logits, settings.top_p, None).log_softmax(-1)
        shares = logs.exp()
        if settings.greedy or settings.temperature == 0:
            chosen = logs.argmax(-1)
        else:
            drawn = shares.cpu()
            if settings.noise == "reference":  # the authors draw for the last position too, which predicts nothing
                drawn = torch.cat([drawn, drawn[-1:]])
            chosen = self.noise.draw(drawn, where).to(logits.device)[: len(where)]
        self.log_probability = logs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        confidence = (shares * logs).sum(-1)
        if settings.noise == "reference":
            # The authors multiply 0 by −∞ wherever top_k or top_p took a token away: no entropy is left to rank by.
            confidence = confidence.masked_fill((logs < torch.finfo(logs.dtype).min / 2).any(-1), torch.nan)
        return chosen, confidence


class Gumbel(Chooser):
    """Argmax of exp(logits) / (−ln U)^T.

    The authors' end-of-text options are kept as they are, quirk included: at temperature > 0 `late_eos`
    holds back end-of-turn only. dllm's begin_suppress likewise acts after the choice, on confidences only.
    """

    def end(self, vocabulary: int) -> None:
        if self.settings.temperature > 0:
            self.noise.end_step(vocabulary)

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        noisy = settings.temperature > 0
        if settings.forbid_eos:
            logits[:, self.eos_id] = -torch.inf
        if settings.suppress:
            logits[:, list(settings.suppress)] = -torch.inf
        if noisy:
            # In float64: in float32 the tail of the noise is cut off and quality falls.
            uniform = self.noise.token_uniform(where.to(logits.device), logits.shape[-1]).to(logits.device)
            weights = uniform.log_().neg_().pow_(settings.temperature)
            chosen = logits.to(torch.float64).exp_().div_(weights).argmax(-1)
        else:
            chosen = logits.argmax(-1)
        if settings.late_eos:
            logits[:, self.eot_id] = -torch.inf
            if not noisy:
                logits[:, self.eos_id] = -torch.inf
        if settings.begin_suppress:
            logits[:, list(settings.begin_suppress)] = -torch.inf
        if settings.confidence == "random":
            return chosen, torch.zeros(len(chosen), device=logits.device)
        probabilities = logits.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
        return chosen, confidence_of(probabilities, chosen, settings.confidence)


CHOICES: dict[str, type[Chooser]] = {
    "draw": Draw, "block_draw": BlockDraw, "likeliest": Likeliest, "entropy": ByEntropy, "gumbel": Gumbel,
}  # fmt: skip


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
