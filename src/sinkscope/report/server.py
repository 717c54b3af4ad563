"""A page served to this machine only: Starlette behind uvicorn, on the loopback address, below a random token.

A request must name the server itself in its Host header, so that no foreign page can reach it through a name of its own. One
that changes something must come from the page (Origin), and its body is small and in time. Addresses carry numbers, never paths.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sinkscope.errors import ReportError, SinkscopeError

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
CONNECTIONS = 32  # a browser opens six; more are closed as they come
PATIENCE = 5.0  # seconds for a request to come whole, or for the next one on the same connection
LARGEST = 1 << 16  # bytes of what a page may send


class PatientProtocol(H11Protocol):
    """Few connections, and none waits long for a request: a byte now and then does not prolong it."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
        self.deadline = self.loop.call_later(PATIENCE, self.give_up)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:
            self.deadline.cancel()

    def give_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class Guard:
    """Answers those requests that name this server and, if they change something, come from its own page."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{LOOPBACK}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        origin = request.headers.get("origin", "")
        foreign = request.method != "GET" and origin.removeprefix("http://") not in self.hosts
        if request.headers.get("host", "").lower() not in self.hosts or foreign:
            refusal = PlainTextResponse("This server answers to its own address only.", 403, HEADERS)
            return await refusal(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                fixed = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *fixed]}
            await send(message)

        await self.app(scope, receive, with_headers)


async def read_body(request: Request) -> bytes:
    """What a page sent; too much, or too late, is a sentence."""
    body = b""

    async def gather() -> None:
        nonlocal body
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                raise ReportError(f"Expected a request of at most {LARGEST // 1024} kB.")

    try:
        await asyncio.wait_for(gather(), PATIENCE)
    except TimeoutError:
        raise ReportError("The request did not come whole in time.") from None
    return body


async def _tell(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error).encode("utf-8", "replace"), 400)


class Server(AbstractContextManager["Server"]):
    """Routes below a token, served by a thread while a `with` lasts or until `close`; `address` is where."""

    def __init__(self, routes: list[BaseRoute], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(18)
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((LOOPBACK, port))
        except OSError as error:
            listening.close()
            raise ReportError(f"Port {port} cannot be used ({error}); name another, or 0 for any free one.") from None
        self.host, self.port = listening.getsockname()
        page = Router(routes, redirect_slashes=False)
        app = Starlette(
            routes=[Mount(f"/{self.token}", page)], exception_handlers={SinkscopeError: _tell, ValueError: _tell}
        )
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            Guard(app, self.port), log_config=None, log_level="critical", access_log=False, lifespan="off", http=PatientProtocol,
            timeout_keep_alive=int(PATIENCE), timeout_graceful_shutdown=1,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        while not self.server.started and self.thread.is_alive():
            time.sleep(0.01)

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}/{self.token}/"

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def __exit__(self, *error: object) -> None:
        self.close()
