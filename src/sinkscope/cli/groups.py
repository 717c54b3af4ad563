"""Options that several commands take together, as dataclasses: typer itself knows single options only."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sinkscope.cli.options import (
    MOST,
    Base,
    BatchSize,
    Device,
    Dtype,
    ProtocolOption,
    TaskOption,
    refuse_together,
    settings_of,
)
from sinkscope.cli.screen import waiting
from sinkscope.errors import DecodeError, StudyError

if TYPE_CHECKING:
    from sinkscope.models import Model
    from sinkscope.study.engines import Engine
    from sinkscope.study.engines.ray import Ray


COMMANDS: list[tuple[Callable[..., None], dict[str, Any]]] = []


def command(**words: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of `commands/` a command; words: typer's, such as another name than the function's."""

    def keep(function: Callable[..., None]) -> Callable[..., None]:
        COMMANDS.append((function, words))
        return function

    return keep


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A parameter whose type is a dataclass becomes one option per field; the command is given the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = {name: parameter.default}
        if name in groups:
            own = {field.name: field.default for field in fields(groups[name])}
            hints |= get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[one])
            for one, default in own.items()
        ]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


@dataclass(frozen=True)
class LoadOptions:
    """What is loaded, and in which form."""

    dtype: Dtype = None
    device: Device = None
    mask_id: Annotated[
        int | None, typer.Option("--mask-id", help="Mask token of a diffusion checkpoint that does not name it.", min=0)
    ] = None
    base: Base = None
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a Hub id.")] = None
    quantization: Annotated[
        str | None, typer.Option("--quantization", help="int8 or int4 weights, packed by torchao (extra: quant).")
    ] = None

    def load_words(self) -> dict[str, Any]:
        """What `load` takes."""
        return {one.name: getattr(self, one.name) for one in fields(LoadOptions)}


@dataclass(frozen=True)
class GenerateOptions(LoadOptions):
    """What is loaded and how it decodes, where a command generates once."""

    length: Annotated[int | None, typer.Option(help="Tokens to generate.")] = None
    block: Annotated[int | None, typer.Option(help="Tokens per block; blocks are finished left to right.")] = None
    steps: Annotated[int | None, typer.Option(help="Denoising steps over the whole answer.")] = None
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers.", min=0, max=MOST)] = None
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", help="Of a checkpoint that decodes in several ways: diffusion, autoregressive, self_speculation."
        ),
    ] = None

    def load(self, model: str, **useless: float | None) -> Model:
        """The model; useless: further options that mean nothing to one that writes left to right."""
        from sinkscope.models import load

        with waiting(f"loading {model} …"):
            loaded = load(model, mode=self.mode, **self.load_words())
        if loaded.causal:
            given = {"block": self.block, "steps": self.steps, **useless}
            named = {f"--{name}": one for name, one in given.items()}
            refuse_together(DecodeError, "on a model that writes left to right", named)
        return loaded

    def decode_words(self, **more: Any) -> dict[str, Any]:
        """The decode settings that were given."""
        own = {name: getattr(self, name) for name in ("length", "block", "steps", "temperature", "seed")}
        return {name: value for name, value in {**own, **more}.items() if value is not None}


@dataclass(frozen=True)
class EngineOptions:
    """Where the work is done."""

    engine: Annotated[str, typer.Option("--engine", help="local: processes here; ray: a Ray cluster.")] = "local"
    address: Annotated[
        str | None, typer.Option("--address", help="ray: auto, host:port or ray://host:port. Default: this machine.")
    ] = None
    gpus_per_worker: Annotated[
        float | None, typer.Option("--gpus-per-worker", help="ray: GPUs of a worker.", min=0)
    ] = None
    cpus_per_worker: Annotated[
        float | None, typer.Option("--cpus-per-worker", help="ray: CPUs of a worker.", min=0)
    ] = None

    def chosen(self, workers: int | None) -> str | Ray | Engine:
        """The engine, known to `engine_of` by its name; options of another engine are refused."""
        shares = {"gpus_per_worker": self.gpus_per_worker, "cpus_per_worker": self.cpus_per_worker}
        if self.engine == "ray":
            from sinkscope.study.engines.ray import Ray

            return Ray(self.address, workers, **{name: value for name, value in shares.items() if value is not None})
        given = {"--address": self.address, **{f"--{name.replace('_', '-')}": one for name, one in shares.items()}}
        refuse_together(StudyError, f"with the engine {self.engine}", given, "add --engine ray, or leave it out")
        if self.engine == "local":
            return self.engine
        from sinkscope.study.engines import engine_of

        return engine_of(self.engine, workers)


@dataclass(frozen=True)
class BenchmarkOptions(EngineOptions):
    """What benchmarks are asked, how, and where."""

    tasks: TaskOption = None
    protocol: ProtocolOption = None
    examples: Annotated[
        Path | None, typer.Option("--examples", help="Worked examples of a protocol that takes them from OpenCompass.")
    ] = None
    data: Annotated[Path | None, typer.Option(help="Folder with the benchmarks' JSON lines.")] = None
    problems: Annotated[int | None, typer.Option("--problems", "-n", help="Only so many problems per task.", min=1)] = (
        None
    )
    fewshot: Annotated[
        int | None, typer.Option("--fewshot", "-f", help="Examples before each problem.", min=0, max=1000)
    ] = None
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.")] = None
    batch_size: BatchSize = 8
    seed: Annotated[int, typer.Option(help="Seed of problems and random keys.", min=0, max=MOST)] = 0
    dtype: Dtype = None
    device: Device = None
    workers: Annotated[int | None, typer.Option("--workers", help="ray: processes with a model each.", min=1)] = None
    settings: Annotated[list[str] | None, typer.Option("--set", help="A decode setting, length=256; repeated.")] = None

    def asked(self) -> dict[str, Any]:
        """What `Choices` takes."""
        names = ("protocol", "examples", "data", "fewshot", "chat", "batch_size", "seed")
        own = {name: getattr(self, name) for name in names}
        return {**own, "settings": settings_of(self.settings), "problems": self.problems or 100}

    def run(self) -> dict[str, Any]:
        """What `evaluate` and `table1` take beside that."""
        return {"limit": self.problems, "dtype": self.dtype, "device": self.device, "engine": self._ray()}

    def _ray(self) -> Ray | None:
        """The engine local answers benchmarks in this very process."""
        from sinkscope.study.engines.ray import Ray

        chosen = self.chosen(self.workers)
        if isinstance(chosen, Ray):
            return chosen
        if chosen != "local":
            raise StudyError(
                f"Expected the engine local or ray for a benchmark, got {self.engine!r}; choose one of them."
            )
        own = {"--workers": self.workers}
        refuse_together(StudyError, "with the engine local", own, "add --engine ray, or leave it out")
        return None
