from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from sinkscope.extend import Columns, Rule, register_rule


@register_rule
class NearTop(Rule):
    """A sink receives at least `share` of what the strongest key of its head receives."""

    name: ClassVar[str] = "near_top"
    share: Annotated[float, Field(gt=0, le=1)] = 0.5

    @property
    def unit(self) -> str:
        return "of the strongest"

    def score(self, columns: Columns) -> Tensor:
        return columns.received / columns.received.amax(-1, keepdim=True).clamp(min=1e-9)  # [..., key]

    def mark(self, columns: Columns) -> Tensor:
        return self.score(columns) >= self.share
