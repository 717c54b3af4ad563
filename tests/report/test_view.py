"""The loopback server: the same page, slices on demand, and nothing for anybody else."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_runs import made_results, made_trace, until
from playwright.sync_api import Browser

from sinkscope.errors import ReportError
from sinkscope.report import server
from sinkscope.report.view import Viewer
from sinkscope.sinks import Threshold
from sinkscope.tracing import Trace


@pytest.fixture(scope="module")
def viewer(run: Path) -> Iterator[Viewer]:
    with Viewer(run) as viewer:
        yield viewer


def ask(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_it_listens_on_the_loopback_only(viewer: Viewer) -> None:
    assert viewer.host == "127.0.0.1"
    assert len(viewer.token) >= 24


def test_a_foreign_host_is_refused(viewer: Viewer) -> None:
    path = f"/{viewer.token}/"
    assert ask(viewer, path)[0] == 200
    assert ask(viewer, path, Host=f"localhost:{viewer.port}")[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{viewer.port}",
        "127.0.0.1",
        "",
        f"127.0.0.1:{viewer.port}.evil.example",
    ):
        assert ask(viewer, path, Host=host)[0] == 403


@pytest.mark.parametrize(
    "path",
    ["/", "/index.html", "/wrong/", "/{token}", "/{token}/../{token}/run.json", "/{token}/run.json", "/{token}//etc/passwd",
     "/{token}/data/0/../../run.json", "/{token}/data/..%2f..%2frun.json/canvas", "/{token}/data/99/canvas",
     "/{token}/data/-1/canvas", "/{token}/data/0/__class__", "/{token}/data/%D9%A3/canvas", "/{token}/data/0/canvas/"],
)  # fmt: skip
def test_other_addresses_hold_nothing(viewer: Viewer, path: str) -> None:
    status, body = ask(viewer, path.replace("{token}", viewer.token))
    assert status == 404 and b"0.1.0" not in body


@pytest.mark.parametrize("query", ["layer=99", "layer=x", "head=-2", "group=everyone", "layer=1e3"])
def test_a_bad_slice_is_a_sentence(viewer: Viewer, query: str) -> None:
    status, body = ask(viewer, f"/{viewer.token}/data/0/plane?{query}")
    assert status == 400 and body.startswith(b"Expected ")


def test_only_reading_is_possible(viewer: Viewer) -> None:
    page = f"/{viewer.token}/"
    assert ask(viewer, page, "POST")[0] == 403  # of nobody
    assert ask(viewer, page, "POST", Origin="http://evil.example")[0] == 403
    assert ask(viewer, page, "POST", Origin=f"http://127.0.0.1:{viewer.port}")[0] == 405


@pytest.mark.parametrize("summary", [False, True])
def test_planes_are_the_scores_of_the_trace(tmp_path: Path, summary: bool) -> None:
    trace = made_trace(maps=False)
    if summary:
        trace = summarised(trace)
    trace.save(tmp_path / "traces" / "one.safetensors")
    with Viewer(tmp_path) as viewer:
        for group in ("all", "masked"):
            scores = trace.scores(group).numpy()
            for layer, head in ((1, 2), (2, -1), (-1, -1)):
                status, body = ask(viewer, f"/{viewer.token}/data/0/plane?layer={layer}&head={head}&group={group}")
                assert status == 200
                found = np.frombuffer(body, np.float32, offset=4 * trace.steps).reshape(trace.steps, -1)
                some = scores if layer < 0 else scores[:, layer : layer + 1]
                expected = some.mean((1, 2)) if head < 0 else some[:, 0, head]
                if summary and head < 0 <= layer and trace.layer_mean is not None:
                    expected = found  # the mean was recorded itself; the heads' tops only approach it
                assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def summarised(trace: Trace) -> Trace:
    from dataclasses import replace

    assert trace.received is not None
    top = trace.received.float().topk(6, dim=-1)
    return replace(
        trace, received=None, layer_mean=trace.received.float().mean(2).half(), top_keys=top.indices.int(),
        top_scores=top.values.half(),
    )  # fmt: skip


def test_the_page_works_and_marks_the_same_sinks(viewer: Viewer, browser: Browser, traces: list[Trace]) -> None:
    page = browser.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{viewer.address}#tab=explorer&sample=0&layer=1&head=2&epsilon=1.3")
    page.wait_for_selector("html[data-settled]")
    until(page, "window.sinkscope.sample.lead && document.querySelector('#paths svg')")
    found = page.evaluate("Array.from({length: sinkscope.sample.steps}, (_, step) => sinkscope.sinksAt(step))")
    table = traces[0].sinks(Threshold(1.3))
    here = table.filter((table["layer"] == 1) & (table["head"] == 2))
    expected = set(zip(here["step"].to_list(), here["position"].to_list(), strict=True))
    assert {(step, key) for step, keys in enumerate(found) for key in keys} == expected
    assert page.locator("#attention canvas").first.is_visible()
    assert errors == [] and all(url.startswith((viewer.address, "data:")) for url in asked)
    page.close()


def test_nothing_to_serve_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="neither"):
        Viewer(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    with Viewer(tmp_path) as viewer, pytest.raises(ReportError, match="cannot be used"):
        Viewer(tmp_path, viewer.port)


def test_slow_clients_wait_for_a_while_only(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 connections whose requests never end, some of which send a byte now and then."""
    monkeypatch.setattr(server, "PATIENCE", 1.0)
    with Viewer(run) as viewer, contextlib.ExitStack() as stack:
        before = threading.active_count()
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", viewer.port), timeout=10)) for _ in range(400)
        ]
        started = time.monotonic()
        while time.monotonic() - started < 2.0:
            for one in slow[::50]:
                with contextlib.suppress(OSError):
                    one.send(b"G")
            time.sleep(0.1)
        assert threading.active_count() - before <= 2  # no thread per connection
        assert ask(viewer, f"/{viewer.token}/")[0] == 200
