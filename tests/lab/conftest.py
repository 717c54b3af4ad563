"""A recipe so small that a test can train it."""

import pytest
import torch

from lab.recipe import Recipe, recipe_from_dict

SMALL = {
    "name": "small",
    "family": "llada",
    "steps": 30,
    "batch": 8,
    "chunks": 2,
    "save_every": 5,
    "probe_every": 10,
    "accuracy_every": 1000,
    "log_every": 5,
    "shape": {"width": 32, "layers": 2, "heads": 2, "ffn": 48, "positions": 128},
    "data": {"kinds": {"recall": 1, "arithmetic": 1}, "difficulty": {"recall": 1, "arithmetic": 1}, "canvas": [12, 16]},
    "optimiser": {"warmup": 5},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small():
    def make(**changes: object) -> Recipe:
        return recipe_from_dict({**SMALL, **changes})

    return make
