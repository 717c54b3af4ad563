"""`Protocol`: how a checkpoint is asked a benchmark: examples, turns, decoding, stop strings, extraction, published score.

Each is a file in protocols/, or one that an installed package registers. It is chosen by the exact checkpoint, never by its family.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from sinkscope.decoding.settings import Decode, setting_names
from sinkscope.errors import DecodeError, TaskError
from sinkscope.files import read_yaml
from sinkscope.registry import Registry
from sinkscope.validation import validate

if TYPE_CHECKING:
    from sinkscope.models.model import Model

FOLDER = Path(__file__).parent / "protocols"
OTHERWISE = "harness"  # the protocol of a checkpoint that has none of its own
STRICT = ConfigDict(extra="forbid", strict=False)
Benchmark = Literal["gsm8k", "humaneval"]
BENCHMARKS: tuple[Benchmark, ...] = ("gsm8k", "humaneval")


@dataclass(frozen=True, config=STRICT)
class Published:
    """A score without masking, in percent, and who reports it."""

    score: float = Field(ge=0, le=100)
    by: str = Field(min_length=1)


@dataclass(frozen=True, config=STRICT)
class Setup:
    """One benchmark under a protocol, for one family of models."""

    benchmark: Benchmark
    task: str  # of the harness: prompts, examples and extraction, where nothing below replaces them
    family: str | None = None  # None: any
    checkpoints: tuple[str, ...] = ()  # Hub ids; the published scores are of exactly these
    examples: int | None = Field(default=None, ge=0)  # before each question; None: as the task has it
    worked: Literal["opencompass"] | None = None  # whose worked examples, where the task does not carry them
    # multi: an example is a user turn and an assistant turn; single: all in one user turn; plain: no chat template;
    # auto: multi where the model has a chat template, else plain.
    turns: Literal["multi", "single", "plain", "auto"] = "auto"
    system: str | None = None
    begin: bool = False  # a begin token before plain text
    question: str | None = None  # in place of the task's doc_to_text
    prefix: str | None = None  # how the answer begins, in place of the task's gen_prefix; "" for none
    decode: Mapping[str, Any] = field(default_factory=dict)  # over the model's own defaults
    stops: tuple[str, ...] | None = None  # None: the task's
    extract: str | None = None  # pattern whose last match is the answer; None: the task's flexible-extract
    # How an answer becomes a program. continue: behind the stub; fence: behind the stub, up to the first fence;
    # block: the first fenced block, behind the stub; entry_point: what the function needs, out of any text.
    sanitize: Literal["continue", "fence", "block", "entry_point"] | None = None
    published: tuple[Published, ...] = ()

    @field_validator("decode")
    @classmethod
    def _known(cls, words: Mapping[str, Any]) -> Mapping[str, Any]:
        if strange := unknown_settings(words):
            raise ValueError(f"{strange} is no decode setting")
        return words

    def of(self, name: str) -> bool:
        """Whether the model of this name is one of its checkpoints."""
        return checkpoint_of(name).lower() in (one.lower() for one in self.checkpoints)


@dataclass(frozen=True, config=STRICT)
class Protocol:
    """Evaluation protocol: how models are prompted and judged on benchmarks.

    Args:
        name: Name of the protocol.
        about: Description in a sentence.
        source: Publication or code that the protocol follows.
        setups: Settings per benchmark and family.
        assumptions: Choices that the source leaves open, as this protocol makes them.
        default: Whether its checkpoints use it when no protocol is named.
    """

    name: str
    about: str
    source: str
    setups: tuple[Setup, ...]
    assumptions: tuple[str, ...] = ()
    default: bool = False

    def setup(self, benchmark: str, name: str, family: str) -> Setup | None:
        """Return the setup for a model: that of exactly this checkpoint, or else the first for its family; None if
        there is none.

        Args:
            benchmark: Name of the benchmark.
            name: Name of the model.
            family: Name of the model's family.
        """
        own = [one for one in self.setups if one.benchmark == benchmark]
        exact = [one for one in own if one.of(name)]
        return next(iter(exact or [one for one in own if one.family in (None, family)]), None)


PROTOCOLS: Registry[Path] = Registry("protocol", TaskError)  # its YAML file, by the file's name


def register(path: Path | str) -> None:
    """Register the YAML file of an evaluation protocol under the file's name.

    Args:
        path: YAML file. With `default: true` its checkpoints use the protocol when none is named.
    """
    PROTOCOLS.add(Path(path).stem, Path(path))


for _path in FOLDER.glob("*.yaml"):
    register(_path)


@functools.cache
def read_protocol(name: str) -> Protocol:
    """A protocol by its name, or one of the user's by its file."""
    is_own = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    path = Path(name) if is_own else PROTOCOLS[name]
    values = {**read_yaml(path, TaskError), "name": path.stem}
    found: Protocol = validate(Protocol, values, str(path), TaskError)
    return found


def checkpoint_of(name: str) -> str:
    """The Hub id of a model's name, also where it is a folder of the Hub's cache; else the name."""
    found = re.search(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots", name)
    return f"{found[1]}/{found[2]}" if found else name


def protocol_for(name: str, asked: str | Protocol | None = None) -> Protocol:
    """The protocol asked for, else that of exactly this checkpoint; `harness` where it has none."""
    if asked is not None:
        return read_protocol(asked) if isinstance(asked, str) else asked
    for protocol in map(read_protocol, sorted(PROTOCOLS)):
        if protocol.default and any(setup.of(name) for setup in protocol.setups):
            return protocol
    return read_protocol(OTHERWISE)


def benchmark_of(task: str) -> str | None:
    """Which benchmark a harness task is a form of: gsm8k_cot is a form of GSM8K."""
    return next((name for name in BENCHMARKS if task.startswith(name)), None)


def setup_for(model: Model, task: str, protocol: Protocol | None = None) -> Setup | None:
    """The protocol's setup of a task: the benchmark by its own name or by the harness's name of what the protocol runs.

    Other forms of a benchmark have the harness's setup, whatever the checkpoint.
    """
    benchmark = benchmark_of(task)
    if benchmark is None:
        return None
    found = protocol_for(model.name, protocol).setup(benchmark, model.name, model.family.name)
    if found is not None and task in (benchmark, found.task):
        return found
    return read_protocol(OTHERWISE).setup(benchmark, model.name, model.family.name)


def settings_for(
    model: Model,
    task: str,
    asked: Mapping[str, Any] | Decode | None = None,
    longest: int | None = None,
    protocol: Protocol | None = None,
) -> Decode:
    """The decode settings of one task: those asked for, else the protocol's, else the model's defaults.

    Single words replace single settings (`{"length": 128}`); length, block and steps are made to fit each other and half
    of the model's context, so that the prompt has room. `longest` is a task's own wish for the length; a protocol comes
    before it. Noise is drawn a row, so that an answer does not depend on what else is in its batch.
    """
    from sinkscope.decoding import resolve_settings

    if isinstance(asked, Decode):
        return asked
    words = dict(asked or {})
    if strange := unknown_settings(words):
        raise DecodeError(f"Expected decode settings such as length, steps or block, got {strange}.")
    setup = setup_for(model, task, protocol)
    base = resolve_settings(model.defaults, model, 0, dict(setup.decode)) if setup else model.defaults
    if "length" not in words:
        length = min(base.length if setup else longest or base.length, model.context // 2)
        if length != base.length:
            words["length"] = length - length % (base.block or 1) or length
    words.setdefault("noise", "per_row")
    return resolve_settings(base, model, 0, words)


def unknown_settings(words: Mapping[str, Any]) -> str:
    return ", ".join(sorted(set(words) - setting_names()))
