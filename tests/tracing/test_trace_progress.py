"""A bar appears on a terminal when a trace takes its time, and nowhere else."""

from __future__ import annotations

import io

import pytest

from sinkscope import progress
from sinkscope.progress import step_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_for_terminals_only() -> None:
    assert not step_bar(1, "made", Terminal(), asked=True).disable
    assert step_bar(1, "made", io.StringIO(), asked=True).disable
    assert step_bar(1, "made", Terminal(), asked=False).disable


def test_a_bar_waits_a_moment_and_goes_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Terminal()
    with step_bar(4, "tracing made", quick, asked=True) as bar:
        for _ in range(4):
            bar.update()
    assert quick.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    slow = Terminal()
    with step_bar(4, "tracing [made]", slow, asked=True) as bar:
        for _ in range(4):
            bar.update()
    assert bar.n == 4 and "tracing" in slow.getvalue()
