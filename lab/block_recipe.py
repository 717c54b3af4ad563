"""The recipe of a block-diffusion model: the model that it goes on from, its block, and what the tiny family's have."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lab.checks import PLAIN, Count, Name, Rows, Seed, Share, Text, Weight, made, read_yaml, recipe_part, whole
from lab.errors import TrainingError
from lab.recipe import RECIPES, Data, Optimiser, Recipe

BLOCKS = RECIPES / "blocks"


@recipe_part
@dataclass(frozen=True, config=PLAIN)
class BlockRecipe:
    """One training run under block-causal attention. `start` names a zoo model or a checkpoint folder.

    padding: loss weight of end-of-text after the answer's end. ema: of the running mean of the weights, which is what is
    exported. The rate rises over `warmup` steps and falls to 0 over all of them. decode: settings that the checkpoint
    asks for.
    """

    name: Name
    start: Text
    steps: Count
    family: Annotated[Literal["sdar", "nemotron"], Field(description="sdar or nemotron")] = "sdar"
    block: Annotated[int, whole(1, 1 << 17)] = 4
    seed: Seed = 0
    batch: Rows = 32
    chunks: Rows = 2
    padding: Weight = 0.2
    rate: Weight = 1.5e-3
    warmup: Count = 30
    ema: Share = 0.99
    data: Data = field(default_factory=Data)
    decode: Annotated[dict[Text, Any], Field(description="a mapping of decode settings")] = field(default_factory=dict)
    save_every: Count = 50
    log_every: Count = 20

    def __post_init__(self) -> None:
        if self.batch % self.chunks:
            raise TrainingError(f"batch {self.batch} must be a multiple of chunks {self.chunks}; fix the recipe.")

    @property
    def optimiser(self) -> Optimiser:
        """AdamW for every weight."""
        return Optimiser(rate=self.rate, warmup=self.warmup, decay=1.0, ema=self.ema)

    @property
    def drawing(self) -> Recipe:
        """The part that says which problems are drawn at a step."""
        return Recipe(
            name=self.name, family="llada", steps=self.steps, seed=self.seed, batch=self.batch, chunks=self.chunks,
            data=self.data,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain YAML values."""
        plain = dataclasses.asdict(self)
        plain["data"]["canvas"] = list(self.data.canvas)
        return plain

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal to resume a run: all but how often it saves and logs (the rate depends on the length)."""
        left_out = ("save_every", "log_every", "decode", *(["family"] if self.family == "sdar" else []))
        return {key: value for key, value in self.to_dict().items() if key not in left_out}


def block_recipe_names() -> list[str]:
    """The recipes of block-diffusion models that come with the package."""
    return sorted(path.stem for path in BLOCKS.glob("*.yaml"))


def find_block_recipe(name: str | Path) -> BlockRecipe | None:
    """Such a recipe, by its name or from a YAML file that has a block; None if it is another sort of recipe."""
    shipped = BLOCKS / f"{name}.yaml"
    path = shipped if shipped.is_file() else Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    try:
        values = read_yaml(path)
    except (TrainingError, OSError, UnicodeDecodeError):
        return None  # told by the reader of plain recipes
    if not isinstance(values, dict) or "block" not in values:
        return None
    return made(BlockRecipe, values, str(path))
