"""Starting is quick: help needs no torch, and the package adds little to torch and transformers.

Processor time is measured, not the clock: what else the machine is doing must not decide.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FAMILIAR = "import torch, transformers; from transformers import LlamaForCausalLM, Qwen2ForCausalLM, DynamicCache"
CLOCK = "from time import process_time; started = process_time()"
REPORT = "import sys; print(process_time() - started, 'torch' in sys.modules)"


def measured(before: str, code: str, below: float) -> tuple[float, bool]:
    """Processor seconds of `code` in a new process after `before`, the best of three; whether torch was imported."""
    results = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", f"{before}\n{CLOCK}\n{code}\n{REPORT}"], check=True, capture_output=True, text=True
        )
        seconds, torch = done.stdout.split()[-2:]
        results.append((float(seconds), torch == "True"))
        if results[-1][0] < below:
            break
    return min(results)


def test_help_is_quick_and_needs_no_torch() -> None:
    seconds, torch = measured("", "from sinkscope.cli.app import run; run(['--help'])", below=1)
    assert seconds < 1
    assert not torch


def test_the_package_adds_little_to_torch_and_transformers() -> None:
    ours = "import sinkscope as sk; [getattr(sk, name) for name in sk.__all__]"
    seconds, _ = measured(FAMILIAR, ours, below=2)
    assert seconds < 2


def test_what_loads_no_model_needs_no_transformers() -> None:
    ours = "sinkscope.models, sinkscope.decoding, sinkscope.report, sinkscope.study.run"
    code = f"import sys, {ours}; print(*({{'transformers', 'torch._dynamo'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("running", "frozen"), [(True, False), (True, True), (False, False)])
def test_the_first_load_leaves_the_garbage_collector_as_it_was(running: bool, frozen: bool) -> None:
    code = f"""
import gc
{"" if running else "gc.disable()"}
{"gc.freeze()" if frozen else ""}
from sinkscope.models.weights import import_transformers
import_transformers()
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(running), str(frozen)]


def test_the_program_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sinkscope", "--version"], check=True, capture_output=True, text=True)
    import sinkscope as sk

    assert done.stdout.strip() == sk.__version__


def test_public_names_are_there() -> None:
    import sinkscope as sk

    for name in sk.__all__:
        assert getattr(sk, name) is not None
    assert set(sk.__all__) <= set(dir(sk))
