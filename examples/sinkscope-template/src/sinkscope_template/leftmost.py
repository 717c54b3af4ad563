from torch import Tensor

from sinkscope.extend import CommitRule, Picks, register_commit_rule


@register_commit_rule("leftmost")
class Leftmost(CommitRule):
    """One token per step, from left to right, however sure the model is of the others."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        opened = self.open()  # bool [batch, position]: still masked, up to the end of the block
        return Picks(commit=opened & (opened.cumsum(1) == 1))
