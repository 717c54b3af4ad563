"""Blocks of numbers in README and pages, made from committed runs: docs/generate.py fills what stands between their markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sinkscope.results.findings import list_findings
from sinkscope.results.rows import Cell, need_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
MARKER = re.compile(r"<!-- numbers: (?P<name>\w+) -->\n.*?<!-- /numbers -->", re.S)
STRONG = {"rule": "head_share", "group": "all", "epsilon": 0.3}


def cells_of(name: str, task: str, **settings: Any) -> list[Cell]:
    """Cells of a committed run, of one task and, where they are given, decode settings."""
    words = [f"{key}={value}" for key, value in settings.items()]
    return [
        cell for cell in need_results(RESULTS / name).cells
        if cell.task == task and all(word in cell.setting for word in words)
    ]  # fmt: skip


def find_cell(cells: list[Cell], **wanted: Any) -> Cell | None:
    """The cell whose condition has these settings, and no further ones among those that tell conditions apart."""
    telling = ("of", "matched", "kinds", "by", "persist", "scope", "above", "below", "match", "among")
    for cell in cells:
        condition: Mapping[str, Any] = {
            key: value for key, value in cell.condition.items() if value not in (None, False, "all")
        }
        if all(condition.get(key) == value for key, value in wanted.items()) and not any(
            key in condition and key not in wanted for key in telling
        ):
            return cell
    return None


# What was changed, as a reader needs it → the settings of its condition. One other key is a structural one of the prompt.
ROWS: dict[str, dict[str, Any]] = {
    "sinks masked (keys above 0.3 of a head's attention)": {"name": "mask_sinks", "above": STRONG},
    "one other key masked in the same heads": {
        "name": "mask_random", "kinds": "structural", "among": "prompt", "persist": True, "above": STRONG,
    },
    "sinks weakened, row by row by at most what the other keys receive": {
        "name": "attenuate", "of": "sinks", "matched": ["sinks", "others"], "by": 1.0, "above": STRONG,
    },
    "the other keys weakened by as much in the same rows": {
        "name": "attenuate", "of": "others", "matched": ["sinks", "others"], "by": 1.0, "above": STRONG,
    },
    "all structural keys of the prompt but the main sink masked in all heads": {
        "name": "mask_others", "kinds": "structural", "among": "prompt", "persist": True, "scope": "all",
    },
}  # fmt: skip


def matched_table() -> str:
    """Accuracy on arithmetic of both models of the pair, every denoising step recomputed, with the attention removed."""
    runs = [cells_of(f"pair/matched-sums-{kind}", "arithmetic") for kind in ("arm", "dlm")]
    plain = [find_cell(cells, name="none") for cells in runs]
    lines = [
        "| changed in every head | autoregressive: accuracy | attention removed | diffusion: accuracy | attention removed |",
        "|---|---|---|---|---|",
        "| nothing | " + " | ".join(f"{100 * cell.accuracy:.1f} % | –" for cell in plain if cell) + " |",
    ]
    for name, wanted in ROWS.items():
        cells = [find_cell(cells, **wanted) for cells in runs]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(map(_columns, cells)) + " |")
    return "\n".join(lines)


def _columns(cell: Cell | None) -> str:
    if cell is None:
        return "not run | –"
    dose = "–" if cell.mass_share is None else f"{100 * cell.mass_share:.1f} %"
    return f"{points(cell)} (n = {cell.n}) | {dose}"


def points(cell: Cell) -> str:
    """A change of accuracy in points, with its 95 % interval."""
    low, middle, high = (100 * one for one in (cell.difference_low, cell.difference, cell.difference_high))
    return f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def findings() -> str:
    """The three findings of the study `paper`, as terminal and page say them."""
    return "\n".join(
        f"{number}. {one.sentence}"
        for number, one in enumerate(list_findings(need_results(RESULTS / "paper" / "paper")), 1)
    )


BLOCKS: dict[str, Callable[[], str]] = {"matched": matched_table, "findings": findings}


def fill(text: str) -> str:
    """A page with every block of numbers made anew."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- numbers: {found['name']} -->\n{BLOCKS[found['name']]()}\n<!-- /numbers -->"

    return MARKER.sub(block, text)


def pages() -> dict[Path, str]:
    """Every page with numbers, as it should be."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return {path: fill(text) for path, text in texts.items() if MARKER.search(text)}
