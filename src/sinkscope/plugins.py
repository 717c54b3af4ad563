"""What other packages add: each names a module in an entry-point group of ours, and the module registers when imported.

The groups are `sinkscope.interventions`, `.conditions`, `.tasks`, `.families`, `.rules`, `.commit_rules` and `.protocols`. A
registry loads its group when it is first asked, so that every process finds the same: workers, shards, nodes of Ray.
"""

from __future__ import annotations

import logging
import threading
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from sinkscope.errors import PluginError

logger = logging.getLogger(__name__)
GROUPS = ("interventions", "conditions", "tasks", "families", "rules", "commit_rules", "protocols")
_lock = threading.RLock()
_loaded: dict[str, str] = {}  # group → why it cannot be loaded; empty where it could


@cache
def installed() -> tuple[EntryPoint, ...]:
    """Every entry point in one of our groups; the metadata of all packages are read once."""
    return tuple(point for group in GROUPS for point in entry_points().select(group=f"sinkscope.{group}"))


def versions() -> dict[str, str]:
    """The packages that add something, by name: a run depends on them too."""
    found = {point.dist.name: point.dist.version for point in installed() if point.dist is not None}
    return dict(sorted(found.items()))


def load(*groups: str) -> None:
    """Import what installed packages add to these groups, once per process; one that cannot be imported is named."""
    with _lock:
        for group in groups:
            if group not in _loaded:
                _loaded[group] = ""  # a package may ask the registry while it is imported
                for point in installed():
                    if point.group == f"sinkscope.{group}" and not _loaded[group]:
                        _loaded[group] = _imported(point)
            if _loaded[group]:
                raise PluginError(_loaded[group])


def _imported(point: EntryPoint) -> str:
    try:
        point.load()
        logger.debug("loaded %s = %s of %s", point.name, point.value, point.group)
        return ""
    except (Exception, SystemExit) as error:  # whatever another package does wrong
        package = point.dist.name if point.dist is not None else point.value
        why = (str(error).splitlines() or [""])[0].rstrip(".")
        return (
            f"The package {package} cannot be imported for its entry point {point.name} = {point.value} in "
            f"{point.group} ({type(error).__name__}: {why}); repair or uninstall it."
        )
