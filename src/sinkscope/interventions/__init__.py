"""What to change in an attention call: one frozen dataclass per idea, each with a setting that changes nothing.

To add one: write a dataclass under `Intervention` (or `Selector`, if it picks keys) in a file here and put
`@register(name, setting, …)` above it; study files know it from then on (docs/how-to/your-own-intervention.md).
"""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.interventions.active import Active, Effect, intervene
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.conditions import Condition, condition_from_dict
from sinkscope.interventions.ranked import MaskRandom, MaskSinks
from sinkscope.interventions.settings import Registered, Setting, add, register

for _found in iter_modules(__path__):  # each registers what it holds
    import_module(f"{__name__}.{_found.name}")
# The two conditions that every study has beside its interventions.
add(Registered("none", (), lambda values, seed: None))
add(Registered("noop", (), lambda values, seed: MaskSinks(k=0)))

__all__ = [
    "Active", "Condition", "Effect", "Intervention", "MaskRandom", "MaskSinks", "Selector", "Setting", "condition_from_dict",
    "intervene", "register",
]  # fmt: skip
