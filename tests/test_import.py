"""Starting is quick: help needs no torch, and the package adds little to torch and transformers.

Processor time is measured, not the clock: what else the machine is doing must not decide.
"""

from __future__ import annotations

import resource
import subprocess
import sys

FAMILIAR = "import torch, transformers; from transformers import LlamaForCausalLM, Qwen2ForCausalLM, DynamicCache"


def seconds(*arguments: str) -> float:
    """Processor seconds of a Python process, the better of two."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once(), once())


def test_help_is_quick_and_needs_no_torch() -> None:
    assert seconds("-m", "sinkscope", "--help") < 1
    code = "import sys; from sinkscope.cli.app import build; build(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_adds_little_to_torch_and_transformers() -> None:
    ours = "import sinkscope as sk; [getattr(sk, name) for name in sk.__all__]"
    assert seconds("-c", f"{FAMILIAR}; {ours}") - seconds("-c", FAMILIAR) < 2


def test_public_names_are_there() -> None:
    import sinkscope as sk

    for name in sk.__all__:
        assert getattr(sk, name) is not None
    assert set(sk.__all__) <= set(dir(sk))
