"""`view`: the explorer of a run that is too big for one file, served slice by slice to this machine only.

The server listens on the loopback address, answers only if the Host header names it (so that no foreign page can reach
it through a name of its own), and only under a random token. Addresses carry numbers, never paths.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch

from sinkscope.errors import ReportError, SinkscopeError
from sinkscope.report import page
from sinkscope.report.overview import overview_of
from sinkscope.report.sample import canvas_codes, header, largest, layer_means, leads, map_codes, totals
from sinkscope.report.writing import opening, traces_of
from sinkscope.sinks.rules import GROUPS, rule_of_form
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import head_dynamics
from sinkscope.tracing.trace import single_threaded

HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
CONNECTIONS = 32  # a browser opens six; more are closed as they come
PATIENCE = 5.0  # seconds for a request to come whole, or for the next one on the same connection
LARGE = 1 << 24  # received values above which the page starts with one layer instead of the mean of all


class Server(ThreadingHTTPServer):
    """A thread per connection, of which there are few, and none waits long for a request."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.waiting: dict[socket.socket, float] = {}  # connections without a whole request, and since when
        self.places = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.acquire(blocking=False):
            self.waiting[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.pop(request, None)
            self.places.release()

    def service_actions(self) -> None:
        """Called twice a second; a timeout per read would not end a client that sends a byte now and then."""
        for request, since in list(self.waiting.items()):
            if time.monotonic() - since > PATIENCE:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nobody is told that a client went away."""


class Viewer(AbstractContextManager["Viewer"]):
    """A run, served while a `with` lasts or until `close`; `address` is where."""

    def __init__(self, run: Path | str, port: int = 0) -> None:
        self.run = Path(run)
        self.traces = traces_of(self.run)
        self.token = secrets.token_urlsafe(18)
        self.text = self._page().encode("utf-8", "replace")
        try:
            self.server = Server(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ReportError(f"Port {port} cannot be used ({error}); name another, or 0 for any free one.") from None
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _page(self) -> str:
        samples = []
        for name, trace in self.traces:
            large = trace.steps * trace.layers * trace.heads_count * trace.positions * 3 > LARGE
            head = header(trace, name, classes=not large)
            layer = trace.layers // 2 if large else -1
            samples.append({**head, "detail": "remote", "lead": None, "startLayer": layer})
        all_small = all(one["startLayer"] < 0 for one in samples)
        start = opening([trace for _, trace in self.traces] if all_small else [])
        if not start["start"] and samples:
            start["start"] = {"layer": samples[0]["startLayer"]}
        about = {"title": self.run.name, "overview": overview_of(self.run), "note": "Served from this machine."}
        return page.build({**about, "samples": samples, **start}, title=f"{self.run.name} · sinkscope", remote=True)

    def answer(self, path: str) -> bytes | None:
        """The bytes at an address below the token; None if there is nothing."""
        address = urlsplit(path)
        parts = address.path.split("/")
        if len(parts) < 3 or parts[0] or not secrets.compare_digest(parts[1].encode(), self.token.encode()):
            return None
        if parts[2:] == [""]:
            return self.text
        traces = {str(number): trace for number, (_, trace) in enumerate(self.traces)}
        if len(parts) != 5 or parts[2] != "data" or parts[3] not in traces or parts[4] not in SLICES:
            return None
        words = {name: values[-1] for name, values in parse_qs(address.query).items()}
        with torch.inference_mode():
            return SLICES[parts[4]](traces[parts[3]], words)


def _handler(viewer: Viewer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 2 * PATIENCE  # for a client that does not read its answer

        def do_GET(self) -> None:
            viewer.server.waiting.pop(self.connection, None)
            self._answer()
            viewer.server.waiting[self.connection] = time.monotonic()

        def _answer(self) -> None:
            hosts = {f"127.0.0.1:{viewer.port}", f"localhost:{viewer.port}"}
            if self.headers.get("Host", "").lower() not in hosts:
                return self._send(HTTPStatus.FORBIDDEN, b"This server answers to its own address only.")
            try:
                found = viewer.answer(self.path)
            except (SinkscopeError, ValueError) as error:
                return self._send(HTTPStatus.BAD_REQUEST, str(error).encode("utf-8", "replace"))
            if found is None:
                return self._send(HTTPStatus.NOT_FOUND, b"There is nothing at this address.")
            whole = found is viewer.text
            self._send(HTTPStatus.OK, found, "text/html; charset=utf-8" if whole else "application/octet-stream")

        def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the token would be in every line."""

    return Handler


# ---- parts of a trace as plain little-endian bytes, made when the page asks for them

Words = dict[str, str]


def canvas(trace: Trace, words: Words) -> bytes:
    """u4 codes [step + 1, position], then f2 confidence [step, position]."""
    return canvas_codes(trace).tobytes() + trace.confidence.half().numpy().tobytes()


@single_threaded
def plane(trace: Trace, words: Words) -> bytes:
    """f4 totals [step], then f4 column sums [step, key] of one head, of a layer's mean, or of the mean of all."""
    layer, head = _number(words, "layer", -1, trace.layers), _number(words, "head", -1, trace.heads_count)
    group = _group(words)
    if layer >= 0:
        part = trace.select(layers=[layer], heads=None if head < 0 else [head])
        values = part.scores(group)[:, 0].mean(1)
    else:
        sums = (received.sum((1, 2)) for _, (received,) in trace.columns_by_layer(group))
        values = sum(sums, torch.zeros(trace.steps, trace.positions)) / (trace.layers * trace.heads_count)
    return values.sum(-1).numpy().tobytes() + values.contiguous().numpy().tobytes()


def paths(trace: Trace, words: Words) -> bytes:
    """f4 scores, f4 totals, u2 keys of each head's largest key, [layer, head, step] all three."""
    group = _group(words)
    keys, scores = largest(trace, group)
    return b"".join([scores.tobytes(), totals(trace, (group,))[0].tobytes(), keys.tobytes()])


def heads(trace: Trace, words: Words) -> bytes:
    """JSON: class, direction, mean score of the largest key and presence of each head, for any epsilon, unit and group."""
    epsilon = words.get("epsilon", "3")
    try:
        rule = rule_of_form(words.get("unit", "sum"), float(epsilon), _group(words))
    except ValueError:
        raise ReportError(f"Expected epsilon to be a number, got {epsilon[:20]!r}.") from None
    table = head_dynamics(trace, rule)
    return json.dumps(table.select("class", "direction", "strength", "presence").fill_null(0).rows()).encode()


def lead(trace: Trace, words: Words) -> bytes:
    """u4 largest key per step, [1 + layer, step]: of the mean of all layers, then of each layer."""
    return leads(layer_means(trace)).astype(np.uint32).tobytes()


def attention(trace: Trace, words: Words) -> bytes:
    """u1 codes [query, key] of one kept attention map at one step."""
    if trace.maps is None:
        raise ReportError("This trace has no attention maps; keep some with Keep(maps=…).")
    slot, step = _number(words, "slot", 0, trace.maps.shape[0]), _number(words, "step", 0, trace.steps)
    return map_codes(trace.maps[slot, step]).tobytes()


def reasons(trace: Trace, words: Words) -> bytes:
    """f4 [4, key]: what a kept head's keys score at one step, and why."""
    if trace.reasons is None:
        raise ReportError("This trace has no reasons of sinks; they are kept with attention maps, Keep(maps=…).")
    slot, step = _number(words, "slot", 0, len(trace.reasons)), _number(words, "step", 0, trace.steps)
    return trace.reasons[slot, step].numpy().tobytes()


def _number(words: Words, name: str, low: int, stop: int) -> int:
    text = words.get(name, str(low))
    if not text.removeprefix("-").isdecimal() or not low <= int(text) < stop:
        raise ReportError(f"Expected {name} to be a whole number from {low} to {stop - 1}, got {text[:20]!r}.")
    return int(text)


def _group(words: Words) -> str:
    group = words.get("group", "all")
    if group not in GROUPS:
        raise ReportError(f"Expected a group of queries among {', '.join(GROUPS)}, got {group[:20]!r}.")
    return group


SLICES: dict[str, Callable[[Trace, Words], bytes]] = {
    "canvas": canvas, "plane": plane, "paths": paths, "heads": heads, "lead": lead, "reasons": reasons, "map": attention,
}  # fmt: skip
