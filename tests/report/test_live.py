"""The live page in a real browser: a canvas that fills, a key that is masked, two columns; and attacks on its server."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import sinkscope as sk
from sinkscope.report import server
from sinkscope.report.live import ALLOWED, Live

PROMPT = "Tom has 9 apples. Then Tom buys 5.\nHow many apples are left?"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(["tiny-llada"]) as live:
        yield live


@pytest.fixture
def page(live: Live, browser: Browser) -> Iterator[Page]:
    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(live.address)
    page.wait_for_selector("html[data-ready]")
    yield page
    page.close()
    assert wrong == []


def wait_for(page: Page, columns: int) -> None:
    """Until so many decodes are done."""
    end = time.monotonic() + 120
    while page.locator(".column[data-state=done]").count() < columns:
        assert time.monotonic() < end and not page.locator(".column[data-state=failed]").count()
        time.sleep(0.05)


def run_python(code: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "copied", "exec"), {})
    return out.getvalue()


def test_a_canvas_fills_and_a_token_is_taken_away(page: Page) -> None:
    page.fill("#prompt", PROMPT)
    page.click("#run")
    wait_for(page, 1)
    assert (
        int(page.locator(".column").get_attribute("data-drawn") or 0) >= 3
    )  # each for a moment, however fast the model is
    assert page.get_by_role("button", name="this token", exact=True).is_disabled()
    page.locator(".column .token").nth(6).click()
    page.get_by_role("button", name="this token", exact=True).click()
    wait_for(page, 2)
    page.get_by_role("button", name="most-attended key of every head", exact=True).click()
    wait_for(page, 3)
    shown = page.locator(".column").nth(2)
    assert "of the attention removed" in shown.locator(".status").inner_text()
    shown.locator("summary").click()
    code = shown.locator("pre").inner_text()
    assert "sk.MaskSinks(k=1)" in code
    answer = run_python(code).strip()
    assert answer == sk.trace(sk.load("tiny-llada"), PROMPT, interventions=sk.MaskSinks(k=1)).text.strip()
    first, third = (page.locator(".column").nth(place).locator(".token").all_inner_texts() for place in (0, 2))
    assert (shown.locator(".token.differs").count() > 0) == (first != third)


def test_a_finished_decode_opens_in_the_explorer(page: Page, live: Live, browser: Browser) -> None:
    page.click("#run")
    wait_for(page, 1)
    address = page.get_by_role("link", name="Open in the explorer").first.get_attribute("href")
    explorer = browser.new_page()
    explorer.goto(f"{live.address}{address}#tab=explorer")
    explorer.wait_for_selector("html[data-settled]")
    assert explorer.locator("#map canvas").is_visible()
    explorer.close()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Save the trace").first.click()
    assert sk.Trace.load(waiting.value.path().rename(str(waiting.value.path()) + ".safetensors")).text


def ask(live: Live, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
    words = {"Origin": f"http://127.0.0.1:{live.port}", **headers}
    connection.request("GET" if body is None else "POST", f"/{live.token}/{path}", body, words)
    answer = connection.getresponse()
    return answer.status, answer.read()


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in body.decode().split("\n\n") if part]


def asked(**more: Any) -> bytes:
    return json.dumps({"model": 0, "prompt": PROMPT, **more}).encode()


def test_events_are_those_of_the_trace(live: Live) -> None:
    """Canvas, sinks and what each token receives, step by step, against a trace of the same decode."""
    status, body = ask(live, "run", asked(words={"length": 8, "block": 8, "steps": 8}))
    *steps, done = events(body)
    assert status == 200 and done["done"] and len(steps) == 8
    trace = sk.trace(sk.load("tiny-llada"), PROMPT, length=8, block=8, steps=8)
    assert done["text"] == trace.text and done["tokens"] == trace.canvas[-1].tolist()
    share = trace.scores("all", "mean").mean((1, 2))
    for step, event in enumerate(steps):
        assert event["canvas"] == trace.canvas[step + 1].tolist()
        assert event["share"] == pytest.approx(share[step].tolist(), abs=2e-3)
    sinks = trace.sinks(sk.HeadShare(0.3))
    assert sum(sum(event["sinks"]) for event in steps) == sinks.height


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", asked(model=7), asked(model=True), asked(prompt=""), asked(prompt="x" * 5_000),
        asked(words={"cache": "prefix"}), asked(words={"__class__": 1}), asked(entry={"name": "steer"}),
        asked(entry={"name": "mask_sinks", "k": [1, 2]}), asked(entry={"name": "mask_sinks", "k": -1}), asked(more=1),
        asked(rule={"rule": "os.system"}), b"x" * 200_000,
    ],
)  # fmt: skip
def test_what_a_page_may_not_ask_is_one_sentence(live: Live, body: bytes) -> None:
    status, said = ask(live, "run", body)
    assert status == 400 and said.count(b"\n") == 0 and b"Traceback" not in said


def test_a_setting_that_does_not_fit_the_model_is_an_event(live: Live) -> None:
    status, body = ask(live, "run", asked(words={"length": 8, "block": 3}))
    assert status == 200 and "error" in events(body)[-1]


def test_foreign_pages_are_refused(live: Live) -> None:
    assert ask(live, "run", asked(), Host="evil.example")[0] == 403
    assert ask(live, "run", asked(), Origin="http://evil.example")[0] == 403
    assert ask(live, "run", asked(), Origin="null")[0] == 403
    assert http_status(live, "/wrong/run") == 404
    assert ask(live, "trace/9999/")[0] == 404 and ask(live, "trace/-1/")[0] == 404
    assert set(ALLOWED) == {"mask_sinks", "mask_random", "mask_positions", "mask_others", "attenuate"}


def http_status(live: Live, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
    connection.request("POST", path, asked(), {"Origin": f"http://127.0.0.1:{live.port}"})
    return connection.getresponse().status


def test_browsers_that_go_away_end_their_decodes(live: Live) -> None:
    """Many decodes are broken off; the server goes on to answer."""
    for _ in range(100):
        with contextlib.closing(socket.create_connection(("127.0.0.1", live.port), timeout=10)) as connection:
            body = asked(words={"length": 64, "block": 64, "steps": 64})
            head = f"POST /{live.token}/run HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\nOrigin: http://127.0.0.1:{live.port}\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            connection.recv(64)
    end = time.monotonic() + 30
    while (live.stopping or live.waiting) and time.monotonic() < end:
        time.sleep(0.05)
    assert not live.stopping and live.waiting == 0
    assert events(ask(live, "run", asked())[1])[-1]["done"]


def test_two_tabs_take_turns_and_a_third_is_told_to_wait(live: Live) -> None:
    long = asked(words={"length": 128, "block": 128, "steps": 128})
    found: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(ask(live, "run", long))) for _ in range(5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    done = [body for status, body in found if status == 200]
    assert 1 <= len(done) <= 5 and all(events(body)[-1]["done"] for body in done)
    assert all(b"press Stop" in body for status, body in found if status == 400)


def test_stop_stops_within_a_step(live: Live) -> None:
    long = asked(words={"length": 256, "block": 256, "steps": 256})
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(ask(live, "run", long)[1]))
    thread.start()
    while not live.stopping:
        time.sleep(0.01)
    time.sleep(0.2)
    assert ask(live, "stop", b"")[0] == 204
    thread.join()
    assert events(found[0])[-1] == {"stopped": True} and len(events(found[0])) < 257


def test_a_thousand_connections_leave_it_working(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 1.0)
    with contextlib.ExitStack() as stack:
        for _ in range(1_000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=5))
        time.sleep(1.5)
        assert ask(live, "")[0] == 200
