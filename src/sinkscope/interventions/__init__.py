"""What to change in an attention call: one frozen dataclass an idea, each with a setting that changes nothing."""

from sinkscope.interventions.active import Active, Effect, intervene
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.positions import CutContext, MaskPositions, Window
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.sinks import MaskSinks
from sinkscope.interventions.values import MeanValues, ZeroValues

__all__ = [
    "Active", "CutContext", "Effect", "Intervention", "MaskPositions", "MaskRandom", "MaskSinks", "MeanValues", "Selector",
    "Window", "ZeroValues", "intervene",
]  # fmt: skip
