"""What to change in an attention call: one frozen dataclass per idea, each with a setting that changes nothing.

To add one: write a dataclass under `Intervention` (or `Selector`, if it picks keys) in a file here and put
`@register(name, setting, …)` above it; study files know it from then on (docs/how-to/your-own-intervention.md).
"""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.interventions.ablate import AblateChannels, ZeroAttention
from sinkscope.interventions.active import Active, intervene
from sinkscope.interventions.attenuate import Attenuate
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.conditions import Condition, condition_from_dict
from sinkscope.interventions.control import (
    AddSinkToken,
    HoldSinks,
    PenaliseSinks,
    RotateSinks,
    Soften,
    SoftmaxOffByOne,
)
from sinkscope.interventions.effect import Effect
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.interventions.patch import PatchKeys, PatchValues
from sinkscope.interventions.positions import CutContext, MaskPositions, Window
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.selected import MaskInstead, MeanValues, ZeroValues
from sinkscope.interventions.settings import Setting, register
from sinkscope.interventions.steer import Steer

for _found in iter_modules(__path__):  # what none of the lines above names registers itself too
    import_module(f"{__name__}.{_found.name}")

__all__ = [
    "AblateChannels", "Active", "AddSinkToken", "Attenuate", "Condition", "CutContext", "Effect", "HoldSinks",
    "HookContext", "Intervention", "MaskInstead", "MaskPositions", "MaskRandom", "MaskSinks", "MeanValues", "PatchKeys",
    "PatchValues", "PenaliseSinks", "RotateSinks", "Selector", "Setting", "Soften", "SoftmaxOffByOne", "Steer",
    "Window", "ZeroAttention", "ZeroValues", "condition_from_dict", "hook", "intervene", "register",
]  # fmt: skip
