"""The Triton kernels, in Triton's interpreter: it must be switched on before triton is imported, hence the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sinkscope.attention.attend import attend, choose_backend
from sinkscope.errors import AttentionError

pytest.importorskip("triton", reason="triton is there on Linux only")


def test_kernels_in_the_interpreter(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            str(Path(__file__).with_name("triton_interpreted.py")),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_tensors_on_the_cpu_are_refused() -> None:
    q = torch.zeros(1, 1, 2, 4)
    assert choose_backend(q) == "tiled"
    with pytest.raises(AttentionError, match="needs tensors on CUDA"):
        attend(q, q, q, backend="triton")


@pytest.fixture(scope="module")
def ahead_of_time() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "triton_aot.py"
    spec = importlib.util.spec_from_file_location("triton_aot", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_aot"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("architecture", [80, 89, 90, 100])
@pytest.mark.parametrize("index", range(8))
def test_what_is_launched_builds_without_a_gpu(ahead_of_time: ModuleType, index: int, architecture: int) -> None:
    launched = list(ahead_of_time.launched())
    assert len(launched) == 8
    check_build(ahead_of_time, launched[index], architecture)


@pytest.mark.parametrize("kernel", ["output", "received"])
@pytest.mark.parametrize("architecture", [89, 90])
def test_large_heads_fit(ahead_of_time: ModuleType, kernel: str, architecture: int) -> None:
    check_build(ahead_of_time, ahead_of_time.Variant(kernel, "bf16", "keys", drop="drop", dim=256), architecture)


def check_build(ahead_of_time: ModuleType, variant: Any, architecture: int) -> None:
    launch = ahead_of_time.launch_of(variant, architecture)
    built = ahead_of_time.build(variant, architecture)
    assert built.bytes > 1000
    assert built.spills < 1024  # tiles that are too large spilled 18 KB and more
    assert 0 < built.registers <= ahead_of_time.REGISTERS_MOST
    assert built.shared <= launch.shared <= ahead_of_time.CARDS[architecture].shared
    assert built.loop > 0


def test_what_is_launched_is_among_all(ahead_of_time: ModuleType) -> None:
    every, some = list(ahead_of_time.every(("bf16",), (128,))), list(ahead_of_time.launched())
    assert len(every) == 2 * 4 * 2 * 3
    assert set(some) <= set(every)
