"""What a thing needs and stands right of it: `trace.show()` needs the report, which the trace must not know.

The package's root registers them (`sinkscope/__init__.py`), as functions that import what they need when they are called.
"""

from collections.abc import Callable
from typing import Any

from sinkscope.errors import SinkscopeError

_viewers: dict[str, Callable[..., Any]] = {}


def register(name: str, viewer: Callable[..., Any]) -> None:
    """Make `viewer` the way to do `name`, such as "trace.show"."""
    _viewers[name] = viewer


def view(name: str, thing: Any, **options: Any) -> Any:
    """Show `thing` with the viewer registered as `name`."""
    if name not in _viewers:
        raise SinkscopeError(
            f"Expected a viewer out of {', '.join(_viewers) or 'none'}, got {name!r}; register it first."
        )
    return _viewers[name](thing, **options)
