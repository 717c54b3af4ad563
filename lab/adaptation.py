"""The recipe of an adapter: a base, a rank and what the tiny family's recipes have, in one frozen value."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lab.checks import PLAIN, Count, Name, Rows, Seed, Text, made, number, read_yaml, recipe_part, whole
from lab.errors import TrainingError
from lab.recipe import RECIPES, Data, Objective, Optimiser

ADAPTERS = RECIPES / "adapters"


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class Adaptation:
    """One training run of an adapter on a frozen base. `start` names the run beside this one whose adapter it goes on from.

    `frozen`: dtype of the frozen products while training. `keep`: steps whose adapters stay beside the last one.
    `canvas` in data: positions beyond the longest answer of a chunk, drawn for each chunk; a negative one stands for a
    canvas of that many positions after the prompt. `decode`: settings that the exported adapter asks for.
    `prefix`: chat = every prompt begins with the user's header; varied = it begins with the problem itself. Every second
    varied prompt has one to eight random words and one of a few ends before it: no token and no position is constant.
    `sees` is the direction of attention. own: a llama adapter reads causally, a dream adapter in both directions.
    causal: a dream adapter reads causally. prefix: a llama adapter reads its prompt in both directions, its answer causally.
    """

    name: Name
    base: Text
    family: Annotated[Literal["llama", "dream"], Field(description="llama or dream")]
    steps: Count
    start: Annotated[Text | None, Field(description="a plain word, or nothing")] = None
    mask_token: Annotated[Text | None, Field(description="a token of the base, or nothing")] = None
    prefix: Annotated[Literal["chat", "varied"], Field(description="chat or varied")] = "chat"
    sees: Annotated[Literal["own", "causal", "prefix"], Field(description="own, causal or prefix")] = "own"
    rank: Annotated[int, whole(1, 4096)] = 12
    alpha: Annotated[float, number(0, 1e6, above=True)] = 24.0
    seed: Seed = 0
    batch: Rows = 8
    chunks: Rows = 2
    frozen: Annotated[Literal["bfloat16", "float32"], Field(description="bfloat16 or float32")] = "bfloat16"
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    optimiser: Optimiser = field(default_factory=Optimiser)
    decode: Annotated[dict[Text, Any], Field(description="a mapping of decode settings")] = field(default_factory=dict)
    save_every: Count = 25
    log_every: Count = 5
    keep: Annotated[
        tuple[Annotated[int, whole(0, 1 << 30)], ...], Field(max_length=10_000, description="a list of whole numbers")
    ] = ()

    def __post_init__(self) -> None:
        if (self.family == "dream") != (self.mask_token is not None):
            raise TrainingError("a dream adapter needs a mask_token, and a llama adapter has none; fix the recipe.")
        if self.sees != "own" and self.family != ("dream" if self.sees == "causal" else "llama"):
            raise TrainingError("sees: causal is for a dream adapter, and prefix for a llama adapter; fix the recipe.")
        if self.sees == "prefix" and self.objective.prompt:
            raise TrainingError("sees: prefix shows the whole prompt, so it needs objective.prompt 0; fix the recipe.")
        if self.batch % self.chunks:
            raise TrainingError(f"batch {self.batch} must be a multiple of chunks {self.chunks}; fix the recipe.")

    @property
    def causal(self) -> bool:
        """Is this the autoregressive one?"""
        return self.family == "llama"

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain YAML values."""
        plain = dataclasses.asdict(self)
        plain["optimiser"]["betas"] = list(self.optimiser.betas)
        plain["data"]["canvas"] = list(self.data.canvas)
        plain["keep"] = list(self.keep)
        return plain

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a run to go on: all but its length, and how often it saves and logs."""
        loose = ("steps", "save_every", "log_every", "keep", "decode")
        return {key: value for key, value in self.to_dict().items() if key not in loose}


def adaptation_names() -> list[str]:
    """The adapters' recipes that come with the package."""
    return sorted(path.stem for path in ADAPTERS.glob("*.yaml"))


def find_adaptation(name: str | Path) -> Adaptation | None:
    """An adapter's recipe, by its name or from a YAML file that names a base; None if it is another sort of recipe."""
    shipped = ADAPTERS / f"{name}.yaml"
    path = shipped if os.path.isfile(shipped) else Path(name)
    if path.suffix not in (".yaml", ".yml") or not os.path.isfile(path):
        return None
    try:
        values = read_yaml(path)
    except TrainingError:
        return None  # told by the reader of plain recipes
    return adaptation_from_dict(values, str(path)) if isinstance(values, dict) and "base" in values else None


def adaptation_from_dict(values: dict[str, Any], where: str = "the recipe") -> Adaptation:
    """Make a recipe of plain values; unknown or missing fields are an error that names them."""
    return made(Adaptation, values, where)
