"""A real Chromium, offline, that fails a test on any error in the console and on any request that leaves the page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import Opener, causal_trace, made_results, made_trace
from playwright.sync_api import Browser, Page, sync_playwright

from sinkscope import paper
from sinkscope.report import write
from sinkscope.tracing import Trace

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session", autouse=True)
def stand_for_the_papers() -> Iterator[None]:
    """Made models stand for the paper's, so that its figures are beside them."""
    names = {"made-llada": "LLaDA-8B", "made-dream": "Dream-7B", "made-llama": "Llama-3.1-8B"}
    with pytest.MonkeyPatch.context() as patch:
        for name, theirs in names.items():
            patch.setitem(paper.STANDS_FOR, name, theirs)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "These tests need a browser: apt-get install chromium, or name one in SINKSCOPE_CHROMIUM."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def traces() -> list[Trace]:
    return [
        made_trace("made-llada"),
        made_trace("made-llada", seed=3, steps=12, length=24, maps=False),
        made_trace("made-dream", way="left", seed=1, maps=False),
        causal_trace(),
    ]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, traces: list[Trace], stand_for_the_papers: None) -> Path:
    """The folder of a small study with four traces."""
    folder = tmp_path_factory.mktemp("runs") / "small study"
    for number, trace in enumerate(traces):
        trace.save(folder / "traces" / f"{number}-{trace.model['name']}.safetensors")
    (folder / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"version": "0.1.0", "seed": 7}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def report(run: Path) -> Path:
    return write(run)


@pytest.fixture
def look(browser: Browser) -> Iterator[Opener]:
    """look(file, "step=3", width=360): the page, drawn; at the end nothing may have been complained or asked for."""
    pages: list[Page] = []
    complaints: list[str] = []
    asked: list[str] = []

    def opened(path: Path, view: str = "", width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, accept_downloads=True
        )
        page = context.new_page()
        page.set_default_timeout(30_000)
        pages.append(page)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{path.as_uri()}#{view}")
        page.wait_for_selector("html[data-ready][data-settled]")
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
