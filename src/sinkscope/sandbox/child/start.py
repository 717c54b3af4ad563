"""The processes of one sandbox: one waits outside → init → judge (tests) → candidate.

The candidate never shares memory with the judge: what crosses is plain data, so no object that equals everything, no
patched builtin and no early exit can pass a test. When init ends, the kernel ends all that still runs within.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import signal
import sys

from .judge import Line, candidate, judge
from .walls import RefusedError, build_root, call, drop_rights, enter_namespaces, filter_calls, limit

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any, NoReturn


def read_message() -> Any:
    size = int.from_bytes(os.read(0, 8), "big")
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data))
    return json.loads(data)


def close_all_but(*kept: int) -> None:
    edges = [2, *sorted(kept), resource.getrlimit(resource.RLIMIT_NOFILE)[1]]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, min(high, 1 << 20))


def run_judge(job: dict[str, Any], report: int) -> NoReturn:
    limit(job["limits"])
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        empty = os.open("/dev/null", os.O_RDONLY)
        os.dup2(empty, 0)
        close_all_but(asked, answer)
        filter_calls()
        candidate(job["code"], job["name"], asked, answer)
    os.close(asked)
    os.close(answer)
    call("prctl", 4, 0, 0, 0, 0)  # not dumpable: the candidate may not trace or read this process
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    verdict = judge(read_message(), Line(pid, ask, answered))  # the tests are read only now: the candidate has no copy
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.write(report, json.dumps(verdict).encode())
    os._exit(0)


def main(report: int, control: int) -> NoReturn:
    """One sandbox: it ends by itself, or when the other end of `control` is closed, by will or by death."""
    call("prctl", 36, 1, 0, 0, 0)  # inherit orphans
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # die with the parent
    job = read_message()
    try:
        enter_namespaces()
        first = os.fork()
        if first == 0:
            os.close(control)
            be_init(job, report)
        alive = os.pidfd_open(first)
    except (RefusedError, OSError) as error:
        os.write(report, json.dumps({"refused": str(error)}).encode())
        os._exit(0)
    if control in select.select([alive, control], [], [])[0]:
        os.kill(first, signal.SIGKILL)
    while os.waitpid(-1, 0)[0] != first:  # the first process is gone only when all of its namespace are
        pass
    os._exit(0)


def be_init(job: dict[str, Any], report: int) -> NoReturn:
    """Process 1 of the sandbox: builds the rest of the walls, starts the judge and waits for it alone."""
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)
    home = "/tmp/home"
    try:
        build_root(job["visible"], job["limits"]["files_mb"])
        os.mkdir(home, 0o777)
        os.chmod(home, 0o777)
        drop_rights()
        os.environ.update(HOME=home, TMPDIR="/tmp")
        os.chdir(home)
    except (RefusedError, OSError) as error:
        os.write(report, json.dumps({"refused": str(error)}).encode())
        os._exit(0)
    judging = os.fork()
    if judging == 0:
        run_judge(job, report)
    os.close(report)
    while os.waitpid(-1, 0)[0] != judging:
        pass
    os._exit(0)  # and with it whatever still runs inside
