"""`view`: the explorer of a run that is too big for one file, served slice by slice to this machine only.

The server listens on the loopback address, answers only if the Host header names it (so that no foreign page can reach
it through a name of its own), and only under a random token. Addresses carry numbers, never paths.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from sinkscope.errors import ReportError, SinkscopeError
from sinkscope.report import page, slices
from sinkscope.report.overview import overview_of
from sinkscope.report.sample import header
from sinkscope.report.writing import opening, traces_of
from sinkscope.tracing import Trace

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


class Viewer:
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

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _page(self) -> str:
        samples = []
        for name, trace in self.traces:
            layer = trace.layers // 2 if _large(trace) else -1
            head = header(trace, name, classes=not _large(trace))
            samples.append({**head, "detail": "remote", "lead": None, "startLayer": layer})
        small = [trace for _, trace in self.traces if not _large(trace)]
        start = opening([trace for _, trace in self.traces]) if len(small) == len(self.traces) else opening([])
        if not start["start"]:
            start["start"] = {"layer": samples[0]["startLayer"]} if samples else {}
        data = {
            "title": self.run.name,
            "overview": overview_of(self.run, []),
            "samples": samples,
            "note": "Served from this machine.",
        } | start
        return page.build(data, title=f"{self.run.name} · sinkscope", remote=True)

    def answer(self, path: str) -> bytes | None:
        """The bytes at an address below the token; None if there is nothing."""
        address = urlsplit(path)
        parts = address.path.split("/")
        if len(parts) < 3 or parts[0] or not secrets.compare_digest(parts[1].encode(), self.token.encode()):
            return None
        if parts[2:] == [""]:
            return self.text
        if len(parts) != 5 or parts[2] != "data" or not parts[3].isdecimal() or parts[4] not in slices.SLICES:
            return None
        if int(parts[3]) >= len(self.traces):
            return None
        words = {name: values[-1] for name, values in parse_qs(address.query).items()}
        trace = self.traces[int(parts[3])][1]
        with torch.inference_mode():
            return slices.SLICES[parts[4]](trace, words)


def _large(trace: Trace) -> bool:
    return trace.steps * trace.layers * trace.heads_count * trace.positions * 3 > LARGE


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
            for name, value in {
                "Content-Type": kind,
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Content-Security-Policy": "frame-ancestors 'none'",
                "Cross-Origin-Resource-Policy": "same-origin",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the token would be in every line."""

    return Handler
