"""A recipe is everything a training run depends on, as one frozen value that is read from a small YAML file."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.checks import (
    MAYBE_TEXT,
    MOST_WEIGHTS,
    NAME,
    SEED,
    TRUTH,
    check,
    named,
    number,
    read_yaml,
    several,
    whole,
)  # fmt: skip
from lab.errors import TrainingError
from lab.spelling import SPELLINGS
from sinkscope.io.reading import short

RECIPES = Path(__file__).parent / "recipes"
FAMILIES = ("llama", "llada", "dream", "mmada")
VARIANTS = ("plain", "off_by_one", "sink_token")


@dataclass(frozen=True)
class Shape:
    """The size of the transformer."""

    width: int = 128
    layers: int = 6
    heads: int = 4
    ffn: int = 256
    positions: int = 512

    def __post_init__(self) -> None:
        check(self, dict.fromkeys(("width", "ffn", "positions"), whole(1, 1 << 17)))
        check(self, dict.fromkeys(("layers", "heads"), whole(1, 1024)))
        if self.layers * self.width * (4 * self.width + 3 * self.ffn) > MOST_WEIGHTS:
            raise TrainingError(
                f"shape must describe at most {MOST_WEIGHTS:,} weights; make width, ffn or layers of the recipe smaller."
            )
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise TrainingError(
                f"width {self.width} must be an even multiple of heads {self.heads}; change one of them in the recipe."
            )


@dataclass(frozen=True)
class Objective:
    """What is predicted: the next token (ARM), or masked tokens (DLM) at a mask ratio t spread evenly over a batch.

    whole: share of rows whose prompt is masked too. blockwise: share of rows masked as block decoding meets them
    (left blocks known, right blocks masked, random inside the block). prompt: loss weight of prompt tokens of an ARM.
    padding: loss weight of the end-of-text tokens after the answer's end. t_min: smallest mask ratio.
    """

    whole: float = 0.1
    blockwise: float = 0.0
    block: int = 8
    prompt: float = 0.1
    padding: float = 0.2
    t_min: float = 0.05

    def __post_init__(self) -> None:
        check(self, dict.fromkeys(("whole", "blockwise"), number(0, 1)))
        check(self, dict.fromkeys(("prompt", "padding"), number(0, 1000)))
        check(self, {"block": whole(1, 1 << 17), "t_min": number(0, 1, above=True)})


@dataclass(frozen=True)
class Data:
    """What is shown: kinds with their share and difficulty, canvas lengths after the prompt, the begin token or not.

    A kind without a difficulty gets all three, evenly. A DLM's canvas length is drawn from `canvas` for each chunk.
    spelling: words as the tiny family, bare (no punctuation, line breaks or chat markers), or letters.
    """

    kinds: dict[str, float] = field(default_factory=lambda: {"arithmetic": 1.0})
    difficulty: dict[str, int] = field(default_factory=dict)
    canvas: tuple[int, ...] = (24, 32)
    begin: bool = True
    spelling: str = "words"

    def __post_init__(self) -> None:
        if self.spelling not in SPELLINGS:
            raise TrainingError(f"data.spelling must be {', '.join(SPELLINGS)}, not {self.spelling!r}; fix the recipe.")
        check(self, {"kinds": named(number(0, 1e6), least=1), "difficulty": named(whole(0, 100)), "begin": TRUTH})
        check(self, {"canvas": several(whole(-(1 << 17), 1 << 17), least=1)})
        if not sum(self.kinds.values()) > 0:
            raise TrainingError("kinds must have a share above 0 among them; fix the recipe.")


@dataclass(frozen=True)
class Optimiser:
    """Muon for the matrices inside the layers (or AdamW there too), AdamW for embeddings, head, norms and biases.

    The rate rises over `warmup` steps, stays, and falls to zero over the last `decay` share of the steps.
    """

    matrices: str = "muon"
    matrix_rate: float = 0.02
    rate: float = 0.003
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    warmup: int = 100
    decay: float = 0.4
    ema: float = 0.995

    def __post_init__(self) -> None:
        if self.matrices not in ("muon", "adamw"):
            came = short(repr(self.matrices), 80)
            raise TrainingError(f"optimiser.matrices must be muon or adamw, not {came}; fix the recipe.")
        check(self, dict.fromkeys(("matrix_rate", "rate", "weight_decay"), number(0, 1000)))
        check(
            self,
            {"clip": number(0, 1e12, above=True), "betas": several(number(0, 1), 2, 2), "warmup": whole(0, 1 << 30)},
        )
        check(self, dict.fromkeys(("momentum", "decay", "ema"), number(0, 1)))


@dataclass(frozen=True)
class Recipe:
    """One training run. `start` names the recipe (or checkpoint folder) whose weights it starts from."""

    name: str
    family: str
    steps: int
    start: str | None = None
    variant: str = "plain"
    seed: int = 0
    batch: int = 64
    chunks: int = 4
    shape: Shape = field(default_factory=Shape)
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    optimiser: Optimiser = field(default_factory=Optimiser)
    save_every: int = 200
    probe_every: int = 200
    accuracy_every: int = 1000
    log_every: int = 20

    def __post_init__(self) -> None:
        for name, known in (("family", FAMILIES), ("variant", VARIANTS)):
            if getattr(self, name) not in known:
                came = short(repr(getattr(self, name)), 80)
                raise TrainingError(f"{name} must be one of {', '.join(known)}, not {came}; fix the recipe.")
        every = ("save_every", "probe_every", "accuracy_every", "log_every")
        check(self, {"name": NAME, "start": MAYBE_TEXT, "seed": SEED, **dict.fromkeys(every, whole(1, 1 << 30))})
        check(self, {"steps": whole(1, 1 << 30), "batch": whole(1, 1 << 16), "chunks": whole(1, 1 << 16)})
        if min(self.data.canvas) < 1:
            raise TrainingError(f"canvas must be lengths of at least 1, not {min(self.data.canvas)}; fix the recipe.")
        if self.batch % self.chunks:
            raise TrainingError(f"batch {self.batch} must be a multiple of chunks {self.chunks}; fix the recipe.")

    @property
    def causal(self) -> bool:
        """Is this the autoregressive one?"""
        return self.family == "llama"

    @property
    def shift(self) -> bool:
        """Do the logits at i predict token i + 1?"""
        return self.family in ("llama", "dream")

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain YAML values."""
        plain = dataclasses.asdict(self)
        plain["optimiser"]["betas"] = list(self.optimiser.betas)
        plain["data"]["canvas"] = list(self.data.canvas)
        return plain

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a run to go on: all but its length and how often it saves, probes and logs."""
        loose = ("steps", "save_every", "probe_every", "accuracy_every", "log_every")
        return {key: value for key, value in self.to_dict().items() if key not in loose}


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def all_names() -> list[str]:
    """The recipes of every sort, those of adapters and of block-diffusion models too."""
    return sorted(path.stem for path in RECIPES.rglob("*.yaml"))


def load_recipe(name: str | Path) -> Recipe:
    """Read a recipe by the name of one that comes with the package, or from a YAML file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = RECIPES / f"{name}.yaml"
        if not os.path.isfile(path):
            raise TrainingError(
                f"no recipe is called {short(repr(str(name)))}; take one of {', '.join(all_names())}, or give a .yaml file."
            )
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise TrainingError(f"{path} must hold a mapping of recipe fields, not {type(values).__name__}; fix the file.")
    return recipe_from_dict(values, where=str(path))


def recipe_from_dict(values: dict[str, Any], where: str = "the recipe") -> Recipe:
    """Make a recipe of plain values; unknown or missing fields are an error that names them."""
    parts = {"shape": Shape, "objective": Objective, "data": Data, "optimiser": Optimiser}
    made: Recipe = parts_of(Recipe, values, where, parts)
    return made


def parts_of(kind: Any, values: dict[str, Any], where: str, parts: dict[str, Any]) -> Any:
    """A dataclass of plain values, whose `parts` are dataclasses of their own."""
    values = dict(values)
    for key, part_kind in parts.items():
        if key in values:
            part = dict(_mapping(values[key], f"{where}: {key}"))
            for name in ("betas", "canvas"):
                if isinstance(part.get(name), list):
                    part[name] = tuple(part[name])
            values[key] = _make(part_kind, part, f"{where}: {key}")
    return _make(kind, values, where)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TrainingError(f"{where} must be a mapping, not {short(repr(value), 80)}; fix the recipe.")
    return value


def _make(kind: Any, values: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(short(str(name), 60) for name in set(values) - set(fields))
    if unknown:
        some = f"{', '.join(unknown[:5])}{', …' if unknown[5:] else ''}"
        raise TrainingError(f"{where} has unknown fields {some}; known are {', '.join(fields)}.")
    try:
        return kind(**values)
    except TypeError as error:
        raise TrainingError(f"{where} is not complete: {error}; fix the recipe.") from error
    except TrainingError as error:
        raise TrainingError(f"{where}: {error}") from None
