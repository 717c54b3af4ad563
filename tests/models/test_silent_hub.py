"""A Hub that accepts and never answers, or answers for a while and then no more: given up, with one sentence.

A real server on this machine, and the program itself, pointed at it as a user would.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"
SECONDS = 1  # of silence; the default is ten
MACHINE = 30  # seconds that starting Python and importing torch may take here
FILES = ["config.json", "model.safetensors", "tokenizer.json"]


class Hub:
    """Answers as many requests as it is told to, then holds every connection open and says nothing."""

    def __init__(self, answers: int, bodies: bool = True) -> None:
        self.left, self.bodies = answers, bodies
        self.asked: list[str] = []
        self.held: list[socket.socket] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.held.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while request := connection.recv(1 << 16):
                self.asked.append(request.split(b"\r\n")[0].decode())
                if self.left <= 0:
                    continue
                self.left -= 1
                self._answer(connection, self.asked[-1])
        except OSError:
            return

    def _answer(self, connection: socket.socket, asked: str) -> None:
        listing = {"id": "someone/model", "sha": SHA, "siblings": [{"rfilename": name} for name in FILES]}
        tree = [{"type": "file", "path": name, "size": 100, "oid": "a" * 40} for name in FILES]
        body = json.dumps(tree if "/tree/" in asked else listing).encode() if "/api/" in asked else b"{}" * 50
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f'ETag: "{"a" * 40}"\r\nX-Repo-Commit: {SHA}\r\n\r\n'
        )
        connection.sendall(head.encode())
        if "/api/" in asked or (self.bodies and not asked.startswith("HEAD")):
            connection.sendall(body)
        elif not asked.startswith("HEAD"):
            connection.sendall(body[:10])  # and the rest never


@contextmanager
def served(hub: Hub) -> Iterator[Hub]:
    try:
        yield hub
    finally:
        hub.server.close()
        for connection in hub.held:
            connection.close()


@pytest.mark.parametrize(
    ("hub", "least"),
    [
        (lambda: Hub(0), 1),
        (lambda: Hub(1), 2),
        (lambda: Hub(2), 3),
        (lambda: Hub(4), 5),
        (lambda: Hub(100, bodies=False), 6),
    ],
    ids=["never", "once", "twice", "up to the files", "half a file"],
)
@pytest.mark.parametrize("words", [["generate", "someone/model", "hello"]])
def test_it_is_given_up(hub: object, least: int, words: list[str], tmp_path: Path) -> None:
    with served(hub()) as there:  # type: ignore[operator]
        environment = {
            **os.environ, "HF_ENDPOINT": there.address, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0",
            "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_ETAG_TIMEOUT": str(SECONDS),
            "HF_HUB_DOWNLOAD_TIMEOUT": str(SECONDS), "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", "from sinkscope.cli import main; main()", *words],
            check=False, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path,
        )  # fmt: skip
        spent = time.monotonic() - started
    assert done.returncode == 2, done
    said = [line for line in done.stderr.splitlines() if line.startswith("sinkscope: ")]
    assert len(said) == 1 and f"did not answer within {SECONDS} seconds" in said[0], done.stderr
    assert "Traceback" not in done.stderr
    assert len(there.asked) >= least, there.asked
    assert spent < MACHINE + 8 * SECONDS
