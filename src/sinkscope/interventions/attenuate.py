"""`Attenuate`: some keys keep a part of the attention that they draw, and the other keys of each row share the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.errors import InterventionError
from sinkscope.fields import among, number
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.positions import POSITIONS, MaskPositions
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.selected import MaskInstead, SelectorIntervention
from sinkscope.interventions.settings import Setting, register
from sinkscope.interventions.words import ABOVE, ALIGNED, AVOID, BELOW, MATCH, OF, PERSIST, RANK, ROWS, WHICH, K

OFS = ("sinks", "random", "positions", "instead")
SHARE = "a share from 0 to 1"


def _share(name: str, label: str) -> Setting:
    return Setting(
        name, None, lambda value: value is None or number(0, 1)(value), SHARE, place=11, quiet=True,
        label=lambda share: f"{label} {100 * share:g}%",
    )  # fmt: skip


WORDS = (
    replace(K, default=1), _share("to", "to"), _share("by", "by"),
    replace(OF, check=among(OFS), expected=f"one of {', '.join(OFS)}"),
    replace(POSITIONS, default=None, quiet=True, check=lambda value: value is None or POSITIONS.check(value),
            label=lambda positions: "at " + POSITIONS.label(positions)),
    replace(MATCH, quiet=True), replace(RANK, quiet=True), replace(ROWS, quiet=True), ABOVE, BELOW, *WHICH, PERSIST, ALIGNED,
    AVOID,
)  # fmt: skip


@register("attenuate", *WORDS, masks=False)
@dataclass(frozen=True)
class Attenuate(SelectorIntervention):
    """Lower the attention on the keys that `of` picks; every row sums to 1 again.

    to: the share of each row that is left to those keys together, 0 to 1. A row that gives them more gives them exactly
    `to`, divided among them as before; one that gives them less stays as it is. by, in place of it: the share of what they
    draw that is taken away in every row, 0 to 1, so that strong and weak rows lose alike. The other keys of the row take up
    what is left over, in proportion to what they have. to=0 and by=1 hide the keys; to=1 and by=0 change nothing. A row that
    sees no other key stays as it is. The dose, the share of all attention that was really removed, is `effect.mass_share`.
    It holds [query, key] maps of a call: made for canvases of some thousand positions at most.
    """

    to: float | None = None
    by: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to is None) == (self.by is None):
            raise InterventionError(f"Expected to=… or by=…, got to={self.to!r} and by={self.by!r}; give one of them.")
        for name, value in (("to", self.to), ("by", self.by)):
            if value is not None and not number(0, 1)(value):
                raise InterventionError(f"Expected {name} to be {SHARE}, got {value!r}.")

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name not in ("to", "by", "of", "positions")}
        sinks = {name: value for name, value in words.items() if name not in ("match", "persist", "aligned", "avoid")}
        of, positions = values.get("of", "sinks"), values.get("positions", ())
        chosen: Selector
        if of == "random":
            chosen = MaskRandom(seed=seed, **words)
        elif of == "positions":
            chosen = MaskPositions(positions)
        else:
            chosen = MaskInstead(MaskSinks(**sinks), positions) if of == "instead" else MaskSinks(**sinks)
        return cls(chosen, values.get("to"), values.get("by"))

    @staticmethod
    def contradiction(values: dict[str, Any]) -> tuple[str, str] | None:
        of = values.get("of")
        if (values.get("positions") is not None) != (of in ("positions", "instead")):
            return "positions", "must be given with of: positions or of: instead, and only with them"
        for name, default in (("persist", False), ("aligned", False), ("avoid", None), ("match", "count")):
            if values.get(name, default) != default and of != "random":
                return name, "has an effect with of: random only"
        return None

    @property
    def is_noop(self) -> bool:
        return self.of.is_noop or self.to == 1 or self.by == 0

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        if picked is None:
            return None
        scores = _scores(call)  # [batch, head, query, key]
        on = picked[:, :, None]
        inside = scores.masked_fill(~on, -torch.inf).logsumexp(-1)  # [batch, head, query]
        odds = inside - scores.masked_fill(on, -torch.inf).logsumexp(-1)  # of the picked keys against all others
        share = odds.sigmoid()
        kept = share.clamp(max=self.to) if self.to is not None else share * (1 - (self.by or 0.0))
        lowered = (kept < share) & odds.isfinite()  # no key of the two kinds: nothing to lower, or nobody to take it up
        if lowered.device.type == "cpu" and not bool(lowered.any()):  # a GPU would have to be waited for
            return None
        gain = torch.where(lowered, kept.logit() - odds, 0.0)
        bias = torch.where(on, gain[..., None], 0.0)
        drawn = (scores - inside[..., None]).exp() * (share - kept).masked_fill(~lowered, 0.0)[..., None]
        counted = (call.labels >= 0)[:, None, :, None]
        return Change(bias=bias, removed=(drawn.nan_to_num(0.0) * (on & counted)).sum(2))


def _scores(call: Call) -> Tensor:
    """What goes into the softmax of the untouched call, −∞ where a query may not look, [batch, head, query, key]."""
    dtype = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    keys = call.k.to(dtype).repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    scores = call.q.to(dtype) @ keys.mT * (call.q.shape[-1] ** -0.5 if call.scale is None else call.scale)
    if call.mask is not None and call.visible is not None:
        scores = (scores if call.mask.dtype == torch.bool else scores + call.mask).masked_fill(
            ~call.visible, -torch.inf
        )
    if call.causal:
        places = torch.arange(call.queries, device=scores.device)[:, None] + call.keys - call.queries
        scores = scores.masked_fill(torch.arange(call.keys, device=scores.device) > places, -torch.inf)
    return scores
