"""The Triton kernels, in Triton's interpreter: it must be switched on before triton is imported, hence the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(
    ("kernel", "dtype", "mask", "block", "drop"),
    [("output", "bf16", "bool", 32, "clean"), ("received", "fp32", "additive", 1, "keep_self")],
)
def test_kernels_build_without_a_gpu(
    ahead_of_time: ModuleType, kernel: str, dtype: str, mask: str, block: int, drop: str, architecture: int
) -> None:
    built = ahead_of_time.build(ahead_of_time.Variant(kernel, dtype, mask, block, drop), architecture)
    assert built.bytes > 1000
    assert built.spills < 1024  # a few variants spill some bytes; tiles that are too large spilled 18 KB and more
    assert 0 < built.registers <= ahead_of_time.REGISTERS_MOST
    assert 0 < built.shared <= ahead_of_time.SHARED_MOST[architecture]


def test_every_choice_occurs_among_the_few(ahead_of_time: ModuleType) -> None:
    every, few = list(ahead_of_time.variants(("bf16",), (128,))), list(ahead_of_time.few(("bf16",), (128,)))
    assert len(every) == 3 * 3 * (4 + 3)
    assert set(few) <= set(every)
    for name in ("kernel", "mask", "block", "drop"):
        assert {getattr(one, name) for one in few} == {getattr(one, name) for one in every}
