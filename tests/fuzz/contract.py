"""What every input may lead to: a result, or one sentence without control characters and exit code 2; soon, and small.

To add a fuzzer: `@fuzz` above `@given`, and `told` (a command) or `answered` (a call) inside.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings

from sinkscope.cli.app import run
from sinkscope.errors import SinkscopeError

# What a command imports is imported here, so that the first case is not held to more than the others.
for _name in (
    "sinkscope.study.run", "sinkscope.study.units.accuracy", "sinkscope.report", "sinkscope.report.printing", "lab.train",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.auto.tokenization_auto", "transformers.utils.chat_template_utils",
):  # fmt: skip
    importlib.import_module(_name)

SECONDS = 5.0  # of the processor: what else the machine is doing must not decide
MEGABYTES = 500
CASES = int(os.environ.get("SINKSCOPE_FUZZ", "0"))  # a few in the tests, as many as wanted with `make fuzz`
fuzz = settings(
    max_examples=CASES or 30,
    deadline=None,
    derandomize=not CASES,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def told(*words: str, stdin: str = "", run: Callable[[list[str]], int] = run) -> Outcome:
    """Run a command line and hold it to the contract; what is wrong is an AssertionError, a bug its own exception.

    run: another program than sinkscope's.
    """
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), bounded():
            code = run(list(words))
    finally:
        sys.stdin = before
    found = Outcome(code, out.getvalue(), err.getvalue())
    # A model that is there and not sound is what `check` is for: the documented exit code of a failed check is 1.
    failed_check = words[:1] == ("check",) and code == 1 and " checks failed; " in found.err
    assert code in (0, 2) or failed_check, f"exit code {code} of {words}"
    for text in (found.out, found.err):
        assert all(sign.isprintable() or sign in "\n\t" for sign in text), f"a control character from {words}"
    if code:
        sentences = [line for line in found.err.splitlines() if line.startswith("sinkscope: ")]
        assert len(sentences) == 1 and found.err.splitlines()[-1] == sentences[0], f"{words} said {found.err!r}"
        assert "Traceback" not in found.err
    return found


def made(*words: str) -> None:
    """Run a command that makes what a fuzzer will spoil; it may take its time."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run(list(words)) == 0


def answered(call: Callable[[], Any]) -> Any:
    """What a call gives, or the SinkscopeError that it raises; anything else it raises is a bug and goes through."""
    with bounded():
        try:
            return call()
        except SinkscopeError as error:
            found = error
    assert str(found).strip(), "an error without a sentence"
    return found


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within 5 seconds and 500 megabytes."""
    started, held = time.process_time(), _peak()
    yield
    assert time.process_time() - started < SECONDS, "it took too long"
    assert _peak() - held < MEGABYTES, "it took too much memory"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
