"""Small random checkpoints with the tasks' own tokenizer, and a study that runs on them in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.build import build_module
from lab.export import export
from lab.recipe import Recipe, Shape
from lab.vocabulary import build_tokenizer
from sinkscope.study.schema import Study

SMALL = Shape(width=16, layers=2, heads=2, ffn=16, positions=256)


def make_checkpoint(folder: Path, family: str, seed: int = 0) -> Path:
    """Random weights, sharp enough that attention has sinks and answers differ."""
    recipe = Recipe(name=family, family=family, steps=1, seed=seed, shape=SMALL)
    tokenizer = build_tokenizer(pictures=family == "mmada")
    weights = {name: value.clone() for name, value in build_module(recipe, len(tokenizer)).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    for name, value in weights.items():
        if name.endswith(".weight") and value.dim() == 2:
            weights[name] = torch.randn(value.shape, generator=generator) * (1.0 if "embed" in name else 0.5)
    return export(recipe, weights, tokenizer, folder)


@pytest.fixture(scope="session")
def checkpoint_maker() -> Callable[..., Path]:
    return make_checkpoint


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Family → folder of a small random checkpoint."""
    folder = tmp_path_factory.mktemp("family")
    made = {name: str(make_checkpoint(folder / f"small-{name}", name)) for name in ("llama", "llada", "dream", "mmada")}
    return {**made, "text": str(make_checkpoint(folder / "small-text", "llama", seed=5))}


@pytest.fixture(scope="session")
def small(family: dict[str, str]) -> dict[str, Any]:
    """A study as a file would hold it: every kind of unit, a few problems."""
    return {
        "name": "small",
        "models": [family["llama"], family["llada"]],
        "tasks": [{"name": "arithmetic", "problems": 5}, {"name": "recall", "problems": 3}],
        "chunk": 3,
        "draws": 200,
        "decode": {"length": 8},
        "conditions": [
            "none",
            "noop",
            {"name": "mask_sinks", "k": [1, 5], "rank": ["clean", "as_run"]},
            {"name": "mask_random", "k": [1, 5], "match": ["count", "mass"]},
            {"name": "mask_sinks", "k": 1, "rows": "last", "for": "causal"},
            {"name": "mask_positions", "positions": [0], "since": ["first", "second"], "for": "causal"},
        ],
        "trace": {"problems": 2, "keep": 1, "epsilons": [0, 3]},
        "mechanism": {"problems": 3, "k": [2]},
        "likelihood": {
            "models": [family["text"]],
            "texts": 3, "read": 8, "scored": 6,
            "conditions": ["none", {"name": "mask_sinks", "k": 1, "rows": ["last", "all"]}, {"name": "mask_random", "k": 1}],
        },
    }  # fmt: skip


@pytest.fixture(scope="session")
def study(small: dict[str, Any]) -> Study:
    return Study.from_dict(small)
