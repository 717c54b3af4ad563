"""Look at, move and remove attention sinks in diffusion language models."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it. Loaded on first use, so that `sinkscope --help` need not wait for torch.
_HOME = {
    "SinkscopeError": "errors",
    "Model": "models.base",
    "load": "models.load",
    "register": "models.load",
    "Decode": "settings.decode",
    "decode": "decoding",
    "attend": "attention.attend",
    "observe": "attention.observe",
    "intervene": "interventions",
    "MaskSinks": "interventions",
    "MaskRandom": "interventions",
    "MaskPositions": "interventions",
    "ZeroValues": "interventions",
    "MeanValues": "interventions",
    "Window": "interventions",
    "CutContext": "interventions",
    "Trace": "tracing",
    "Keep": "tracing.recorder",
    "trace": "tracing",
    "Threshold": "sinks",
    "ZScore": "sinks",
    "HeadShare": "sinks",
    "Study": "study.plan",
    "run": "study.run",
    "HarnessLM": "tasks.harness",
}
# Submodules that are part of the public API under their own name.
_MODULES = ("tasks",)
__all__ = ["__version__", *_HOME, *_MODULES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sinkscope import tasks as tasks
    from sinkscope.attention.attend import attend as attend
    from sinkscope.attention.observe import observe as observe
    from sinkscope.decoding import decode as decode
    from sinkscope.errors import SinkscopeError as SinkscopeError
    from sinkscope.interventions import CutContext as CutContext
    from sinkscope.interventions import MaskPositions as MaskPositions
    from sinkscope.interventions import MaskRandom as MaskRandom
    from sinkscope.interventions import MaskSinks as MaskSinks
    from sinkscope.interventions import MeanValues as MeanValues
    from sinkscope.interventions import Window as Window
    from sinkscope.interventions import ZeroValues as ZeroValues
    from sinkscope.interventions import intervene as intervene
    from sinkscope.models.base import Model as Model
    from sinkscope.models.load import load as load
    from sinkscope.models.load import register as register
    from sinkscope.settings.decode import Decode as Decode
    from sinkscope.sinks import HeadShare as HeadShare
    from sinkscope.sinks import Threshold as Threshold
    from sinkscope.sinks import ZScore as ZScore
    from sinkscope.study.plan import Study as Study
    from sinkscope.study.run import run as run
    from sinkscope.tasks.harness import HarnessLM as HarnessLM
    from sinkscope.tracing import Trace as Trace
    from sinkscope.tracing import trace as trace
    from sinkscope.tracing.recorder import Keep as Keep


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"sinkscope.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sinkscope.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
