"""What can be named in a study file or a setting: one table per kind of thing, open to other packages.

A package adds to them by naming a module in the entry-point group `sinkscope.plugins`; the module registers what it defines
when it is imported. A name that is not known loads that group once, so every process finds the same: workers, shards, Ray.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from sinkscope.errors import PluginError, SinkscopeError
from sinkscope.validation import show_value

logger = logging.getLogger(__name__)
GROUP = "sinkscope.plugins"
T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by their names, in the order in which they were added."""

    def __init__(self, kind: str, error: type[SinkscopeError]) -> None:
        """kind: what one of them is called in a sentence, such as "sink rule"."""
        self.kind = kind
        self.error = error
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Make it known; a second thing of that name is refused, unless it is the same one defined again."""
        before = self._things.get(name)
        if before is not None and _origin(before) != _origin(thing):
            raise self.error(f"A {self.kind} named {name!r} exists already: choose another name.")
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        found = self.get(name)
        if found is None:
            close = difflib.get_close_matches(str(name), self._things, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(self._things)}."
            raise self.error(f"Expected the name of a {self.kind}, got {show_value(name)}: {advice}")
        return found

    def get(self, name: object) -> T | None:
        """The thing of that name; None where nothing has it."""
        if not isinstance(name, str):
            return None
        if name not in self._things:
            load_plugins()
        return self._things.get(name)

    def names(self) -> tuple[str, ...]:
        """Every name, those of installed packages included."""
        load_plugins()
        return tuple(self._things)

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def values(self) -> tuple[T, ...]:
        load_plugins()
        return tuple(self._things.values())


def _origin(thing: object) -> tuple[object, object]:
    """Where it was defined: a module that is reloaded, or a cell of a notebook that runs again, may add it again."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return getattr(kind, "__module__", None), getattr(kind, "__qualname__", None)


# ---- other packages

_lock = threading.RLock()
_state: dict[str, str] = {}  # "why": the reason why a package cannot be loaded; empty once all are


@cache
def installed_plugins() -> tuple[EntryPoint, ...]:
    """Every module that an installed package names in our group."""
    return tuple(entry_points().select(group=GROUP))


def plugin_versions() -> dict[str, str]:
    """The packages that add something, by name: a run depends on them too."""
    found = {point.dist.name: point.dist.version for point in installed_plugins() if point.dist is not None}
    return dict(sorted(found.items()))


def load_plugins() -> None:
    """Import what installed packages add, once per process; one that cannot be imported is named."""
    if _state.get("why") == "":
        return
    with _lock:
        if "why" not in _state:
            _state["why"] = ""  # a package may ask a registry while it is imported
            failures = [why for why in map(_import_plugin, installed_plugins()) if why]
            _state["why"] = failures[0] if failures else ""
        if _state["why"]:
            raise PluginError(_state["why"])


def _import_plugin(point: EntryPoint) -> str:
    """Import one module; the reason why it cannot be, or nothing."""
    try:
        point.load()
    except (Exception, SystemExit) as error:  # whatever another package does wrong
        package = point.dist.name if point.dist is not None else point.value
        why = (str(error).splitlines() or [""])[0].rstrip(".")
        return (
            f"The package {package} cannot be imported for its entry point {point.name} = {point.value} in {GROUP} "
            f"({type(error).__name__}: {why}); repair or uninstall it."
        )
    logger.debug("loaded %s = %s", point.name, point.value)
    return ""
