"""What packages of others put into the registries of this process is taken out again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Put a folder on the path as if its packages had been installed before the process began."""
    from sinkscope import plugins
    from sinkscope.decoding import commit
    from sinkscope.interventions import settings
    from sinkscope.models import family
    from sinkscope.settings import choices
    from sinkscope.sinks import rules
    from sinkscope.tasks import problem, protocol

    kept = [settings._known, problem._tasks, rules.RULES, commit.RULES, choices.READERS, protocol._files]
    before = [dict(one) for one in kept]
    lists = [family.FAMILIES, choices.COMMITS]
    listed = [list(one) for one in lists]
    sites: list[Path] = []

    def put(site: Path) -> None:
        sites.append(site)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(plugins, "_loaded", {})
        plugins.installed.cache_clear()

    yield put
    for one, values in zip(kept, before, strict=True):
        one.clear()  # type: ignore[attr-defined]
        one.update(values)  # type: ignore[attr-defined]
    for several, entries in zip(lists, listed, strict=True):
        several[:] = entries  # type: ignore[index]
    for name, module in list(sys.modules.items()):
        if any(site in Path(getattr(module, "__file__", None) or "/").parents for site in sites):
            del sys.modules[name]
    plugins.installed.cache_clear()
    protocol.read_protocol.cache_clear()
