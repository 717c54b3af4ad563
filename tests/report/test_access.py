"""Readable for everybody: axe-core finds nothing serious, in both tabs and both themes, narrow and wide."""

from __future__ import annotations

import itertools
from importlib.resources import files
from pathlib import Path

import pytest
from made_runs import Opener, until

AXE = files("axe_playwright_python") / "axe.min.js"


@pytest.mark.parametrize(
    ("tab", "scheme", "width"),
    [("overview", "dark", 1280), ("explorer", "light", 1280), ("explorer", "dark", 400), ("overview", "light", 400)],
)
def test_axe_has_nothing_to_say(look: Opener, report: Path, tab: str, scheme: str, width: int) -> None:
    page = look(report, f"tab={tab}&sample=1&layer=1&head=1&step=4", width=width, scheme=scheme)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document).then((result) => result.violations)")
    assert [(one["impact"], one["id"], one["nodes"][0]["html"][:120]) for one in found] == []


def test_the_theme_follows_the_system_and_the_button(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer", scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Switch to light colours").click()
    until(page, "document.documentElement.dataset.theme === 'light' && location.hash.includes('theme=light')")


def test_shades_are_even_and_readable(look: Opener, report: Path) -> None:
    """Lightness of the ramp goes one way in even steps, and the ink on every shade has a contrast of at least 4.5."""
    for scheme in ("light", "dark"):
        page = look(report, "tab=explorer", scheme=scheme)
        colours = page.locator("#map .ramp").evaluate("e => getComputedStyle(e).backgroundImage")
        steps = [tuple(map(int, part.split(")")[0].split(","))) for part in colours.split("rgb(")[1:]]
        light = [_lightness(colour) for colour in steps]
        gaps = [b - a for a, b in itertools.pairwise(light)]
        assert all(gap < 0 for gap in gaps) if scheme == "light" else all(gap > 0 for gap in gaps)
        assert max(map(abs, gaps)) < 2.2 * min(map(abs, gaps))
        pairs = page.locator(".chip").evaluate_all(
            "chips => chips.map(c => [getComputedStyle(c).color, getComputedStyle(c).backgroundColor])"
        )
        for ink, shade in pairs:
            assert _contrast(_rgb(ink), _rgb(shade)) >= 4.5


# Every frame while the live figure plays: ink and shade of all chips, and all that is animated.


def _rgb(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.removeprefix("rgb(").rstrip(")").split(","))


def _luminance(colour: tuple[int, ...]) -> float:
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    low, high = sorted([_luminance(one), _luminance(other)])
    return (high + 0.05) / (low + 0.05)


def _lightness(colour: tuple[int, ...]) -> float:
    return 116 * _luminance(colour) ** (1 / 3) - 16
