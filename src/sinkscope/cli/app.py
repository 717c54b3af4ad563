"""The application: every file in `commands/` adds its own commands, and errors become one sentence and an exit code."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sinkscope import __version__
from sinkscope.cli import commands, screen
from sinkscope.errors import SinkscopeError

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def build() -> typer.Typer:
    """A file in `commands/` with a function `register(app)` is a command: nothing else has to be changed to add one."""
    app = typer.Typer(
        name="sinkscope",
        help="Look at, move and remove attention sinks in diffusion language models.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    for found in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{found.name}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. What a user can mend is one sentence, what we must mend is a traceback."""
    try:
        command: Any = typer.main.get_command(build())
        code = command.main(args=arguments, prog_name="sinkscope", standalone_mode=False)
    except SinkscopeError as error:
        screen.say_error(str(error))
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        screen.say_error("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return PIPE_CLOSED
    except Exception as error:
        # typer carries its own copy of click in some versions, so its errors are known by what they can do.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        return int(error.exit_code)
    if code == INTERRUPTED:  # newer typer turns Ctrl-C into this code without a word
        screen.say_error("Interrupted.")
    return code if isinstance(code, int) else 0


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit
