"""The process that starts sandboxes: to fork a bare interpreter that is there costs a third of starting one."""

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from sinkscope.errors import SandboxError

# Imported, not run as a script, so that Python keeps its compiled form; last on the path, so that it shadows nothing.
START = (
    "import sys; sys.path.append(sys.argv[1]); import child.start; sys.path.pop(); child.start.serve(int(sys.argv[2]))"
)
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


class ForkServer:
    """A bare interpreter beside this process, which forks once per job; it ends when this process does."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                [
                    getattr(sys, "_base_executable", sys.executable),
                    *("-I", "-S", "-X", "utf8", "-c", START, os.path.dirname(__file__), str(other.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )

    def start(self, descriptors: Sequence[int]) -> None:
        """Hand a job over: its file, where it prints, where it reports, and the pipe whose end ends it."""
        socket.send_fds(self.door, [b"x"], list(descriptors))

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """Kill it, and with it every sandbox that still runs."""
        self.door.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_servers: list[ForkServer] = []


def start(descriptors: Sequence[int]) -> None:
    """Start a sandbox; the fork server is started with the first, and again after a fork of this process."""
    with _lock:
        for _ in range(2):
            if not _servers or not _servers[0].alive():
                _servers[:] = [ForkServer()]
            try:
                return _servers[0].start(descriptors)
            except OSError:
                end()
    raise SandboxError("The process that starts sandboxes died twice in a row; is the machine out of memory?")


def end() -> None:
    """End the fork server and its sandboxes; the next job starts another."""
    for server in _servers:
        server.end()
    _servers.clear()


atexit.register(end)
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))
