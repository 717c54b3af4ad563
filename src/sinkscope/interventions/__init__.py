"""What to change in an attention call: one frozen dataclass per idea, each with a setting that changes nothing.

To add one: write a dataclass under `Intervention` (or `Selector`, if it picks keys) in a file here, with
`@settings(InterventionError)` above it and a `name`; study files know it from then on (docs/guides/extend.md).
"""

from sinkscope.interventions.apply import Active, Effect, intervene
from sinkscope.interventions.base import INTERVENTIONS, Intervention, Selector
from sinkscope.interventions.positions import CutContext, MaskPositions, Window
from sinkscope.interventions.ranked import MaskRandom, MaskSinks
from sinkscope.interventions.scores import AddSinkToken, Attenuate, HoldSinks, PenaliseSinks, RotateSinks, Soften
from sinkscope.interventions.scores import SoftmaxOffByOne as SoftmaxOffByOne
from sinkscope.interventions.selected import MaskInstead, MaskOthers
from sinkscope.interventions.values import MeanValues, PatchKeys, PatchValues, ZeroValues

__all__ = [
    "INTERVENTIONS", "Active", "AddSinkToken", "Attenuate", "CutContext", "Effect", "HoldSinks", "Intervention", "MaskInstead",
    "MaskOthers", "MaskPositions", "MaskRandom", "MaskSinks", "MeanValues", "PatchKeys", "PatchValues", "PenaliseSinks",
    "RotateSinks", "Selector", "Soften", "SoftmaxOffByOne", "Window", "ZeroValues", "intervene",
]  # fmt: skip
