"""Every attack is contained and counted as a failure, the next problem is unaffected, and nothing is left running."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope import sandbox
from sinkscope.errors import SandboxError
from sinkscope.sandbox import Limits, check, check_many, run_python

try:
    sandbox.require_sandbox()
except SandboxError as error:
    pytest.skip(f"no sandbox on this machine: {error}", allow_module_level=True)


def passes(code: str, tests: str, names: list[str], setup: str = "") -> bool:
    return check(code, tests, names, setup=setup).ok


GOOD, TESTS = "def f(x):\n    return x + 1\n", "assert f(1) == 2\nassert f(-1) == 0\n"

# Code that tries to get round the walls or the tests, and how its run must end. None of them solves the problem.
ATTACKS = {
    "fork bomb": ("import os\nwhile True:\n    os.fork()\n", {"error", "memory"}),
    "hidden fork bomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n        os.setsid()\n    except OSError:\n        pass\n",
        {"timeout"},
    ),
    "10 GB allocation": ("x = bytearray(10 << 30)\n", {"memory"}),
    "many small allocations": ("x = []\nwhile True:\n    x.append(bytearray(1 << 20))\n", {"memory"}),
    "endless loop": ("while True:\n    pass\n", {"timeout"}),
    "endless sleep that ignores signals": (
        "import signal, time\nfor n in (1, 2, 15):\n    signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)\n",
        {"timeout"},
    ),
    "1 GB print": ("for _ in range(1024):\n    print('x' * (1 << 20))\n", {"output"}),
    "reading the home folder": (
        f"import os\nos.listdir({str(Path.home())!r})[0] + str(open('/etc/passwd'))\n",
        {"error"},
    ),
    "writing outside": ("open('/usr/lib/x', 'w')\n", {"error"}),
    "filling the disk": ("file = open('big', 'wb')\nwhile True:\n    file.write(bytes(1 << 20))\n", {"error"}),
    "opening a socket": ("import socket\nsocket.create_connection(('127.0.0.1', 22), 1)\n", {"error"}),
    "starting a program": ("import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'], check=True)\n", {"error"}),
    "killing the parent": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + GOOD, {"killed", "exit"}),
    "killing everyone": ("import os, signal\nos.kill(-1, signal.SIGKILL)\n" + GOOD, {"killed", "exit"}),
    "os._exit": ("import os\nos._exit(0)\n", {"exit"}),
    "os._exit in the call": ("import os\ndef f(x):\n    os._exit(0)\n", {"exit"}),
    "sys.exit": ("import sys\ndef f(x):\n    sys.exit(0)\n", {"exit"}),
    "leaving by atexit": ("import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)\n", {"exit"}),
    "an answer that equals everything": (
        "class Yes(int):\n    def __eq__(self, other): return True\ndef f(x):\n    return Yes(7)\n",
        {"failed"},
    ),
    "an object that equals everything": (
        "class Yes:\n    def __eq__(self, other): return True\ndef f(x):\n    return Yes()\n",
        {"error"},
    ),
    "patched builtins": (
        "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.isinstance = builtins.all = lambda *a: True\n"
        "builtins.compile = lambda *a, **k: 'pass'\nbuiltins.exec = lambda *a: None\ndef f(x):\n    return 7\n",
        {"failed", "exit"},
    ),
    "monkeypatching the checker": (
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    if hasattr(module, 'judge'):\n"
        "        module.judge = lambda *a: {'reason': 'ok', 'text': ''}\n        module.unpack = lambda v: 2\n"
        "def check(*a): pass\ndef f(x):\n    return 7\n",
        {"failed", "error"},
    ),
    "writing the verdict to every open file": (
        'import os\nfor fd in range(64):\n    try:\n        os.write(fd, b\'{"reason": "ok", "text": ""}\\n\')\n'
        "    except OSError:\n        pass\ndef f(x):\n    return 7\n",
        {"failed", "error"},
    ),
    "telling a failure whose reason is ok": (
        "import os\nfor fd in range(64):\n    try:\n"
        '        os.write(fd, b\'{"raised": "", "reason": "ok", "text": ""}\\n\')\n'
        "    except OSError:\n        pass\n",
        {"error"},
    ),
    "ending the tests' loops early": ("def f(x):\n    raise StopIteration\n", {"error"}),
    "tracing the judge": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "if libc.ptrace(16, 2, 0, 0) == 0:\n    f = lambda x: x + 1\nelse:\n    raise OSError\n",
        {"error"},
    ),
    "a namespace of its own": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nif libc.unshare(0x10000000) == 0:\n    f = lambda x: x + 1\n",
        {"error"},
    ),
}


def running_sandboxes() -> list[int]:
    """Processes of sandboxes that this process started, or that nobody waits for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"child.main" in text and state[0] != "Z" and int(state[1]) in (1, os.getpid()):
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_contained_and_fails(name):
    code, reasons = ATTACKS[name]
    began = time.monotonic()
    seconds = 1.5 if reasons == {"timeout"} else 20  # what ends by itself gets time to, on a busy machine too
    result = check(code, TESTS, names=["f"], limits=Limits(seconds=seconds, memory_mb=256))
    assert not result.ok
    assert result.reason in reasons, result
    assert len(result.output) <= 64 << 10
    assert time.monotonic() - began < 20
    assert running_sandboxes() == []
    assert passes(GOOD, TESTS, ["f"]), "the next problem was affected"


def test_wall_clock_output_and_files_are_as_told():
    result = run_python("print('a' * 10)\nimport time\ntime.sleep(60)", seconds=0.7)
    assert (result.ok, result.reason) == (False, "timeout")
    assert 0.6 <= result.seconds < 5
    assert run_python("print('x' * 3000)", output_kb=2).reason == "output"
    assert run_python("open('a', 'wb').write(bytes(3 << 20))", files_mb=2).ok is False
    assert run_python("open('a', 'wb').write(bytes(3 << 20))", files_mb=4).ok is True


def test_world_inside_is_empty():
    code = (
        "import os\nprint(sorted(os.listdir('.')), os.getcwd() == os.environ['HOME'])\n"
        "print(sorted(os.environ))\nprint(os.path.exists('/proc/1'), os.path.exists('/bin/sh'))\n"
    )
    os.environ["SINKSCOPE_SECRET"] = "x"
    try:
        lines = run_python(code).output.splitlines()
    finally:
        del os.environ["SINKSCOPE_SECRET"]
    assert lines[0] == "[] True"
    assert "SECRET" not in lines[1]
    assert lines[2] == "False False"
    assert run_python(f"print(open({__file__!r}).read())").ok is False


def test_home_of_the_user_cannot_be_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    result = run_python(f"print(open({str(secret)!r}).read())")
    assert result.reason == "error"
    assert "hunter2" not in result.output
    assert "FileNotFoundError" in result.output


def test_script_results():
    assert run_python("print('né')").output == "né\n"
    assert run_python("import math, json, re, typing, itertools, collections, heapq, hashlib, datetime, string").ok
    broken = run_python("x = 1\ny = x + 'a'\n")
    assert broken.reason == "error"
    assert "TypeError" in broken.output
    assert run_python("def f(:\n").reason == "error"
    assert run_python("import sys; sys.exit(0)").reason == "exit"
    assert run_python("import os\nif os.fork() == 0: os._exit(0)\nos.wait()").ok


@pytest.mark.parametrize(
    "value",
    [
        "None", "True", "-3", "2 ** 200", "1.5", "float('inf')", "'a\\ud800\\n'", "[1, [2, (3,)]]", "{1: {'a': None}}",
        "{(1, 2), 3}", "frozenset([1])", "b'\\x00'", "1 + 2j", "range(3)", "()", "0.1 + 0.2", "bytearray(b'a')",
    ],
)  # fmt: skip
def test_plain_data_crosses_unchanged(value):
    assert passes(
        f"def f(x):\n    assert x == {value}\n    return x\n",
        f"assert f({value}) == {value} and type(f({value})) is type({value})",
        ["f"],
    )


def test_exceptions_iterators_and_constants_cross():
    code = (
        "import collections\nLIMIT = [1, 2]\ndef bad(x):\n    raise ValueError('no ' + x)\n"
        "def gen(n):\n    yield from range(n)\ndef count(x):\n    return collections.Counter(x)\n"
    )
    tests = (
        "try:\n    bad('x')\nexcept ValueError as error:\n    assert str(error) == 'no x'\nelse:\n    assert False\n"
        "assert list(gen(3)) == [0, 1, 2]\nassert gen(3) != [0, 1, 2]\nassert LIMIT == [1, 2]\n"
        "assert count('aab') == {'a': 2, 'b': 1}\n"
    )
    assert check(code, tests, ["bad", "gen", "LIMIT", "count"]).reason == "ok"
    assert not passes(code, "assert missing(1)", ["missing"])


def test_helper_of_the_setup_is_not_taken_from_the_candidate():
    setup = "def poly(x):\n    return x * x - 4\n"
    tests = "assert abs(poly(root())) < 1e-6"
    assert passes("def root():\n    return 2\n", tests, ["root"], setup=setup)
    assert not passes("def poly(x):\n    return 0\ndef root():\n    return 3\n", tests, ["root"], setup=setup)
    assert not passes("abs = lambda x: 0\ndef root():\n    return 3\n", tests, ["root"], setup=setup)


@pytest.mark.parametrize("body", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)", "x = bytearray(10 << 30)"])
@pytest.mark.parametrize("handler", ["except:", "except BaseException:", "finally:"])
def test_leaving_under_a_bare_except_does_not_pass(body, handler):
    code = f"import os, sys\ndef f(x):\n    {body}\n"
    calls = "for _ in range(3):\n    try:\n        f(1)\n"
    assert not passes(code, f"{calls}    {handler}\n        {'pass' if 'except' in handler else 'break'}\n", ["f"])
    honest = "def f(x):\n    raise ValueError\n"
    assert passes(honest, "try:\n    f(1)\nexcept:\n    pass\n", ["f"])


ELF = Path("/bin/true")


@pytest.mark.skipif(not ELF.is_file(), reason="no program to copy into the sandbox")
@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
def test_a_program_that_is_copied_in_does_not_run(folder):
    code = (
        f"import os, subprocess\npath = {folder!r} + '/own'\nprogram = {ELF.read_bytes()!r}\n"
        "open(path, 'wb').write(program)\nos.chmod(path, 0o755)\n"
        "loaders = [os.path.join(d, f) for d in ('/lib64', '/lib', '/usr/lib') if os.path.isdir(d)\n"
        "           for f in os.listdir(d) if f.startswith('ld-')]\n"
        "for words in [[path], *([one, path] for one in loaders)]:\n"
        "    try:\n        print('ran', subprocess.run(words).returncode)\n"
        "    except OSError as error:\n        print('refused', type(error).__name__)\n"
        "try:\n    os.execv(path, [path])\nexcept OSError:\n    print('refused')\nprint('end')\n"
    )
    result = run_python(code, seconds=20)
    if folder == "/dev/shm":
        assert "FileNotFoundError" in result.output
        return
    assert result.ok and result.output.endswith("end\n"), result
    assert "ran" not in result.output and result.output.count("refused") >= 2


def test_the_folder_of_the_sandbox_runs_no_programs():
    flags = "import os\nprint([bool(os.statvfs(path).f_flag & os.ST_NOEXEC) for path in ('/tmp', '.', '/')])"
    assert run_python(flags).output.strip() == "[True, True, True]"


def test_many_at_once_keep_their_order():
    jobs = [{"code": f"def f(x):\n    return x + {n % 3}\n", "tests": TESTS, "names": ["f"]} for n in range(9)]
    assert [result.ok for result in check_many(jobs, workers=3)] == [n % 3 == 1 for n in range(9)]


def test_refuses_where_the_kernel_gives_no_namespaces():
    # A filter that every child inherits takes `unshare` away, as a locked-down container does.
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom sinkscope import sandbox\n"
        "from sinkscope.sandbox import child as walls\n"
        "from sinkscope.errors import SandboxError\n"
        "walls.call('prctl', 38, 1, 0, 0, 0)\nwalls.filter_calls({'unshare': walls.DENIED['unshare']})\n"
        "try:\n    sandbox.run_python('print(1)')\nexcept SandboxError as error:\n    print('refused:', error)\n"
    )
    source = str(Path(sandbox.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code, source], check=True, capture_output=True, text=True, timeout=60)
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the filter that plays the locked-down kernel knows x86_64 and aarch64 only")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("refused: Generated code needs user and network namespaces"), done
    assert running_sandboxes() == []


FORKS = "import os, time\nfor _ in range(2):\n    if os.fork() == 0: break\ntime.sleep(60)"


def descendants(pid: int) -> list[int]:
    """Every process below this one, as /proc has them now."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    below = list(children.get(pid, []))
    for one in below:  # grows while it is walked
        below += children.get(one, [])
    return below


def test_nothing_outlives_a_killed_process():
    """Outer process, first process, judge, candidate and its own children: all go with whoever asked."""
    code = "from sinkscope import sandbox\nprint('up', flush=True)\n"
    code += f"sandbox.run_python({FORKS!r}, seconds=60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 20
    while len(descendants(process.pid)) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    inside = descendants(process.pid)
    assert len(inside) >= 6
    process.kill()
    process.wait()
    process.stdout.close()
    while any(Path(f"/proc/{one}").exists() for one in inside) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [one for one in inside if Path(f"/proc/{one}").exists()] == []


def test_works_after_a_fork_of_this_process():
    assert passes(GOOD, TESTS, ["f"])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if passes(GOOD, TESTS, ["f"]) and not passes(GOOD, "assert f(1) == 3", ["f"]) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert passes(GOOD, TESTS, ["f"])
