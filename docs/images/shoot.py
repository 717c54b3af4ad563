"""Screenshots of a run's report, as they stand in the README and the docs.

    python docs/images/shoot.py runs/paper            # writes beside this file

Eight pictures (overview and explorer, 1600 and 360 pixels wide, light and dark) and an animation of a sink that moves. The
head that they show is the one whose sink moves furthest one way, and the step is in the middle of the generation;
--view chooses another.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
from pathlib import Path

import polars as pl
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from sinkscope.report import write
from sinkscope.report.writing import choose, trace_files
from sinkscope.sinks import Threshold, head_dynamics
from sinkscope.tracing import Trace

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars"]  # fmt: skip


def opened(browser: Browser, path: Path, view: str, width: int, scheme: str) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(120_000)
    page.goto(f"{path.resolve().as_uri()}#{view}")
    page.wait_for_selector("html[data-settled]")
    page.wait_for_timeout(700)
    return page


def compact(picture: bytes, path: Path) -> None:
    """A screenshot packed as well as PNG can; every colour stays, since thin lines carry meaning."""
    Image.open(io.BytesIO(picture)).convert("RGB").save(path, optimize=True)


def animation(browser: Browser, report: Path, view: str, path: Path) -> None:
    """The canvas and the map of one head, step by step."""
    page = opened(browser, report, view, 980, "light")
    frames = []
    for step in range(page.evaluate("sinkscope.sample.steps")):
        page.evaluate("(step) => { sinkscope.set({step}); return new Promise(requestAnimationFrame); }", step)
        page.wait_for_timeout(60)
        parts = [Image.open(io.BytesIO(page.locator(name).screenshot())) for name in ("#strip", "#map")]
        frame = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "#f6f7f9")
        for part, top in zip(parts, (0, parts[0].height), strict=True):
            frame.paste(part, (0, top))
        frames.append(frame)
    height = max(frame.height for frame in frames)
    even = [Image.new("RGB", (frame.width, height), "#f6f7f9") for frame in frames]
    for plain, frame in zip(even, frames, strict=True):
        plain.paste(frame, (0, 0))
    even[0].save(
        path, save_all=True, append_images=even[1:], duration=[350] * (len(even) - 1) + [1800], loop=0, quality=85
    )
    page.close()


def most_moving(run: Path) -> str:
    """The view of the head whose sink moves furthest one way, among the samples of the report."""
    best, view = 0.0, "sample=0&step=10"
    for place, (_, trace) in enumerate(choose([(path.stem, Trace.load(path)) for path in trace_files(run)])):
        heads = head_dynamics(trace, Threshold(3, unit="sum")).filter(pl.col("class") == "moving")
        for row in heads.to_dicts():
            score = row["presence"] * abs(row["trend"] or 0) * row["displacement"]
            if trace.mask_id is not None and score > best:
                best, view = score, f"sample={place}&step={trace.steps // 2}&layer={row['layer']}&head={row['head']}"
    return view


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("run", type=Path)
    words.add_argument("--view", help="fragment of the explorer's pictures, such as sample=0&step=10&layer=3&head=1")
    asked = words.parse_args()
    view = asked.view or most_moving(asked.run)
    print(view)
    report = write(asked.run)
    found = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, headless=True)
        for width in (1600, 360):
            for scheme in ("light", "dark"):
                for tab in ("explorer", "overview"):
                    page = opened(browser, report, f"tab={tab}&{view}", width, scheme)
                    compact(page.screenshot(full_page=True), HERE / f"{tab}-{width}-{scheme}.png")
                    page.close()
        animation(browser, report, f"tab=explorer&{view}", HERE / "moving-sink.webp")
        browser.close()


if __name__ == "__main__":
    main()
