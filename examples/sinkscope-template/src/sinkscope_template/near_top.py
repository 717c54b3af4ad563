from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkscope.extend import Columns, Rule, RuleError, register_rule


@register_rule
@dataclass(frozen=True)
class NearTop(Rule):
    """A sink receives at least `share` of what the strongest key of its head receives."""

    name: ClassVar[str] = "near_top"
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise RuleError(f"share of NearTop must be above 0 and at most 1, not {self.share!r}.")

    @property
    def unit(self) -> str:
        return "of the strongest"

    def score(self, columns: Columns) -> Tensor:
        return columns.received / columns.received.amax(-1, keepdim=True).clamp(min=1e-9)  # [..., key]

    def mark(self, columns: Columns) -> Tensor:
        return self.score(columns) >= self.share
