"""Drawn choices: from the softmax, after temperature, top_p and top_k."""

from __future__ import annotations

from torch import Tensor

from sinkscope.decoding.choose.chooser import Chooser, register
from sinkscope.decoding.choose.parts import confidence_dtype, confidence_of, truncated


@register("draw")
class Draw(Chooser):
    """Dream's choice, and a sampled ARM's: top_p first, then top_k."""

    @property
    def whole(self) -> bool:
        # The authors' draw is one call over all rows: torch gives other numbers if it is split.
        return self.settings.temperature > 0 and self.settings.noise == "reference"

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


@register("block_draw")
class BlockDraw(Draw):
    """LLaDA2's and SDAR's: top_k first, then top_p among what is left; at temperature 0 nothing is cut."""

    def cut(self, logits: Tensor) -> Tensor:
        if self.settings.temperature == 0:
            return logits
        return truncated(truncated(logits, None, self.settings.top_k), self.settings.top_p, None)
