"""What every test runs under: one thread, no network, and nothing of the user's own Hub cache."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("sinkscope", max_examples=30, deadline=None, derandomize=True)
settings.load_profile("sinkscope")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Weights that a test makes up are the same in every order of the tests."""
    torch.manual_seed(0)
