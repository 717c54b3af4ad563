"""Every picture of the README and the docs, from the run of `make study`.

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
SCREENS = ((1440, 900), (390, 844))
PICTURES = [
    f"{tab}-{size[0]}-{scheme}.png"
    for size in SCREENS
    for scheme in ("light", "dark")
    for tab in ("explorer", "overview")
]
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
    from PIL import Image

    Image.open(io.BytesIO(picture)).convert("RGB").save(path, optimize=True)


def middle(browser: Browser, report: Path) -> str:
    """The view on which the report opens, in the middle of its generation."""
    page = opened(browser, report, "tab=explorer", SCREENS[0], "light")
    found = page.evaluate(
        "[sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head, sinkscope.sample.steps >> 1]"
    )
    page.close()
    return "&".join(f"{name}={value}" for name, value in zip(("sample", "layer", "head", "step"), found, strict=True))


def shoot(report: Path, out: Path, view: str | None = None) -> None:
    """All PICTURES of a report."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, headless=True)
        view = view or middle(browser, report)
        print(view)
        for size in SCREENS:
            for scheme in ("light", "dark"):
                for tab in ("explorer", "overview"):
                    page = opened(browser, report, f"tab={tab}&{view}", size, scheme)
                    compact(page.screenshot(full_page=tab == "explorer"), out / f"{tab}-{size[0]}-{scheme}.png")
                    page.close()
        browser.close()


def main() -> None:
    from sinkscope.report import write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run, such as runs/paper after make study")
    parser.add_argument("--view", help="fragment of the explorer's pictures, such as sample=0&step=10&layer=3&head=1")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the pictures")
    chosen = parser.parse_args()
    report = write(chosen.run)
    chosen.out.mkdir(parents=True, exist_ok=True)
    shoot(report, chosen.out, chosen.view)
    print("\n".join(str(chosen.out / name) for name in PICTURES))


if __name__ == "__main__":
    main()
