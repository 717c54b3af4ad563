"""What can be named in a study file or a setting: one table per kind of thing, open to other packages.

A package adds to them by naming a module in the entry-point group `sinkscope.plugins`; the module registers what it defines
when it is imported. A name that is not known loads that group once, so every process finds the same: workers, shards, Ray.
A file of your own does the same without a package: `import_file` runs it here, and workers are handed its source.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from sinkscope.errors import PluginError, SinkscopeError
from sinkscope.validation import show_value, suggest

logger = logging.getLogger(__name__)
GROUP = "sinkscope.plugins"
T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by their names, in the order in which they were added."""

    every: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, error: type[SinkscopeError]) -> None:
        """kind: what one of them is called in a sentence, such as "sink rule"."""
        self.every.append(self)
        self.kind = kind
        self.error = error
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T, *, replace: bool = False) -> T:
        """Make it known; a second thing of that name is refused, unless it is the same one defined again.

        replace: a second thing takes the place of the first.
        """
        before = self._things.get(name)
        moved = module_of(before) == "__main__"  # from a notebook or a script into a file of its own
        if not replace and not moved and before is not None and _origin(before) != _origin(thing):
            raise self.error(f"A {self.kind} named {name!r} exists already: choose another name.")
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        found = self.get(name)
        if found is None:
            raise self.error(
                f"Expected the name of a {self.kind}, got {show_value(name)}: {suggest(name, self._things)}"
            )
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


def _origin(thing: Any) -> object:
    """Where it was defined: a module that is reloaded, or a cell of a notebook that runs again, may add it again."""
    if hasattr(thing, "__qualname__"):
        return thing.__module__, thing.__qualname__
    if is_dataclass(thing):
        return tuple(_origin(getattr(thing, one.name)) for one in fields(thing))
    return thing if isinstance(thing, PurePath) else _origin(type(thing))


def module_of(thing: Any) -> str | None:
    """The module that defined a thing: a class, a function, or an instance that holds one; None where nothing says."""
    if thing is None or isinstance(thing, PurePath):
        return None
    if hasattr(thing, "__qualname__"):
        return str(thing.__module__)
    parts = [getattr(thing, one.name) for one in fields(thing)] if is_dataclass(thing) else []
    named = [str(part.__module__) for part in parts if hasattr(part, "__qualname__")]
    return next((name for name in named if not name.startswith("sinkscope.")), type(thing).__module__)


# ---- files of the user's own

_files: dict[str, tuple[Path, str]] = {}  # name of a module → its file and source


def import_file(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers something, here and in the workers of runs that follow."""
    file = Path(path).expanduser().absolute()
    try:
        source = file.read_text(encoding="utf-8") if file.suffix == ".py" else None
    except (OSError, UnicodeError):
        source = None
    if source is None:
        raise PluginError(
            f"Expected a Python file that registers something, got {show_value(str(path))}; check the path."
        )
    name = file.stem
    there = sys.modules.get(name)
    if there is None or Path(getattr(there, "__file__", None) or "").absolute() != file or name in _files:
        name = name if there is None or name in _files else f"sinkscope_own_{name}"
        _run_source(name, file, source)
    _files[name] = file, source


def _run_source(name: str, file: Path, source: str) -> None:
    if _files.get(name) == (file, source):  # the same once more
        return
    module = ModuleType(name)
    module.__file__ = str(file)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever the file does wrong
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        why = (str(error).splitlines() or [""])[0].rstrip(".")
        raise PluginError(f"{file} cannot be imported ({type(error).__name__}: {why}); repair it.") from None


def imported_files() -> list[dict[str, str]]:
    """What another process needs to know the same: for `import_sources`."""
    return [{"name": name, "file": str(file), "source": source} for name, (file, source) in _files.items()]


def import_sources(files: Sequence[Mapping[str, str]]) -> None:
    """Run files of another process here, once each."""
    for one in files:
        file = Path(one["file"])
        _run_source(one["name"], file, one["source"])
        _files[one["name"]] = file, one["source"]


def session_only(words: set[str]) -> list[str]:
    """Which of these names stand for things that another process would not find: defined in this session alone."""
    found = []
    for registry in Registry.every:
        for name, thing in registry._things.items():
            if name in words and _is_session_only(module_of(thing)):
                found.append(f"{registry.kind} {name}")
    return found


def _is_session_only(module: str | None) -> bool:
    if module is None or module.partition(".")[0] in ("sinkscope", "builtins") or module in _files:
        return False
    packages = {point.value.partition(":")[0].partition(".")[0] for point in installed_plugins()}
    return module.partition(".")[0] not in packages


# ---- other packages

_lock = threading.RLock()
_failures: list[str] = []  # why a package cannot be loaded
_loaded: list[EntryPoint] = []  # all that were tried


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
    with _lock:
        for point in installed_plugins():
            if point not in _loaded:
                _loaded.append(point)  # first: a package may ask a registry while it is imported
                _import_plugin(point)
        if _failures:
            raise PluginError(_failures[0])


def _import_plugin(point: EntryPoint) -> None:
    try:
        point.load()
        logger.debug("loaded %s = %s", point.name, point.value)
    except (Exception, SystemExit) as error:  # whatever another package does wrong
        package = point.dist.name if point.dist is not None else point.value
        why = (str(error).splitlines() or [""])[0].rstrip(".")
        _failures.append(
            f"The package {package} cannot be imported for its entry point {point.name} = {point.value} in {GROUP} "
            f"({type(error).__name__}: {why}); repair or uninstall it."
        )
