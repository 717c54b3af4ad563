"""Write the reference and the picture of the packages from the code itself: `python docs/generate.py`, or `--check`."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for those that run this file by its path
import claims
import interface
import run_tables

REFERENCE = Path(__file__).parent / "reference"
ARCHITECTURE = Path(__file__).parents[1] / "CONTRIBUTING.md"
PACKAGES = ("<!-- packages: begin -->", "<!-- packages: end -->")
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


def architecture() -> str:
    """The page on the order of the packages, with the picture and the table between its two marks made anew."""
    before, _, rest = ARCHITECTURE.read_text().partition(PACKAGES[0])
    _, _, after = rest.partition(PACKAGES[1])
    return f"{before}{PACKAGES[0]}\n{NOTE}\n\n{packages()}\n{PACKAGES[1]}{after}"


def packages() -> str:
    """The packages as a mermaid picture and a table: who imports whom, imports inside functions included.

    Of the arrows along the order only those are drawn that no longer way replaces; those against it are dashed.
    """
    import grimp

    order = _order()
    graph = grimp.build_graph("sinkscope", include_external_packages=False, cache_dir=None)
    imports: dict[str, dict[str, set[str]]] = {name: {} for name in order}
    for module in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            left, right = _package(module), _package(imported)
            if left in imports and right in imports and left != right:
                imports[left].setdefault(right, set()).add(module.removeprefix("sinkscope."))
    along = {name: {one for one in found if order[one] < order[name]} for name, found in imports.items()}
    lines = ["```mermaid", "flowchart LR"]
    for name in sorted(order, key=lambda one: (order[one], one)):
        longer = {far for near in along[name] for far in _reached(near, along)}
        lines += [f"  {one} --> {name}" for one in sorted(along[name] - longer)]
        lines += [
            f"  {one} -. {', '.join(sorted(by))} .-> {name}"
            for one, by in imports[name].items()
            if order[one] >= order[name]
        ]
    lines += ["```", "", "| package | what it is | imports |", "|---|---|---|"]
    for name in sorted(order, key=lambda one: (order[one], one)):
        about = (inspect.getdoc(importlib.import_module(f"sinkscope.{name}")) or "").split("\n")[0]
        lines.append(f"| `{name}` | {about} | {', '.join(sorted(imports[name])) or '—'} |")
    return "\n".join(lines)


def _order() -> dict[str, int]:
    """Package → its place in the order that import-linter holds; those that share a place do not import each other."""
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "order")
    rows = [[name.strip(" ()") for name in row.split("|")] for row in reversed(contract["layers"])]
    return {name: place for place, row in enumerate(rows) for name in row if _source(f"sinkscope.{name}") is not None}


def _package(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def _reached(name: str, along: dict[str, set[str]]) -> set[str]:
    return along[name] | {far for near in along[name] for far in _reached(near, along)}


def _source(module: str) -> Any:
    """The file of a module, None where there is none."""
    found = Path(__file__).parents[1] / "src" / Path(*module.split("."))
    both = (found.with_suffix(".py"), found / "__init__.py")
    return next((path for path in both if path.is_file()), None)


def names_of_others() -> str:
    """What transformers and the models' authors call our settings, from the table that accepts and refuses them."""
    from sinkscope.validation import DTYPES, NAMES

    parts = ["# Names from transformers and from the models' authors", "", NOTE, ""]
    parts += [
        "These names are understood wherever ours are: by `model.generate`, `sk.trace`, `sk.activations`, `sk.Decode.llada(…)` "
        "and the other samplers, `sk.load`, `--set`, and as options of the command line (`--gen-length 64`).",
        "",
        "| theirs | ours |",
        "|---|---|",
    ]
    parts += [f"| `{theirs}` | `{ours}` |" for theirs, ours in NAMES.items()]
    parts += ["", '`remasking="low_confidence"` is `confidence="probability"`.', ""]
    shorts = ", ".join(f"`{short}` is {name}" for short, name in DTYPES.items())
    parts += [f"Names of a dtype: {shorts}, `auto` is as stored.", "", "## Prompts", ""]
    parts += [
        "`model.generate`, `model.encode`, `sk.trace`, `sk.lens` and `sk.activations` take a prompt as text, as chat messages "
    ]
    parts += [
        '(`[{"role": "user", "content": "…"}]`, written with the chat template) or as token ids, and a list of prompts.'
    ]
    parts += [
        "On the command line, `sinkscope generate MODEL @FILE.json` and `sinkscope trace MODEL @FILE.json` read one prompt: "
        "messages or ids as JSON."
    ]
    return "\n".join(parts)


def results_schema() -> str:
    """The JSON schema of results.json, from the rows that it is made of."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False)


def json_schema() -> dict[str, Any]:
    """The JSON schema of results.json; fields that are not named are allowed, since later versions may add some."""
    from pydantic import TypeAdapter

    from sinkscope.results.rows import Results

    made = TypeAdapter(Results).json_schema()
    made["required"] = ["schema", *(name for name in made["required"] if name != "schema")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "results.json"}


# Every environment variable that the package, its tests or its tools read: name → (who reads it, what it does).
VARIABLES = {
    "SINKSCOPE_LOG": (
        "the command line",
        "What the library logs and the command prints on stderr: `debug`, `info`, `warning` (default) or `error`. Python "
        "programs set the logger `sinkscope` up themselves; it prints nothing by default.",
    ),
    "SINKSCOPE_DATA": ("tests", "Folder with GSM8K, HumanEval and tokenizers, for the tests that need them."),
    "SINKSCOPE_GOLDEN": ("tests", "Further folders with golden data, with `:` between."),
    "SINKSCOPE_CHROMIUM": ("tests, benchmarks, `docs/images/shoot.py`", "The browser, where it is not on the PATH."),
    "SINKSCOPE_FUZZ": ("tests", "Cases per fuzzer; `make fuzz` takes 1,000."),
    "RAY_ADDRESS": ("`--engine ray`", "The cluster, where `--address` is not given. Of Ray."),
    "TRITON_INTERPRET": ('`backend="triton"`', "1 runs the kernel on a CPU, slowly, for tests. Of Triton."),
    "HF_HOME, HF_HUB_OFFLINE, HF_TOKEN": (
        "loading by Hub id",
        "Where downloads are kept, whether to stay offline, and the token of a gated model. Of huggingface_hub.",
    ),
    "OMP_NUM_THREADS, MKL_NUM_THREADS, TOKENIZERS_PARALLELISM": (
        "workers of a study",
        "Set to 1, 1 and false in every worker, whatever they were: with one thread, any number of workers gives the same bits.",
    ),
}


def environment() -> str:
    """The environment variables, as one table."""
    parts = ["# Environment variables", "", NOTE, "", "| variable | read by | what it does |", "|---|---|---|"]
    for names, (reader, meaning) in VARIABLES.items():
        parts.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {reader} | {meaning} |")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    written = {
        REFERENCE / "environment.md": environment(),
        REFERENCE / "cli.md": command_line(),
        REFERENCE / "api.md": interface.page(NOTE),
        REFERENCE / "words.md": names_of_others(),
        REFERENCE / "results.schema.json": results_schema(),
        ARCHITECTURE: architecture(),
        claims.PAGE: claims.page(),
        claims.ANSWER: claims.answer(),
        **run_tables.pages(),
    }
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
