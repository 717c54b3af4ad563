from __future__ import annotations

from typing import Annotated, ClassVar

import sinkscope as sk
from sinkscope.extend import (
    Call,
    Change,
    FromZero,
    Intervention,
    InterventionError,
    Label,
    Map,
    Memory,
    Share,
    settings,
)


@settings(InterventionError)
class FadeSinks(Intervention, noop={"k": 0, "factor": 1}):
    """The values of the top-k sinks are multiplied by a factor."""

    name: ClassVar[str] = "fade_sinks"  # in study files
    always: ClassVar[tuple[str, ...]] = ("factor",)  # in labels and results at its default too
    k: Annotated[FromZero, Label("K={}", 10)]
    factor: Annotated[Share, Label("factor {:g}", 11)] = 0.5

    def maps(self) -> set[Map]:
        return sk.MaskSinks(self.k).maps()  # what must be remembered of the last forward

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = sk.MaskSinks(self.k).select(call, memory)  # bool [batch, head, key]
        if picked is None:  # the first forward: nothing is known yet
            return None
        kept = 1 - (1 - self.factor) * picked.unsqueeze(-1).float()
        return Change(values=lambda values: values * kept.to(values.dtype), touched=picked)
