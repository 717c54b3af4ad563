"""What a thing needs and stands right of it: `trace.show()` needs the report, which the trace must not know.

The package's root registers them (`sinkscope/__init__.py`), as functions that import what they need when they are called.
"""

from collections.abc import Callable
from typing import Any

_viewers: dict[str, Callable[..., Any]] = {}


def register(name: str, viewer: Callable[..., Any]) -> None:
    """Make `viewer` the way to do `name`, such as "trace.show"."""
    _viewers[name] = viewer


def view(name: str, thing: Any, **options: Any) -> Any:
    """Show `thing` with the viewer registered as `name`."""
    return _viewers[name](thing, **options)
