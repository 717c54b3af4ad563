"""The application: commands in the order of use, and errors as one sentence and an exit code.

The process around a command: streams may be full or ASCII only, signals end it, other libraries warn.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer

from sinkscope import __version__
from sinkscope.cli.options import canonical_option
from sinkscope.cli.screen import say_error
from sinkscope.errors import SinkscopeError, printable
from sinkscope.files import describe_error
from sinkscope.registry import import_file

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
ENDING = (signal.SIGTERM, signal.SIGHUP)
LOOK, MEASURE, PREPARE = "Look", "Measure", "Prepare"
MODULES = ("generate", "traces", "study", "benchmarks", "models")  # of this folder, in the order of the help
# An option of every command: runs, traces and their tables name what a file of the user's own registers.
IMPORT = inspect.Parameter(
    "imported",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None, typer.Option("--import", help="FILE.py that registers tasks, rules, … of your own; repeated.")
    ],
)
received: list[int] = []  # the signal that ended the command
app = typer.Typer(
    name="sinkscope",
    help="Trace, mask and measure attention sinks in diffusion language models.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": canonical_option},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def command(panel: str, example: str, called: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of that panel of the help; example: a line to begin with; called: by default as the function.

    A parameter whose type is a dataclass becomes one option per field: typer itself knows single options only.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
        defaults: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            grouped = name in groups
            hints |= get_type_hints(groups[name], include_extras=True) if grouped else {}
            own = {one.name: one.default for one in fields(groups[name])} if grouped else {name: parameter.default}
            defaults |= own

        @functools.wraps(function)
        def call(**given: Any) -> None:
            for file in given.pop(IMPORT.name) or ():
                import_file(file)
            for name, group in groups.items():
                given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
            function(**given)

        call.__annotations__ = {**{name: hints[name] for name in defaults}, IMPORT.name: IMPORT.annotation}
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
                for name, default in defaults.items()
            ]
            + [IMPORT]
        )
        first_line = (function.__doc__ or "").partition("\n")[0]
        app.command(
            called or function.__name__, rich_help_panel=panel, short_help=f"{first_line}\n[dim]{example}[/dim]",
            epilog=f"Example: {example}",
        )(call)  # fmt: skip
        return function

    return register


def build() -> typer.Typer:
    """The application with all commands."""
    for module in MODULES:
        importlib.import_module(f"sinkscope.cli.{module}")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: one command in a process that was made ready for it."""
    prepare()
    catch_signals()
    code = finish(run(arguments))
    if received:
        os._exit(code)  # at once: everything is closed, and torch takes its time to go
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; a mistake of the user's is one sentence, a bug of ours a traceback."""
    code = BAD_INPUT
    try:
        need_working_folder()
        program: Any = typer.main.get_command(build())
        done = program.main(args=arguments, prog_name="sinkscope", standalone_mode=False)
        # newer typer turns Ctrl-C into this code without a word
        return _interrupted() if done == INTERRUPTED else done if isinstance(done, int) else 0
    except SinkscopeError as error:
        message = str(error)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        return PIPE_CLOSED
    except MemoryError as error:
        message = f"Out of memory ({error}); use a smaller model, batch or length."
    except OSError as error:
        if error.errno is None:
            raise
        where = "" if error.filename is None else f" {error.filename!r}"
        message = f"A file or folder{where} could not be read or written ({describe_error(error)}); check the path and permissions."
    except Exception as error:
        # typer carries its own copy of click in some versions, so its errors are known by what they can do.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        code = int(error.exit_code)
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return code
        message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        message += f"; see {context.command_path} --help." if context is not None else "."
    say_error(message)
    return code


def _interrupted() -> int:
    say_error("Ended by a signal." if received else "Interrupted.")
    return 128 + received[0] if received else INTERRUPTED


# ---- the process around a command


def prepare() -> None:
    """Once, before the command: whatever is written can be written, and nothing that is written steers the terminal."""
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
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed before the program began
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
