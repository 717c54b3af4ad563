"""Arguments and options that several commands take: one spelling each, one help text each."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.aliases import renamed
from sinkscope.errors import PromptError, SinkscopeError, TaskError

# What the shell offers while a word is typed. It is read from folders: importing the models or the studies takes seconds.
PACKAGE = Path(__file__).parents[1]


def model_names(incomplete: str) -> list[str]:
    """The models inside the package, and SmolLM2; of names with commas between, the last one is completed."""
    before, comma, begun = incomplete.rpartition(",")
    names = [*(path.name for path in (PACKAGE / "zoo").iterdir() if path.is_dir()), "smollm2-135m"]
    return sorted(before + comma + name for name in names if name.startswith(begun) and name[0].isalpha())


def study_names(incomplete: str) -> list[str]:
    """The studies that ship."""
    return _shipped("study/studies", incomplete)


def protocol_names(incomplete: str) -> list[str]:
    """The protocols that ship."""
    return _shipped("evals/protocols", incomplete)


def _shipped(folder: str, incomplete: str) -> list[str]:
    return sorted(path.stem for path in (PACKAGE / folder).glob("*.yaml") if path.stem.startswith(incomplete))


MOST = 2**32 - 1  # of a seed: what every library takes
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ModelArgument = Annotated[
    str, typer.Argument(help="Zoo name, folder, GGUF file or Hub id.", metavar="MODEL", autocompletion=model_names)
]
PromptArgument = Annotated[
    str, typer.Argument(help="Text; - reads stdin; @FILE.json: chat messages or token ids.", metavar="PROMPT")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--models", "--model", "-m", help="Models; repeated, or with commas.", autocompletion=model_names),
]
ShardOption = Annotated[
    str | None, typer.Option("--shard", help="Only this part of the work, such as 3/16; join them with merge.")
]
TaskOption = Annotated[list[str] | None, typer.Option("--task", "-t", help="Tasks; repeated, or with commas.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 (bf16) or float16 (fp16); auto: as stored.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
Problems = Annotated[int | None, typer.Option("--problems", "-n", help="Problems per task.", min=1)]
BatchSize = Annotated[int, typer.Option(help="Requests per batch.", min=1)]
Base = Annotated[str | None, typer.Option("--base", help="Where the base of a PEFT adapter is, if not where it says.")]
ProtocolOption = Annotated[
    str | None, typer.Option("--protocol", help="How benchmarks are asked; by default that of the checkpoint, else harness.",
                             autocompletion=protocol_names),
]  # fmt: skip
# What transformers, the models' authors and lm-evaluation-harness call our options, and plurals: understood, not shown.
ALIASES = {"tasks": "task", "limit": "problems", "L": "n", "num-fewshot": "fewshot", "output-path": "out",
           "apply-chat-template": "chat",
           **{theirs.replace("_", "-"): ours.replace("_", "-") for theirs, ours in renamed().items()}}  # fmt: skip


def spelled(name: str) -> str:
    """The one spelling of an option's name: --batch_size is --batch-size, --limit is --problems."""
    plain = name.replace("_", "-")
    return ALIASES.get(plain, plain)


def listed(given: Sequence[str] | None, what: str, example: str) -> list[str] | None:
    """Names from an option that may be repeated, each with commas; None where it was not given."""
    if given is None or not len(given):
        return None
    found = [[part.strip() for part in one.split(",") if part.strip()] for one in given]
    for one, names in zip(given, found, strict=True):
        if not names:
            raise TaskError(f"Expected {what}, such as {example}, got {one!r}; name at least one.")
    return list(dict.fromkeys(name for names in found for name in names))


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts):
        raise TaskError(f"Expected whole numbers of at least 1 with commas between, such as 1,10, got {text!r}.")
    return tuple(int(part) for part in parts)


def settings_of(given: Sequence[str] | None) -> dict[str, Any] | None:
    """key=value words as decode settings; true, false, null and numbers are read as such, all else is text."""
    if not given:
        return None
    if wrong := [word for word in given if not word.partition("=")[0].strip() or "=" not in word]:
        raise TaskError(f"Expected a setting as key=value, such as length=256, got {wrong[0]!r}.")
    return {key.strip(): _value(value.strip()) for key, value in (word.split("=", 1) for word in given)}


def _value(text: str) -> Any:
    plain = {"true": True, "false": False, "null": None, "none": None, "": None}
    if text.lower() in plain:
        return plain[text.lower()]
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        return float(text)
    return text


def read_prompt(asked: str) -> str | list[Any]:
    """The prompt of a command line: text, - for stdin, or @FILE.json with chat messages or token ids.

    Bytes that are no text are refused, and so is no text at all.
    """
    if asked.startswith("@") and asked.endswith(".json"):
        return _json_prompt(Path(asked[1:]))
    if asked == "-":
        try:
            asked = sys.stdin.read()
        except UnicodeDecodeError:
            asked = "\udcff"
    if not asked.isprintable() and any("\ud800" <= sign <= "\udfff" for sign in asked):
        raise PromptError("Expected a prompt as UTF-8 text, got bytes that are none; convert it first.")
    if not asked.strip():
        raise PromptError("Expected a prompt with some text, got an empty one; give the model something to answer.")
    return asked


def _json_prompt(path: Path) -> list[Any]:
    from sinkscope.io.reading import MB, read_text, short
    from sinkscope.models.base import is_ids, is_messages

    try:
        found = json.loads(read_text(path, 16 * MB, PromptError))
    except (ValueError, RecursionError):
        found = None
    if not is_messages(found) and not is_ids(found):
        raise PromptError(
            'Expected chat messages ([{"role": "user", "content": "…"}, …]) or token ids ([1, 2, …]) as JSON '
            f"in {short(str(path))}; fix the file, or type the prompt as text."
        )
    return list(found)


def refuse_together(
    error: type[SinkscopeError], what: str, given: Mapping[str, object], instead: str = "leave it out"
) -> None:
    """Options that would have no effect are refused, never ignored."""
    if used := [name for name, value in given.items() if value not in (None, False)]:
        raise error(f"{', '.join(used)} would have no effect {what}; {instead}.")


def writable_file(path: Path | None, error: type[SinkscopeError]) -> None:
    """Say before the work, and not after it, that the result could not be written there; None is not written."""
    if path is None:
        return
    if path.is_dir() or not path.name:
        raise error(f"Expected a file to write to, and {path} is a folder; name a file in it.")
    parent = next((one for one in path.absolute().parents if one.exists()), None)
    if parent is None or not parent.is_dir():
        raise error(f"Expected a file to write to, and {path} cannot be one, since {parent} is no folder.")
    if not os.access(parent, os.W_OK):
        raise error(f"Expected a folder that can be written to, and {parent} cannot; name a file elsewhere with --out.")
