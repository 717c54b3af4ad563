"""The application: every file in `commands/` adds its own commands, and errors become one sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sinkscope import __version__, io
from sinkscope.cli import commands, process, screen
from sinkscope.cli.groups import COMMANDS, with_groups
from sinkscope.cli.options import spelled
from sinkscope.errors import SinkscopeError

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def build() -> typer.Typer:
    """Every function in `commands/` under `@command()` is a command: nothing else has to be changed to add one."""
    app = typer.Typer(
        name="sinkscope",
        help="Trace, mask and measure attention sinks in diffusion language models.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": spelled},
    )

    @app.callback()
    def _root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    for found in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{found.name}")
    for function, words in sorted(COMMANDS, key=lambda one: one[0].__name__):
        app.command(**words)(with_groups(function))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: one command in a process that was made ready for it."""
    process.prepare()
    if not process.working_folder_exists():
        screen.say_error("Expected a working folder that exists, and this one was deleted; change to another one.")
        sys.exit(BAD_INPUT)
    with process.ended_by_signals():
        code = process.finish(run(arguments))
        if process.signal_received() is not None:
            os._exit(code)  # at once: everything is closed, and torch takes its time to go
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; a mistake of the user's is one sentence, a bug of ours a traceback."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command: Any = typer.main.get_command(build())
        code = command.main(args=asked, prog_name="sinkscope", standalone_mode=False)
    except SinkscopeError as error:
        screen.say_error(str(error))
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        return PIPE_CLOSED
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise
        where = "" if isinstance(error, MemoryError) or error.filename is None else f" {error.filename!r}"
        told = f"Out of memory ({str(error) or 'the allocation failed'}); use a smaller model, batch or length."
        if isinstance(error, OSError):
            told = f"A file or folder{where} could not be read or written ({io.reason(error)}); check the path and permissions."
        screen.say_error(told)
        return BAD_INPUT
    except Exception as error:
        # typer carries its own copy of click in some versions, so its errors are known by what they can do.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
            screen.say_error(f"{message}; see {context.command_path} --help." if context is not None else f"{message}.")
        return int(error.exit_code)
    # newer typer turns Ctrl-C into this code without a word
    return _interrupted() if code == INTERRUPTED else code if isinstance(code, int) else 0


def _interrupted() -> int:
    number = process.signal_received()
    screen.say_error("Interrupted." if number is None else "Ended by a signal.")
    return INTERRUPTED if number is None else 128 + number


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit
