"""LLaDA's choice: the largest logit, or the largest after exponential noise over the whole canvas."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.choose.chooser import Chooser, register
from sinkscope.decoding.choose.parts import confidence_dtype, confidence_of


@register("gumbel")
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
