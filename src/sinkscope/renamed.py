"""Keywords that have a new name: the former one works, and says so."""

from __future__ import annotations

import warnings
from typing import Any

from sinkscope.errors import SinkscopeError


def renamed(old: str, given: Any, new: str, now: Any, error: type[SinkscopeError]) -> Any:
    """The value of a keyword, by its new name or its former one; both together are refused."""
    if given is None:
        return now
    if now is not None:
        raise error(f"Expected {new} or its former name {old}, got both; give {new} alone.")
    warnings.warn(f"{old} is now called {new}; the former name will go.", DeprecationWarning, stacklevel=3)
    return given
