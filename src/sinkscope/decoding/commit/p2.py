"""Open-dCoder's path planning: at every step all but the most confident of the generated positions are masked again."""

from __future__ import annotations

from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.dream import Schedule
from sinkscope.decoding.commit.rule import register


@register("p2")
class PathPlanning(Schedule):
    """Step i of n keeps a share (i + 1) / n of the answer: masks among it are filled, the rest is masked again."""

    def wanted(self) -> Tensor:
        return self.answer()

    def answer(self) -> Tensor:
        """bool [batch, position]: all generated positions, known or not."""
        return self.block.inside & self.run.canvas.real & ~self.run.done.unsqueeze(1)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        answer, open_positions = self.answer(), self.open()
        kept = answer.clone()
        for row in range(len(answer)):
            places = answer[row].nonzero().flatten()
            count = int(len(places) * (1 - (self.step + 1) / self.steps))
            kept[row, places[confidence[row, places].argsort(stable=True)[:count]]] = False
        return Picks(commit=kept & open_positions, reopen=answer & ~kept & ~open_positions)
