"""Choices that the temperature does not make: WeDLM's likeliest token, and RND1's with the entropy of what is left."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.choose.chooser import Chooser, register
from sinkscope.decoding.choose.parts import confidence_of, truncated


@register("likeliest")
class Likeliest(Chooser):
    """The largest logit; temperature only sharpens or flattens how sure it is."""

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        chosen = logits.argmax(-1)
        shares = (logits / (self.settings.temperature or 1.0)).float().softmax(-1)
        return chosen, confidence_of(shares, chosen, self.settings.confidence)


@register("entropy")
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
