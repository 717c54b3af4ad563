"""What packages of others put into the registries of this process is taken out again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registries import restored


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Put a folder on the path as if its packages had been installed before the process began."""
    from sinkscope import registry
    from sinkscope.tasks.protocol import read_protocol

    sites: list[Path] = []

    def forget() -> None:
        registry.installed_plugins.cache_clear()
        registry._loaded.clear()
        registry._failures.clear()

    def put(site: Path) -> None:
        sites.append(site)
        monkeypatch.syspath_prepend(str(site))
        forget()

    with restored():
        yield put
    for name, module in list(sys.modules.items()):
        if any(site in Path(getattr(module, "__file__", None) or "/").parents for site in sites):
            del sys.modules[name]
    monkeypatch.undo()
    forget()
    read_protocol.cache_clear()
