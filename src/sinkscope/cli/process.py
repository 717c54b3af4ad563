"""The process around a command: streams that may be closed, full or ASCII only, signals, and other libraries' warnings."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from contextlib import suppress
from types import FrameType

from sinkscope.cli.screen import say_error
from sinkscope.errors import SinkscopeError, printable

ENDING = (signal.SIGTERM, signal.SIGHUP)
received: list[int] = []  # the signal that ended the command


def prepare() -> None:
    """Once, before the command: whatever is written can be written, and nothing that is written steers the terminal."""
    # A closed descriptor would be given to the next file that is opened, and output would end up in it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows ASCII only, or a file name that is no text: a ? instead of a traceback.
        with suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    warnings.showwarning = lambda message, *_: say_error(f"warning: {message}")
    logging.setLogRecordFactory(_PlainRecord)
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    log = logging.getLogger("sinkscope")
    log.addHandler(lines)
    wanted = os.environ.get("SINKSCOPE_LOG", "warning").upper()
    log.setLevel(logging.getLevelNamesMapping().get(wanted, logging.WARNING))


def catch_signals() -> None:
    """SIGTERM and SIGHUP end a command as Ctrl-C does; under nohup the second stays ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def need_working_folder() -> None:
    """Libraries abort the process, in their own words, where it does not exist."""
    try:
        os.getcwd()
    except OSError:
        raise SinkscopeError(
            "Expected a working folder that exists, and this one was deleted; change to another one."
        ) from None


class _PlainRecord(logging.LogRecord):
    """A log record of any library, without control characters that came from a file's name or a model's text."""

    def getMessage(self) -> str:  # noqa: N802
        return printable(super().getMessage())


def _interrupt(number: int, _: FrameType | None) -> None:
    received.append(number)
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)  # what is being cleaned up is not interrupted again
    raise KeyboardInterrupt


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
