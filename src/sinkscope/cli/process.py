"""The process around a command: streams that may be closed, full or ASCII only, signals, and other libraries' warnings."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from sinkscope.cli.screen import say, say_error
from sinkscope.errors import printable

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_received: list[int] = []


def prepare() -> None:
    """Once, before the command: whatever is written can be written, and nothing that is written steers the terminal."""
    _occupy_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows ASCII only, or a file name that is no text: a ? instead of a traceback.
        with suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    warnings.showwarning = lambda message, *_: say_error(f"warning: {message}")
    logging.setLogRecordFactory(_PlainRecord)
    log = logging.getLogger("sinkscope")
    log.addHandler(_Lines())
    wanted = os.environ.get("SINKSCOPE_LOG", "warning").upper()
    log.setLevel(logging.getLevelNamesMapping().get(wanted, logging.WARNING))


def working_folder_exists() -> bool:
    """Libraries abort the process, in their own words, where it does not."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _occupy_closed_streams() -> None:
    """A closed descriptor 0, 1 or 2 would be given to the next file that is opened, and output would end up in it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


class _PlainRecord(logging.LogRecord):
    """A log record of any library, without control characters that came from a file's name or a model's text."""

    def getMessage(self) -> str:  # noqa: N802
        return printable(super().getMessage())


class _Lines(logging.Handler):
    """What the library logs, a line each on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.name}: {record.getMessage()}")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does; under nohup the second stays ignored."""
    before: dict[int, Any] = {}
    for number in ENDING:
        with suppress(ValueError):  # not the main thread
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)  # what is being cleaned up is not interrupted again
    raise KeyboardInterrupt


def signal_received() -> int | None:
    """The signal that ended the command, if it was one of ours."""
    return _received[0] if _received else None


def finish(code: int) -> int:
    """Write out what is still in the buffers; a full disk is one sentence, too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            # Python would try again at its end, and say so in its own words.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if code == 0 and not isinstance(error, BrokenPipeError):
                say_error(f"The output could not be written ({error}); give it a place that can hold it.")
                code = 2
    return code
