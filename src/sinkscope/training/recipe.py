"""A recipe is everything a training run depends on, as one frozen value that is read from a small YAML file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sinkscope.errors import TrainingError

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


@dataclass(frozen=True)
class Data:
    """What is shown: kinds with their share and difficulty, canvas lengths after the prompt, the begin token or not.

    A kind without a difficulty gets all three, evenly. A DLM's canvas length is drawn from `canvas` for each chunk.
    """

    kinds: dict[str, float] = field(default_factory=lambda: {"arithmetic": 1.0})
    difficulty: dict[str, int] = field(default_factory=dict)
    canvas: tuple[int, ...] = (24, 32)
    begin: bool = True


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
            raise TrainingError(f"optimiser.matrices must be muon or adamw, not {self.matrices!r}; fix the recipe.")


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
        if self.family not in FAMILIES:
            raise TrainingError(f"family must be one of {', '.join(FAMILIES)}, not {self.family!r}; fix the recipe.")
        if self.variant not in VARIANTS:
            raise TrainingError(f"variant must be one of {', '.join(VARIANTS)}, not {self.variant!r}; fix the recipe.")
        for name in ("steps", "batch", "chunks", "save_every", "probe_every", "accuracy_every", "log_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TrainingError(f"{name} must be a whole number of at least 1, not {value!r}; fix the recipe.")
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
        if not path.is_file():
            raise TrainingError(
                f"no recipe is called {str(name)!r}; take one of {', '.join(all_names())}, or give a .yaml file."
            )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TrainingError(f"{path} cannot be read as YAML ({type(error).__name__}); fix the file.") from error
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
        raise TrainingError(f"{where} must be a mapping, not {value!r}; fix the recipe.")
    return value


def _make(kind: Any, values: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise TrainingError(f"{where} has unknown fields {', '.join(unknown)}; known are {', '.join(fields)}.")
    try:
        return kind(**values)
    except TypeError as error:
        raise TrainingError(f"{where} is not complete: {error}; fix the recipe.") from error
