from __future__ import annotations

from dataclasses import dataclass

import sinkscope as sk
from sinkscope.extend import Call, Change, Intervention, K, Map, Memory, Setting, number, register_intervention


@register_intervention("fade_sinks", K, Setting("factor", 0.5, number(0, 1), label=lambda factor: f"factor {factor:g}"))
@dataclass(frozen=True)
class FadeSinks(Intervention, noop={"k": 0, "factor": 1}):
    """The values of the top-k sinks are multiplied by a factor."""

    k: int
    factor: float = 0.5

    def maps(self) -> set[Map]:
        return sk.MaskSinks(self.k).maps()  # what must be remembered of the last forward

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = sk.MaskSinks(self.k).select(call, memory)  # bool [batch, head, key]
        if picked is None:  # the first forward: nothing is known yet
            return None
        kept = 1 - (1 - self.factor) * picked.unsqueeze(-1).float()
        return Change(values=lambda values: values * kept.to(values.dtype), touched=picked)
