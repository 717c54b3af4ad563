"""The processes of one sandbox, one waits outside → init → judge (tests) → candidate, and the walls around them.

Walls: namespaces, an empty file tree, no rights, limits, and a filter on system calls.

The candidate never shares memory with the judge: what crosses is plain data, so no object that equals everything, no
patched builtin and no early exit can pass a test. When init ends, the kernel ends all that still runs within.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import select
import signal
import struct
import sys

from .judge import Line, candidate, judge

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any, NoReturn


# mount, uts, ipc, user, pid, net
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
BIND, REC, REMOUNT, READONLY, NOSUID, NODEV, NOEXEC, PRIVATE, DETACH = 4096, 16384, 32, 1, 2, 4, 8, 1 << 18, 2
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """The kernel does not give what the walls need."""


def call(name: str, *arguments: Any) -> None:
    """Call a function of libc that answers 0 when it worked."""
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise RefusedError(f"{name} failed ({os.strerror(error)})")


def enter_namespaces() -> None:
    """Leave the machine's users, mounts, processes, shared memory and network behind."""
    root = os.geteuid() == 0
    # A user id of its own for each sandbox: process limits do not bind the machine's root.
    users = f"0 0 1\n{NOBODY} {0x70000000 + os.getpid()} 1" if root else f"{NOBODY} {os.geteuid()} 1"
    groups = f"0 0 1\n{NOBODY} {0x70000000 + os.getpid()} 1" if root else f"{NOBODY} {os.getegid()} 1"
    ready, go = os.pipe()
    target = os.getpid()
    writer = os.fork()
    if writer == 0:  # only a process of the parent namespace may map a user that is not itself
        os.close(go)
        status = 1
        try:
            if os.read(ready, 1):
                for name, text in (("setgroups", "deny"), ("gid_map", groups), ("uid_map", users)):
                    with open(f"/proc/{target}/{name}", "w") as file:
                        file.write(text)
                status = 0
        finally:
            os._exit(status)
    os.close(ready)
    try:
        call("unshare", NAMESPACES)
        os.write(go, b"x")
    finally:
        os.close(go)
        _, status = os.waitpid(writer, 0)
    if status != 0:
        raise RefusedError("the user map could not be written")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    call(
        "mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data.encode() or None
    )


def bind_readonly(source: str, target: str) -> None:
    mount(source, target, None, BIND | REC)
    kept = os.statvfs(target).f_flag
    # Flags that the machine set on this mount are locked: a remount must repeat them.
    flags = kept & (2 | 4 | 8 | 1024 | 2048) | ((1 << 21) if kept & 4096 else 0)
    mount("none", target, None, BIND | REMOUNT | READONLY | flags)


def build_root(visible: list[str], files_mb: int) -> None:
    """Replace the file tree by an empty one: libraries and the standard library, read-only; a small /tmp."""
    mount("none", "/", None, REC | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "mode=755,size=1m")
    os.mkdir("/tmp/old")
    call("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    for path in visible:
        source = "/old" + path
        if os.path.islink(source):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.lexists(path):
                os.symlink(os.readlink(source), path)
        elif os.path.isdir(source):
            os.makedirs(path, exist_ok=True)
            bind_readonly(source, path)
        elif os.path.exists(source):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            if path.startswith("/dev/"):
                mount(source, path, None, BIND)
            else:
                bind_readonly(source, path)
    call("umount2", b"/old", DETACH)
    os.rmdir("/old")
    os.mkdir("/tmp", 0o777)
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV | NOEXEC, f"mode=1777,size={files_mb}m,nr_inodes=4096")
    mount("none", "/", None, BIND | REMOUNT | READONLY | NOSUID | NODEV | NOEXEC)


def drop_rights() -> None:
    if os.geteuid() == 0:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))  # version 3, this process; no capability of any kind
    call("prctl", 4, 0, 0, 0, 0)  # not dumpable: no other process of this user may read or trace it
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # a change of user forgets that this process must die with its parent


def limit(limits: dict[str, Any]) -> None:
    memory, files = limits["memory_mb"] << 20, limits["files_mb"] << 20
    seconds = int(limits["seconds"]) + 2
    processes = limits["processes"] + 4  # init, its parent, the judge, the candidate
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, files),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(what, (value, value))


# System calls that no answer needs and that reach round the limits: other programs, other processes' memory, memory that
# belongs to no process, new namespaces, kernel features. (x86_64, aarch64); elsewhere namespaces and limits stand alone.
DENIED = {
    "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip


def filter_calls(calls: dict[str, tuple[int, int]] = DENIED) -> None:
    """Refuse system calls for good, and new privileges (through setuid programs) too."""
    call("prctl", 38, 1, 0, 0, 0)
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64") or sys.maxsize < 1 << 32:
        return
    column = ("x86_64", "aarch64").index(machine)
    load, equal, at_least, has_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, (0xC000003E, 0xC00000B7)[column]),
        (answer, 0, 0, refuse),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # x86_64's second numbering of the same calls
        (answer, 0, 0, refuse),
        (equal, 0, 1, 435),  # clone3: its flags cannot be seen here; libc then takes clone
        (answer, 0, 0, absent),
    ]
    for numbers in calls.values():
        program += [(equal, 0, 1, numbers[column]), (answer, 0, 0, refuse)]
    program += [
        (equal, 0, 3, (56, 220)[column]),  # clone: threads and forks, no namespaces
        (load, 0, 0, 16),
        (has_bits, 0, 1, 0x7E020000),
        (answer, 0, 0, refuse),
        (answer, 0, 0, allow),
    ]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    call("prctl", 22, 2, struct.pack("HP", len(program), ctypes.addressof(instructions)), 0, 0)


# ---- processes ----


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
