"""What every test runs under: one thread, no network, and nothing of the user's own Hub cache."""

from __future__ import annotations

import os
import platform

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if platform.machine() == "x86_64":  # the kernels that the golden data were made with; wider ones add in another order
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

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
