"""Files from elsewhere, read within bounds: a plain file, not too large, in UTF-8, and JSON that is an object."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError

MB = 1 << 20


def read_bytes(path: Path, most: int, error: type[SinkscopeError]) -> bytes:
    """A whole file; a pipe, socket, device, folder or loop of links is told before anything waits for it."""
    try:
        # Not to wait for whoever writes into a pipe: what was opened is looked at, so that nobody can swap it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            kept = os.fstat(number)
            if not stat.S_ISREG(kept.st_mode):
                raise error(f"Expected a plain file, and {short(path)} is none; name another.")
            data = file.read(most + 1)
    except OSError as problem:
        raise error(f"{short(path)} cannot be read ({problem.strerror}); check the path and permissions.") from None
    except ValueError:  # a NUL in the name
        raise error(f"Expected the name of a file, got {short(repr(str(path)))}; name another.") from None
    if len(data) > most:
        raise error(f"{short(path)} has more than {most // MB} MB; is it another file?")
    return data


def read_text(path: Path, most: int, error: type[SinkscopeError]) -> str:
    try:
        return read_bytes(path, most, error).decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{short(path)} is not text in UTF-8; name another.") from None


def read_object(
    path: Path, most: int, error: type[SinkscopeError], again: str = "remove it, and make it again"
) -> dict[str, Any]:
    """The JSON object in a file; again: what to do about one that is damaged."""
    try:
        found, why = json.loads(read_text(path, most, error)), "no JSON object"
    except (ValueError, RecursionError) as problem:  # no JSON, a number of 5,000 digits, depth
        found, why = None, reason(problem)
    if not isinstance(found, dict):
        raise error(f"{short(path)} is damaged; {again} ({why}).")
    return found


def reason(error: BaseException) -> str:
    """Why, in a few printable words."""
    if isinstance(error, OSError) and error.strerror:
        return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
    if isinstance(error, RecursionError):
        return "values stand too deep inside each other"
    if isinstance(error, MemoryError):
        return "it would need more memory than there is"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return short(f"{type(error).__name__}: {' '.join(lines[:2])}".removesuffix(": ")).rstrip(".")


def plain(text: str) -> str:
    """Text from elsewhere for a line of its own: nothing in it steers a terminal."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def short(value: object, most: int = 240) -> str:
    """A path, a name or a value in a sentence: one line, printable, not too long."""
    line = plain(str(value))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-most // 2 :]}"


@contextmanager
def damaged(what: str, error: type[SinkscopeError]) -> Iterator[None]:
    """For lines that take a file from elsewhere apart: values of another kind than they expect are one sentence."""
    try:
        yield
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as problem:
        raise error(f"{what} is damaged ({reason(problem)}); make it again.") from problem
