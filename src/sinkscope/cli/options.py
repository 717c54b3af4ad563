"""Arguments and options that several commands take: one spelling each, one help text each, some of them as groups."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from sinkscope.cli.screen import say_line, waiting
from sinkscope.errors import DecodeError, PromptError, SinkscopeError, StudyError, TaskError
from sinkscope.validation import NAMES

if TYPE_CHECKING:
    from sinkscope.models import Model
    from sinkscope.study.engine import Ray

# What transformers, the models' authors and lm-evaluation-harness call our options, and plurals: understood, not shown.
ALIASES = {"tasks": "task", "limit": "problems", "L": "n", "num-fewshot": "fewshot", "output-path": "out",
           "apply-chat-template": "chat",
           **{theirs.replace("_", "-"): ours.replace("_", "-") for theirs, ours in NAMES.items()}}  # fmt: skip


def canonical_option(name: str) -> str:
    """The one spelling of an option's name: --batch_size is --batch-size, --limit is --problems."""
    plain = name.replace("_", "-")
    return ALIASES.get(plain, plain)


# ---- what is given, read and checked


def writable(path: Path | None) -> Path | None:
    """Say before the work, and not after it, that the result could not be written there."""
    if path is None:
        return None
    parent = next((one for one in path.absolute().parents if one.exists()), path)
    if path.is_dir() or not path.name or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise SinkscopeError(f"Expected a file to write to, got {path}; name one in a folder that can be written to.")
    if not path.absolute().parent.exists():
        say_line(f"the folder {path.parent} does not exist and will be made for {path.name}")
    return path


def refuse(error: type[SinkscopeError], what: str, instead: str = "leave it out", /, **given: object) -> None:
    """Options that would have no effect are refused, never ignored."""
    if used := [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False)]:
        raise error(f"{', '.join(used)} would have no effect {what}; {instead}.")


def listed(given: Sequence[str] | None, what: str, example: str) -> list[str] | None:
    """Names from an option that may be repeated, each with commas; None where it was not given."""
    if not given:
        return None
    found = [[part.strip() for part in one.split(",") if part.strip()] for one in given]
    if not all(found):
        raise TaskError(f"Expected {what}, such as {example}, got {given[found.index([])]!r}; name at least one.")
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
    try:
        return json.loads(text.lower())
    except (ValueError, RecursionError):
        return None if text.lower() in ("none", "") else text


def read_prompt(asked: str) -> str | list[Any]:
    """The prompt of a command line: text, - for stdin, or @FILE.json with chat messages or token ids.

    Bytes that are no text are refused, and so is no text at all.
    """
    if asked.startswith("@") and asked.endswith(".json"):
        return _json_prompt(Path(asked[1:]))
    try:
        asked = asked if asked != "-" else "" if sys.stdin is None else sys.stdin.read()
        asked.encode()
    except UnicodeError:
        raise PromptError("Expected a prompt as UTF-8 text, got bytes that are none; convert it first.") from None
    if not asked.strip():
        raise PromptError("Expected a prompt with some text, got an empty one; give the model something to answer.")
    return asked


def _json_prompt(path: Path) -> list[Any]:
    from sinkscope.files import MB, read_text, short
    from sinkscope.models.model import is_ids, is_messages

    try:
        found = json.loads(read_text(path, PromptError, 16 * MB))
    except (ValueError, RecursionError):
        found = None
    if not is_messages(found) and not is_ids(found):
        raise PromptError(
            'Expected chat messages ([{"role": "user", "content": "…"}, …]) or token ids ([1, 2, …]) as JSON '
            f"in {short(str(path))}; fix the file, or type the prompt as text."
        )
    return list(found)


# ---- single options

MOST = 2**32 - 1  # of a seed: what every library takes
JsonFlag = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
ModelArgument = Annotated[
    str, Argument(help="Bundled name (sinkscope models), folder, GGUF file or Hub id.", metavar="MODEL")
]
PromptInfo = Argument(help="Text; - reads stdin; @FILE.json: messages or ids.", metavar="PROMPT", show_default=False)
PromptArgument = Annotated[str, PromptInfo]
StudyName = Annotated[str, Argument(help="A YAML file or a shipped study (paper, quick, …).", metavar="NAME")]
ModelsOption = Annotated[
    list[str] | None,
    Option("--models", "--model", "-m", help="Bundled names, folders or Hub ids; repeated, or with commas."),
]
MoreModels = Annotated[list[str] | None, Argument(help="Further models after --models.", hidden=True)]
ShardOption = Annotated[str | None, Option(help="Only this part of the work, such as 3/16; join them with merge.")]
TaskOption = Annotated[list[str] | None, Option("--task", "-t", help="Tasks; repeated, or with commas.")]
Dtype = Annotated[str | None, Option(help="float32, bfloat16 (bf16) or float16 (fp16); auto: as stored.")]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1 or auto.")]
Problems = Annotated[int | None, Option("--problems", "-n", help="Problems per task.", min=1)]
BatchSize = Annotated[int, Option(help="Requests per batch.", min=1)]
Base = Annotated[str | None, Option(help="Where the base of a PEFT adapter is, if not where it says.")]
ProtocolOption = Annotated[
    str | None, Option(help="How benchmarks are asked. Default: the checkpoint's, else harness.")
]
PromptsOption = Annotated[
    Path | None,
    Option("--prompts", help='FILE.jsonl: a line {"prompt": "…"} each, with "answer" or "check" to judge by.'),
]
ReportFlag = Annotated[bool, Option(help="Write report.html at the end.")]
CsvOption = Annotated[Path | None, Option(help="Write the table to this CSV file.", callback=writable)]
ParquetOption = Annotated[Path | None, Option(help="Write the table to this Parquet file.", callback=writable)]


# ---- options that several commands take together


@dataclass(frozen=True)
class LoadOptions:
    """What is loaded, and in which form."""

    dtype: Dtype = None
    device: Device = None
    mask_id: Annotated[int | None, Option(help="Mask token of a checkpoint that does not name it.", min=0)] = None
    base: Base = None
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a Hub id.")] = None
    quantization: Annotated[str | None, Option(help="int8 or int4 weights, packed by torchao (extra: quant).")] = None

    def load_words(self) -> dict[str, Any]:
        """What `load` takes."""
        return {one.name: getattr(self, one.name) for one in fields(LoadOptions)}


@dataclass(frozen=True)
class GenerateOptions(LoadOptions):
    """What is loaded and how it decodes, where a command generates once."""

    length: Annotated[int | None, Option(help="Tokens to generate.")] = None
    block: Annotated[int | None, Option(help="Tokens per block; blocks are finished left to right.")] = None
    steps: Annotated[int | None, Option(help="Denoising steps over the whole answer.")] = None
    temperature: Annotated[float | None, Option(help="0 takes the likeliest token.")] = None
    seed: Annotated[int | None, Option(help="Seed of the random numbers.", min=0, max=MOST)] = None
    mode: Annotated[str | None, Option(help="diffusion, autoregressive or self_speculation, if it has several.")] = None

    def load(self, model: str, **useless: float | None) -> Model:
        """The model; useless: further options that mean nothing to one that writes left to right."""
        from sinkscope.models import load

        with waiting(f"loading {model} …"):
            loaded = load(model, mode=self.mode, **self.load_words())
        if loaded.causal:
            where = "on a model that writes left to right"
            refuse(DecodeError, where, block=self.block, steps=self.steps, **useless)
        return loaded

    def decode_words(self, **more: Any) -> dict[str, Any]:
        """The decode settings that were given."""
        own = {name: getattr(self, name) for name in ("length", "block", "steps", "temperature", "seed")}
        return {name: value for name, value in {**own, **more}.items() if value is not None}


@dataclass(frozen=True)
class EngineOptions:
    """Where the work is done."""

    engine: Annotated[Literal["local", "ray"], Option(help="local: processes here; ray: a Ray cluster.")] = "local"
    address: Annotated[str | None, Option(help="ray: auto, host:port, ray://host:port. Default: this machine.")] = None
    gpus_per_worker: Annotated[float | None, Option(help="ray: GPUs of a worker.", min=0)] = None
    cpus_per_worker: Annotated[float | None, Option(help="ray: CPUs of a worker.", min=0)] = None

    def chosen(self, workers: int | None, /, **useless: object) -> str | Ray:
        """The engine; options of the other one are refused. useless: further ones that only ray has."""
        own = {name: getattr(self, name) for name in ("address", "gpus_per_worker", "cpus_per_worker")}
        if self.engine == "ray":
            from sinkscope.study.engine import Ray

            return Ray(workers=workers, **{name: value for name, value in own.items() if value is not None})
        refuse(StudyError, "with the engine local", "add --engine ray, or leave it out", **own, **useless)
        return self.engine


@dataclass(frozen=True)
class BenchmarkOptions(EngineOptions):
    """What benchmarks are asked, how, and where."""

    tasks: TaskOption = None
    protocol: ProtocolOption = None
    examples: Annotated[Path | None, Option(help="File with OpenCompass's worked examples.")] = None
    data: Annotated[Path | None, Option(help="Folder with the benchmarks' JSON lines.")] = None
    problems: Annotated[int | None, Option("--problems", "-n", help="Only so many problems per task.", min=1)] = None
    fewshot: Annotated[int | None, Option("--fewshot", "-f", help="Few-shot examples.", min=0, max=1000)] = None
    chat: Annotated[bool | None, Option("--chat/--no-chat", help="Use the chat template.")] = None
    batch_size: BatchSize = 8
    seed: Annotated[int, Option(help="Seed of problems and random keys.", min=0, max=MOST)] = 0
    dtype: Dtype = None
    device: Device = None
    workers: Annotated[int | None, Option(help="ray: processes with a model each.", min=1)] = None
    settings: Annotated[list[str] | None, Option("--set", help="A decode setting, length=256; repeated.")] = None

    def asked(self) -> dict[str, Any]:
        """What `eval_study` and `table1_study` take."""
        names = ("protocol", "examples", "data", "fewshot", "chat", "batch_size", "seed", "dtype", "device")
        own = {name: getattr(self, name) for name in names}
        return {**own, "settings": settings_of(self.settings), "limit": self.problems}

    def engine_of_benchmarks(self) -> str | Ray:
        return self.chosen(self.workers, workers=self.workers)

    def own_workers(self) -> int | None:
        """The engine local answers benchmarks in this very process: a batch of a large model takes all cores."""
        return 1 if self.engine == "local" else None
