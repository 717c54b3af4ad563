"""The Triton kernels, in Triton's interpreter: it must be switched on before triton is imported, hence the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
