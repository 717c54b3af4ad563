"""Write docs/reference/cli.md and api.md from the code itself: `python docs/generate.py`, or `--check` to compare."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the code: change the docstrings there, then run `make docs`. -->"


def command_line() -> str:
    """Every command with its arguments and options, as the parser knows them."""
    import typer

    from sinkscope.cli.app import build

    group: Any = typer.main.get_command(build())
    parts = ["# Command line", "", NOTE, ""]
    for name, command in sorted(group.commands.items()):
        parts += [f"## sinkscope {name}", "", inspect.cleandoc(command.help or ""), ""]
        parts += ["| argument or option | meaning |", "|---|---|"]
        for one in command.params:
            if getattr(one, "hidden", False):
                continue
            is_argument = one.param_type_name == "argument"
            written = (one.name or "").upper() if is_argument else ", ".join([*one.opts, *one.secondary_opts])
            default = "" if one.default in (None, False) or is_argument else f" (default: {one.default})"
            parts.append(f"| `{written}` | {one.help or ''}{default} |")
        parts.append("")
    return "\n".join(parts)


def programming_interface() -> str:
    """Every public name with its signature and docstring."""
    import sinkscope as sk

    parts = ["# Python", "", NOTE, "", "`import sinkscope as sk`", ""]
    for name in sorted(sk.__all__, key=str.lower):
        found = getattr(sk, name)
        if inspect.isclass(found):
            parts += _class(name, found)
        elif inspect.ismodule(found):
            parts += [f"## sk.{name}", "", _doc(found), ""]
            for inner in getattr(found, "__all__", ()):
                member = getattr(found, inner)
                if inspect.isfunction(member):
                    parts += [f"- `sk.{name}.{inner}{_signature(member)}` — {_first_line(member)}"]
            parts.append("")
        elif callable(found):
            parts += [f"## sk.{name}", "", f"```python\nsk.{name}{_signature(found)}\n```", "", _doc(found), ""]
    return "\n".join(parts)


def _class(name: str, found: type) -> list[str]:
    head = f"sk.{name}{_signature(found)}" if dataclasses.is_dataclass(found) else f"sk.{name}"
    parts = [f"## sk.{name}", "", f"```python\n{head}\n```", "", _doc(found), ""]
    for inner, member in vars(found).items():
        if inner.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain) and plain.__doc__:
            parts.append(f"- `{name}.{inner}{_signature(plain)}` — {_first_line(plain)}")
        elif isinstance(member, property) and member.__doc__:
            parts.append(f"- `{name}.{inner}` — {_first_line(member)}")
    return [*parts, ""]


class _Written:
    """An annotation that prints as it stands in the source."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _signature(found: Any) -> str:
    """Without self, addresses and module paths: the last two differ from run to run."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return "(…)"
    empty = inspect.Parameter.empty
    kept = [
        one if one.annotation is empty else one.replace(annotation=_Written(one.annotation))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    back = signature.return_annotation
    made = signature.replace(parameters=kept, return_annotation=empty if inspect.isclass(found) else _Written(back))
    text = re.sub(r"<factory>|<function [^>]+>|<[\w.]+ object at 0x[0-9a-f]+>", "…", str(made))
    text = text.removesuffix(" -> inspect._empty").removesuffix(" -> _empty")
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Z]\w*)", r"\1", text)


def _doc(found: Any) -> str:
    return inspect.getdoc(found) or ""


def _first_line(found: Any) -> str:
    return _doc(found).split("\n\n")[0].replace("\n", " ")


def pages() -> dict[Path, str]:
    written = {REFERENCE / "cli.md": command_line(), REFERENCE / "api.md": programming_interface()}
    return {path: text.rstrip() + "\n" for path, text in written.items()}


def main() -> None:
    importlib.import_module("sinkscope")
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run make docs: {', '.join(path.name for path in stale)}" if stale else 0)
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
