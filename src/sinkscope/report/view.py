"""`view`: the explorer of a run that is too big for one file, served slice by slice to this machine only.

The server listens on the loopback address, answers only if the Host header names it (so that no foreign page can reach
it through a name of its own), and only under a random token. Addresses carry numbers, never paths.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from sinkscope.errors import ReportError, SinkscopeError
from sinkscope.report import page, slices
from sinkscope.report.overview import overview_of
from sinkscope.report.sample import header
from sinkscope.report.writing import opening, traces_of

HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
LARGE = 1 << 24  # received values above which the page starts with one layer instead of the mean of all


class Viewer(AbstractContextManager["Viewer"]):
    """A run, served while a `with` lasts or until `close`; `address` is where."""

    def __init__(self, run: Path | str, port: int = 0) -> None:
        self.run = Path(run)
        self.traces = traces_of(self.run)
        self.token = secrets.token_urlsafe(18)
        self.text = self._page().encode("utf-8", "replace")
        try:
            self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
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
        about = {"title": self.run.name, "overview": overview_of(self.run, []), "note": "Served from this machine."}
        return page.build({**about, "samples": samples, **start}, title=f"{self.run.name} · sinkscope", remote=True)

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
        with torch.inference_mode():
            return slices.SLICES[parts[4]](self.traces[int(parts[3])][1], words)


def _handler(viewer: Viewer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10  # seconds for the next bytes of a request, and for a client that does not read its answer

        def do_GET(self) -> None:
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
