"""The recipe of an adapter: a base, a rank and what the tiny family's recipes have, in one frozen value."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.checks import MAPPING, MAYBE_TEXT, NAME, SEED, TEXT, check, number, read_yaml, several, whole
from lab.errors import TrainingError
from lab.recipe import RECIPES, Data, Objective, Optimiser, parts_of
from sinkscope.io.reading import short

ADAPTERS = RECIPES / "adapters"


@dataclass(frozen=True)
class Adaptation:
    """One training run of an adapter on a frozen base. `start` names the run beside this one whose adapter it goes on from.

    `frozen`: dtype of the frozen products while training. `keep`: steps whose adapters stay beside the last one.
    `canvas` in data: positions beyond the longest answer of a chunk, drawn for each chunk; a negative one stands for a
    canvas of that many positions after the prompt. `decode`: settings that the exported adapter asks for.
    `prefix`: chat = every prompt begins with the user's header; varied = it begins with the problem itself, or, every
    second time, with one to eight random words and one of a few ends, so that no token and no position is constant.
    """

    name: str
    base: str
    family: str
    steps: int
    start: str | None = None
    mask_token: str | None = None
    prefix: str = "chat"
    rank: int = 12
    alpha: float = 24.0
    seed: int = 0
    batch: int = 8
    chunks: int = 2
    frozen: str = "bfloat16"
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    optimiser: Optimiser = field(default_factory=Optimiser)
    decode: dict[str, Any] = field(default_factory=dict)
    save_every: int = 25
    log_every: int = 5
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.family not in ("llama", "dream"):
            raise TrainingError(
                f"an adapter's family must be llama or dream, not {short(repr(self.family), 80)}; fix the recipe."
            )
        if (self.family == "dream") != (self.mask_token is not None):
            raise TrainingError("a dream adapter needs a mask_token, and a llama adapter has none; fix the recipe.")
        if self.prefix not in ("chat", "varied"):
            raise TrainingError(f"prefix must be chat or varied, not {short(repr(self.prefix), 80)}; fix the recipe.")
        if self.frozen not in ("bfloat16", "float32"):
            raise TrainingError(
                f"frozen must be bfloat16 or float32, not {short(repr(self.frozen), 80)}; fix the recipe."
            )
        check(self, {"name": NAME, "base": TEXT, "start": MAYBE_TEXT, "mask_token": MAYBE_TEXT, "seed": SEED})
        check(self, dict.fromkeys(("steps", "save_every", "log_every"), whole(1, 1 << 30)))
        check(self, {"rank": whole(1, 4096), "batch": whole(1, 1 << 16), "chunks": whole(1, 1 << 16)})
        check(self, {"alpha": number(0, 1e6, above=True), "decode": MAPPING, "keep": several(whole(0, 1 << 30))})
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
    if isinstance(values.get("keep"), list):
        values = {**values, "keep": tuple(values["keep"])}
    made: Adaptation = parts_of(
        Adaptation, values, where, {"objective": Objective, "data": Data, "optimiser": Optimiser}
    )
    return made
