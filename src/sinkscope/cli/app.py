"""The application: every file in `commands/` adds its own commands, and errors become one sentence and an exit code."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from sinkscope import __version__, io
from sinkscope.cli import process, screen
from sinkscope.cli.options import spelled
from sinkscope.errors import SinkscopeError

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
app = typer.Typer(
    name="sinkscope",
    help="Trace, mask and measure attention sinks in diffusion language models.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": spelled},
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


def command(**words: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of `commands/` a command; words: typer's, such as another name than the function's.

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
            for name, group in groups.items():
                given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
            function(**given)

        call.__annotations__ = {name: hints[name] for name in defaults}
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
                for name, default in defaults.items()
            ]
        )
        app.command(**words)(call)
        return function

    return register


def build() -> typer.Typer:
    """Every function in `commands/` under `@command()` is a command: nothing else has to be changed to add one."""
    from sinkscope.cli import commands

    for found in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{found.name}")
    app.registered_commands.sort(key=lambda one: one.callback.__name__ if one.callback else "")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: one command in a process that was made ready for it."""
    process.prepare()
    process.catch_signals()
    code = process.finish(run(arguments))
    if process.received:
        os._exit(code)  # at once: everything is closed, and torch takes its time to go
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; a mistake of the user's is one sentence, a bug of ours a traceback."""
    code = BAD_INPUT
    try:
        process.need_working_folder()
        program: Any = typer.main.get_command(build())
        done = program.main(args=arguments, prog_name="sinkscope", standalone_mode=False)
        # newer typer turns Ctrl-C into this code without a word
        return _interrupted() if done == INTERRUPTED else done if isinstance(done, int) else 0
    except SinkscopeError as error:
        told = str(error)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        return PIPE_CLOSED
    except MemoryError as error:
        told = f"Out of memory ({error}); use a smaller model, batch or length."
    except OSError as error:
        if error.errno is None:
            raise
        where = "" if error.filename is None else f" {error.filename!r}"
        told = f"A file or folder{where} could not be read or written ({io.reason(error)}); check the path and permissions."
    except Exception as error:
        # typer carries its own copy of click in some versions, so its errors are known by what they can do.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        code = int(error.exit_code)
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return code
        told, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        told += f"; see {context.command_path} --help." if context is not None else "."
    screen.say_error(told)
    return code


def _interrupted() -> int:
    screen.say_error("Ended by a signal." if process.received else "Interrupted.")
    return 128 + process.received[0] if process.received else INTERRUPTED
