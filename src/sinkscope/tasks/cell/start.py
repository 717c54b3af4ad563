"""The processes of one sandbox: this one waits outside → init → judge (tests) → candidate.

The candidate never shares memory with the judge: what crosses is plain data, so no object that equals everything, no
patched builtin and no early exit can pass a test. When init ends, the kernel ends all that still runs within.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
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


def run_judge(job: dict[str, Any], report: int, processes: int) -> NoReturn:
    limit(job["limits"], processes)
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        empty = os.open("/dev/null", os.O_RDONLY)
        os.dup2(empty, 0)
        close_all_but(asked, answer)
        filter_calls(job["limits"]["allow_network"])
        candidate(job["code"], job["name"], asked, answer)
    os.close(asked)
    os.close(answer)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    verdict = judge(read_message(), Line(pid, ask, answered))  # the tests are read only now: the candidate has no copy
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.write(report, json.dumps(verdict).encode())
    os._exit(0)


def tasks_of_user() -> int:
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return total


def end_children() -> None:
    """Kill every process that descends from this one (as subreaper it inherits the orphans), where no wall does it."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue


def main(report: int) -> None:
    parent = os.getppid()
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # die with the parent
    call("prctl", 36, 1, 0, 0, 0)  # inherit orphans
    if os.getppid() != parent:
        os._exit(1)
    job = read_message()
    limits = job["limits"]
    walls = not job["without_walls"]
    try:
        if walls:
            enter_namespaces(limits["allow_network"])
    except (RefusedError, OSError) as error:
        os.write(report, json.dumps({"refused": str(error)}).encode())
        os._exit(0)
    first = os.fork()
    if first == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        call("prctl", 1, signal.SIGKILL, 0, 0, 0)
        close_all_but(report)
        try:
            processes = limits["processes"] + 4  # this one, its parent, the judge, the candidate
            if walls:
                build_root(job["visible"], limits["files_mb"])
                os.environ.update(HOME="/tmp/home", TMPDIR="/tmp")
                os.mkdir("/tmp/home", 0o777)
                os.chmod("/tmp/home", 0o777)
                os.chdir("/tmp/home")
                drop_rights()
            else:
                processes += tasks_of_user()
        except (RefusedError, OSError) as error:
            os.write(report, json.dumps({"refused": str(error)}).encode())
            os._exit(0)
        second = os.fork()
        if second == 0:
            run_judge(job, report, processes)
        os.close(report)
        # Only the judge is waited for: when this process ends, the kernel ends whatever else still runs inside.
        while os.waitpid(-1, 0)[0] != second:
            pass
        os._exit(0)
    os.close(report)

    def stop(*_: Any) -> None:
        os.kill(first, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    while os.waitpid(-1, 0)[0] != first:  # the first process is gone only when all of its namespace are
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not walls:
        end_children()
    os._exit(0)
