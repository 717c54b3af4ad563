"""Run programs that a model wrote, in isolation: own process, no network, an empty file tree, hard limits."""

import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, Any

from sinkscope.errors import SandboxError

GRACE = 5.0  # seconds between asking a sandbox to end and ending the process that keeps it


@dataclass(frozen=True)
class Limits:
    """What generated code may use: seconds on the wall clock, megabytes per process, kilobytes printed, …"""

    seconds: float = 5.0
    memory_mb: int = 512
    output_kb: int = 64
    files_mb: int = 16
    processes: int = 8


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended; `reason` is ok, failed (a test), error, exit, timeout, memory, output or killed."""

    ok: bool
    output: str
    reason: str
    seconds: float
    detail: str = ""


def run_python(code: str, **limits: Any) -> SandboxResult:
    """Run a script; ok means that it reached its end, which hostile code could pretend: for verdicts use `check`."""
    return _run(code, "__main__", {"tests": None}, Limits(**limits))


def check(
    code: str, tests: str, names: Sequence[str], *, setup: str = "", limits: Limits | None = None
) -> SandboxResult:
    """Run `tests` (asserts) against functions that `code` defines; ok only when the last line of the tests was reached.

    `names` are what the tests take from the candidate, `setup` is trusted code that they need. Arguments and results are
    copies.
    """
    return _run(code, "candidate", {"tests": tests, "setup": setup, "names": list(names)}, limits or Limits())


def check_many(jobs: Iterable[dict[str, Any]], *, workers: int | None = None) -> list[SandboxResult]:
    """Run `check` over many jobs (its arguments as dictionaries), several sandboxes at a time, in order."""
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda job: check(**job), jobs))


def require_sandbox() -> None:
    """Raise SandboxError, in one sentence, where this machine cannot run generated code safely."""
    run_python("pass")


@functools.cache
def _visible() -> tuple[str, ...]:
    """Paths that exist inside: libraries, Python's standard library, harmless devices; no program, no home."""
    libraries = ["/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/nix/store"]
    devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
    python = [
        os.path.dirname(os.__file__),
        os.path.join(sys.base_prefix, "lib"),
        os.path.join(sys.base_exec_prefix, "lib"),
    ]
    inside: list[str] = []
    for path in [*libraries, *sorted({os.path.realpath(p) for p in python}, key=len), *devices]:
        if not any(os.path.realpath(path).startswith(os.path.realpath(other) + "/") for other in inside):
            inside.append(path)
    return tuple(inside)


def _run(code: str, name: str, judging: dict[str, Any], limits: Limits) -> SandboxResult:
    """One sandbox from start to end."""
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"Generated code runs only on Linux, where it can be isolated, not on {sys.platform}: use a Linux machine."
        )
    job = {"code": code, "name": name, "limits": asdict(limits), "visible": _visible()}
    began = time.monotonic()
    with tempfile.TemporaryFile() as file:  # the sandbox's standard input: length and JSON, message by message
        for message in (job, judging):
            data = json.dumps(message).encode()
            file.write(len(data).to_bytes(8, "big") + data)
        file.seek(0)
        output, told, ended = _follow(file, limits)
    text, seconds = output.decode("utf-8", "replace"), time.monotonic() - began
    if ended:
        return SandboxResult(False, text, ended, seconds)
    verdict = json.loads(told) if told else {"reason": "killed", "text": "the judge was killed"}
    if "refused" in verdict:
        raise SandboxError(
            f"Generated code needs user and network namespaces, which this kernel refuses ({verdict['refused']}); allow "
            "unprivileged user namespaces."
        )
    return SandboxResult(verdict["reason"] == "ok", text, str(verdict["reason"]), seconds, str(verdict["text"]))


def _follow(job: IO[bytes], limits: Limits) -> tuple[bytes, bytes, str | None]:
    """Start a job, read its output and report until it is over, or stop it; then wait until nothing of it is left."""
    (output, output_in), (report, report_in), (control_out, control) = os.pipe(), os.pipe(), os.pipe()
    try:
        try:
            process = _start(job, output_in, report_in, control_out)
        finally:
            for descriptor in (output_in, report_in, control_out):
                os.close(descriptor)
        most = limits.output_kb << 10
        printed, told, ended = _listen(output, report, time.monotonic() + limits.seconds, most)
        os.close(control)
        control = -1
        if ended and _listen(-1, report, time.monotonic() + GRACE, most)[2]:
            process.kill()
        process.wait()
        return printed, told, ended
    finally:
        for descriptor in (output, report, control):
            if descriptor >= 0:
                os.close(descriptor)


def _listen(output: int, report: int, deadline: float, most: int) -> tuple[bytes, bytes, str | None]:
    """Read until both pipes close, which is when no process of the sandbox is left; or say why it must be stopped."""
    heard = {descriptor: bytearray() for descriptor in (output, report) if descriptor >= 0}
    poll = select.poll()  # select() knows no descriptors above 1024
    for descriptor in heard:
        poll.register(descriptor, select.POLLIN)
    printed, told = heard.get(output, bytearray()), heard[report]
    while heard:
        left = deadline - time.monotonic()
        ready = poll.poll(left * 1000) if left > 0 else []
        if not ready:
            return bytes(printed[:most]), b"", "timeout"
        for descriptor, _ in ready:
            data = os.read(descriptor, 65536)
            heard[descriptor].extend(data)
            if not data:
                poll.unregister(descriptor)
                del heard[descriptor]
        if len(printed) > most or len(told) > 1 << 20:
            return bytes(printed[:most]), b"", "output"
    return bytes(printed), bytes(told), None


# Imported, not run as a script, so that Python keeps its compiled form; last on the path, so that it shadows nothing.
START = "import sys; sys.path.append(sys.argv[1]); import child; sys.path.pop(); child.main(*map(int, sys.argv[2:]))"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _start(job: IO[bytes], output: int, report: int, control: int) -> subprocess.Popen[bytes]:
    """A bare interpreter with a job: its file, where it prints, where it reports, and the pipe whose end ends it."""
    python = getattr(sys, "_base_executable", sys.executable)
    words = ["-I", "-S", "-X", "utf8", "-c", START, os.path.dirname(__file__), str(report), str(control)]
    try:
        return subprocess.Popen(
            [python, *words], stdin=job, stdout=output, stderr=output, pass_fds=(report, control), cwd="/",
            env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise SandboxError(
            f"The process of a sandbox cannot be started ({error}); is the machine out of memory?"
        ) from None
