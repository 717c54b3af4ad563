"""Streams that are closed, full or know ASCII only, folders that are gone, signals: one sentence and an exit code.

These run the program itself. Most end before torch is imported, so that they are quick.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from sinkscope.cli import main; main()"]


def shell(words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run `words` in a shell where $S is the program."""
    program = " ".join(f"'{word}'" for word in PROGRAM)
    return subprocess.run(
        ["bash", "-c", words.replace("$S", program)],
        check=False, cwd=cwd, env={**os.environ, **environment}, capture_output=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip


def one_sentence(done: subprocess.CompletedProcess[bytes], code: int = 2) -> str:
    assert done.returncode == code, done
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("sinkscope: ") and line.isprintable(), done
    return line


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_letters(encoding: str, tmp_path: Path) -> None:
    done = shell("$S --help", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"Usage" in done.stdout and done.stderr == b""
    said = one_sentence(shell("$S generate tiny-llada ' '", tmp_path, PYTHONIOENCODING=encoding))
    assert "empty" in said


def test_the_c_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert shell("$S --help", tmp_path, **plain).returncode == 0
    assert "whole numbers" in one_sentence(shell("$S table1 --models x --ks ²", tmp_path, **plain))


@pytest.mark.parametrize("command", ["--help", "--version", "study --help"])
def test_a_full_disk(command: str, tmp_path: Path) -> None:
    assert "full" in one_sentence(shell(f"$S {command} > /dev/full", tmp_path)).lower()


def test_closed_streams(tmp_path: Path) -> None:
    assert shell("$S --version >&-", tmp_path).returncode == 0
    assert shell("$S --version 2>&-", tmp_path).stdout.strip()
    assert "empty" in one_sentence(shell("$S generate tiny-llada - <&-", tmp_path))
    assert shell("$S generate tiny-llada ' ' <&- >&- 2>&-", tmp_path).returncode == 2


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    done = shell("$S --help | head -c 1; echo; echo ${PIPESTATUS[0]}", tmp_path)
    assert done.stderr == b"" and done.stdout.split()[-1] in (b"0", b"141")


@pytest.mark.parametrize(
    "words",
    [
        r"printf '\xff\xfe' | $S generate tiny-llada -",
        r"$S generate tiny-llada $'\xff\xfe'",
        r"$S trace tiny-llada $'caf\xe9'",
        r"$S trace tiny-llada $'caf\xe9' -o $'\e[2J'",
    ],
)
def test_bytes_that_are_no_text(words: str, tmp_path: Path) -> None:
    assert "UTF-8" in one_sentence(shell(words, tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        r"$S $'\e[31mx'",
        r"$S models $'--\e[31m'",
        r"$S study $'\e[2Jx'",
        r"$S sinks $'\e]0;x\a.trace'",
        r"$S trace tiny-llada hi -o $'/proc/\e[2J/x'",
        r"$S table1 --models x --ks $'1\r2'",
        r"$S eval --model x --task y --set $'\x9b=1' --pass-at $'\u202e'",
    ],
)
def test_what_the_user_wrote_cannot_steer_the_terminal(words: str, tmp_path: Path) -> None:
    done = shell(words, tmp_path)
    if " -o " not in words:
        one_sentence(done)
    else:  # that a folder is made is said before it fails
        lines = done.stderr.decode().splitlines()
        assert done.returncode == 2 and 1 <= len(lines) <= 2 and all(line.isprintable() for line in lines), done


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    done = shell("mkdir x && cd x && rmdir ../x && $S study quick", tmp_path)
    assert "deleted" in one_sentence(done)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert "folder" in one_sentence(shell("$S trace tiny-llada hi -o /", tmp_path))
    assert "folder" in one_sentence(shell("$S trace tiny-llada hi -o .", tmp_path))
    assert "/dev/null/x" in one_sentence(shell("$S trace tiny-llada hi -o /dev/null/x", tmp_path))


def test_warnings_of_other_libraries_are_plain_lines(tmp_path: Path) -> None:
    code = (
        "import logging, warnings\nfrom sinkscope.cli.app import prepare\nprepare()\n"
        "warnings.warn('Glyph 27 (\\x1b) missing from current font')\n"
        "logging.getLogger('matplotlib').warning('findfont: \\x1b[31m %s', '\\x9b')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and all(line.isprintable() for line in lines)
    assert lines[0].startswith("sinkscope: warning: Glyph 27")


def _hear_signals() -> None:
    """A child of nohup or of a background job inherits that it ignores some."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_like_ctrl_c(number: signal.Signals, tmp_path: Path) -> None:
    """While it waits for a prompt; studies with workers have a test of their own."""
    child = subprocess.Popen(
        [*PROGRAM, "generate", "tiny-llada", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=_hear_signals,  # noqa: PLW1509
    )  # fmt: skip
    _until_it_reads(child)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert said.count("\n") == 1 and said.startswith("sinkscope: ")


def test_nohup_stays(tmp_path: Path) -> None:
    child = subprocess.Popen(
        ["nohup", *PROGRAM, "generate", "tiny-llada", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    _until_it_reads(child)
    child.send_signal(signal.SIGHUP)
    _, said = child.communicate(" \n", timeout=60)
    assert child.returncode == 2 and "empty" in said


def _until_it_reads(child: subprocess.Popen[str]) -> None:
    """Until the process sleeps in a read of its standard input."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            words = Path(f"/proc/{child.pid}/syscall").read_text().split()
        except OSError:
            time.sleep(2)  # no such file for this user: give it time instead
            return
        if words[:2] == ["0", "0x0"]:
            return
    raise AssertionError("it never asked for its input")
