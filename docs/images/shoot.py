"""Screenshots of a run's report, as they stand in the README and the docs.

    python docs/images/shoot.py runs/paper            # writes beside this file

Eight pictures: the first screen of the overview, and the explorer, at 1440 × 900 and 390 × 844, light and dark. The head that
they show is the one on which the report opens, and the step is in the middle of the generation; --view chooses another.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from sinkscope.report import write

HERE = Path(__file__).parent
SCREENS = ((1440, 900), (390, 844))
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars"]  # fmt: skip


def opened(browser: Browser, path: Path, view: str, size: tuple[int, int], scheme: str) -> Page:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(120_000)
    page.goto(f"{path.resolve().as_uri()}#{view}")
    page.wait_for_selector("html[data-settled]")
    if "tab=overview" in view and page.locator("#live").count():
        page.wait_for_selector("#live[data-played]")
    page.wait_for_timeout(700)  # a word that was committed last has grown to its size
    return page


def compact(picture: bytes, path: Path) -> None:
    """A screenshot packed as well as PNG can; every colour stays, since thin lines carry meaning."""
    Image.open(io.BytesIO(picture)).convert("RGB").save(path, optimize=True)


def middle(browser: Browser, report: Path) -> str:
    """The view on which the report opens, in the middle of its generation."""
    page = opened(browser, report, "tab=explorer", SCREENS[0], "light")
    found = page.evaluate(
        "[sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head, sinkscope.sample.steps >> 1]"
    )
    page.close()
    return "&".join(f"{name}={value}" for name, value in zip(("sample", "layer", "head", "step"), found, strict=True))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("run", type=Path)
    words.add_argument("--view", help="fragment of the explorer's pictures, such as sample=0&step=10&layer=3&head=1")
    asked = words.parse_args()
    report = write(asked.run)
    found = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, headless=True)
        view = asked.view or middle(browser, report)
        print(view)
        for size in SCREENS:
            for scheme in ("light", "dark"):
                for tab in ("explorer", "overview"):
                    page = opened(browser, report, f"tab={tab}&{view}", size, scheme)
                    compact(page.screenshot(full_page=tab == "explorer"), HERE / f"{tab}-{size[0]}-{scheme}.png")
                    page.close()
        browser.close()


if __name__ == "__main__":
    main()
