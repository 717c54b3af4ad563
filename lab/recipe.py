"""A recipe is everything a training run depends on, as one frozen value that is read from a small YAML file."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lab.checks import PLAIN, Count, Name, Rows, Seed, Share, Text, Weight, made, number, read_yaml, recipe_part, whole
from lab.errors import TrainingError
from sinkscope.files import short

RECIPES = Path(__file__).parent / "recipes"
MOST_WEIGHTS = 1 << 31  # numbers of a model that a recipe describes
Width = Annotated[int, whole(1, 1 << 17)]


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Shape:
    """The size of the transformer."""

    width: Width = 128
    layers: Annotated[int, whole(1, 1024)] = 6
    heads: Annotated[int, whole(1, 1024)] = 4
    ffn: Width = 256
    positions: Width = 512

    def __post_init__(self) -> None:
        if self.layers * self.width * (4 * self.width + 3 * self.ffn) > MOST_WEIGHTS:
            raise TrainingError(
                f"shape must describe at most {MOST_WEIGHTS:,} weights; make width, ffn or layers of the recipe smaller."
            )
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise TrainingError(
                f"width {self.width} must be an even multiple of heads {self.heads}; change one of them in the recipe."
            )


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Objective:
    """What is predicted: the next token (ARM), or masked tokens (DLM) at a mask ratio t spread evenly over a batch.

    whole: share of rows whose prompt is masked too. blockwise: share of rows masked as block decoding meets them
    (left blocks known, right blocks masked, random inside the block). prompt: loss weight of prompt tokens of an ARM.
    padding: loss weight of the end-of-text tokens after the answer's end. t_min: smallest mask ratio.
    """

    whole: Share = 0.1
    blockwise: Share = 0.0
    block: Width = 8
    prompt: Weight = 0.1
    padding: Weight = 0.2
    t_min: Annotated[float, number(0, 1, above=True)] = 0.05


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Data:
    """What is shown: kinds with their share and difficulty, canvas lengths after the prompt, the begin token or not.

    A kind without a difficulty gets all three, evenly. A DLM's canvas length is drawn from `canvas` for each chunk.
    spelling: words as the tiny family, bare (no punctuation, line breaks or chat markers), or letters.
    """

    kinds: Annotated[
        dict[Text, Annotated[float, number(0, 1e6)]],
        Field(min_length=1, description="a mapping of kinds to shares, each a number from 0 to 1000000"),
    ] = field(default_factory=lambda: {"arithmetic": 1.0})
    difficulty: Annotated[
        dict[Text, Annotated[int, whole(0, 100)]],
        Field(description="a mapping of kinds to whole numbers from 0 to 100"),
    ] = field(default_factory=dict)
    canvas: Annotated[
        tuple[Annotated[int, whole(-(1 << 17), 1 << 17)], ...],
        Field(min_length=1, max_length=10_000, description="a list of whole numbers, of at least one"),
    ] = (24, 32)
    begin: Annotated[bool, Field(strict=True, description="true or false")] = True
    spelling: Annotated[Literal["words", "bare", "letters"], Field(description="words, bare or letters")] = "words"

    def __post_init__(self) -> None:
        if not sum(self.kinds.values()) > 0:
            raise TrainingError("kinds must have a share above 0 among them; fix the recipe.")


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Optimiser:
    """Muon for the matrices inside the layers (or AdamW there too), AdamW for embeddings, head, norms and biases.

    The rate rises over `warmup` steps, stays, and falls to zero over the last `decay` share of the steps.
    """

    matrices: Annotated[Literal["muon", "adamw"], Field(description="muon or adamw")] = "muon"
    matrix_rate: Weight = 0.02
    rate: Weight = 0.003
    momentum: Share = 0.95
    betas: Annotated[tuple[Share, Share], Field(description="a list of two numbers from 0 to 1")] = (0.9, 0.98)
    weight_decay: Weight = 0.01
    clip: Annotated[float, number(0, 1e12, above=True)] = 1.0
    warmup: Annotated[int, whole(0, 1 << 30)] = 100
    decay: Share = 0.4
    ema: Share = 0.995


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Recipe:
    """One training run. `start` names the recipe (or checkpoint folder) whose weights it starts from."""

    name: Name
    family: Annotated[
        Literal["llama", "llada", "dream", "mmada"], Field(description="one of llama, llada, dream, mmada")
    ]
    steps: Count
    start: Annotated[Text | None, Field(description="a plain word, or nothing")] = None
    variant: Annotated[
        Literal["plain", "off_by_one", "sink_token"], Field(description="one of plain, off_by_one, sink_token")
    ] = "plain"
    seed: Seed = 0
    batch: Rows = 64
    chunks: Rows = 4
    shape: Shape = field(default_factory=Shape)
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    optimiser: Optimiser = field(default_factory=Optimiser)
    save_every: Count = 200
    probe_every: Count = 200
    accuracy_every: Count = 1000
    log_every: Count = 20

    def __post_init__(self) -> None:
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
    return made(Recipe, values, where)
