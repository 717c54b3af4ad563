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
    "Decode": "decoding.settings",
    "decode": "decoding",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from sinkscope.decoding import decode as decode
    from sinkscope.decoding.settings import Decode as Decode
    from sinkscope.errors import SinkscopeError as SinkscopeError
    from sinkscope.models.base import Model as Model
    from sinkscope.models.load import load as load
    from sinkscope.models.load import register as register


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sinkscope.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
