"""Every picture of the README and the docs, from the run of `make study`.

    python docs/images/shoot.py runs/paper            # writes beside this file, and the README's caption

Eight pictures: the first screen of the overview, and the explorer, at 1440 × 900 and 390 × 844, light and dark. The head that
they show is the one on which the report opens, and the step is in the middle of the generation; --view chooses another.
`shown.json` keeps the study, and the title and caption that the page itself prints. The README's caption is made of them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
SHOWN = HERE / "shown.json"
SCREENS = ((1440, 900), (390, 844))
PICTURES = [
    f"{tab}-{size[0]}-{scheme}.png"
    for size in SCREENS
    for scheme in ("light", "dark")
    for tab in ("explorer", "overview")
]
BLOCK = re.compile(r"(<!-- picture: begin -->\n).*?(<!-- picture: end -->)", flags=re.S)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars"]  # fmt: skip


def words(shown: dict[str, Any]) -> str:
    """Picture and caption as they stand in the README."""
    command = "make study" if shown["study"] == "paper" else f"sinkscope study {shown['study']}"
    title = shown["title"][0].lower() + shown["title"][1:]
    return (
        f"![The report of the study {shown['study']}: the paper's claims by model, and one head]"
        "(docs/images/overview-1440-light.png)\n\n"
        f"The page of `{command}` opens on {title}. {shown['caption']}\n"
    )


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


def printed(report: Path, run: Path) -> dict[str, Any]:
    """The study, and what the page prints above its first picture."""
    data = json.loads(
        re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', report.read_text(encoding="utf-8"), re.S)[1]
    )  # type: ignore[index]
    first = data["highlight"]
    if first is None:
        raise SystemExit(f"The page of {run} opens on no head: no diffusion model of it was traced.")
    study = json.loads((run / "results.json").read_text(encoding="utf-8"))["run"]["study"]
    return {"study": study, "title": first["title"], "caption": first["caption"]}


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
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for the pictures; the README changes only without it"
    )
    chosen = parser.parse_args()
    report = write(chosen.run)
    shown = printed(report, chosen.run)
    chosen.out.mkdir(parents=True, exist_ok=True)
    shoot(report, chosen.out, chosen.view)
    (chosen.out / SHOWN.name).write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if chosen.out == HERE:
        text = README.read_text(encoding="utf-8")
        README.write_text(BLOCK.sub(lambda found: found[1] + words(shown) + found[2], text), encoding="utf-8")
    print("\n".join(str(chosen.out / name) for name in [*PICTURES, SHOWN.name]))


if __name__ == "__main__":
    main()
