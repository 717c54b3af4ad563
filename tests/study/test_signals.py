"""SIGTERM and SIGHUP in the middle of a study: what was finished is stored, and the same command goes on to the same end."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from sinkscope.study.run import Stop
from sinkscope.study.schema import Study

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def started(words: list[str]) -> subprocess.Popen[str]:
    start = [sys.executable, "-c", "import sys; from sinkscope.cli import main; main(sys.argv[1:])", *words]
    heard = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # nohup around the tests would be inherited
    return subprocess.Popen(
        start,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,  # noqa: PLW1509
    )


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, "1"), (signal.SIGHUP, "2"), (signal.SIGTERM, "2")])
def test_what_was_finished_is_stored(
    number: signal.Signals, workers: str, family: dict[str, str], tmp_path: Path
) -> None:
    study = Study.load("quick").changed(models=[family["llama"], family["llada"]], problems=3)
    file = tmp_path / "study.yaml"
    file.write_text(study.to_yaml())
    out = tmp_path / "run"
    words = ["study", str(file), "--workers", workers, "--no-report", "--json", "-o", str(out)]
    process = started(words)
    units = out / "units"
    while process.poll() is None and not (units.is_dir() and len(list(units.glob("*.json"))) >= 3):
        time.sleep(0.01)
    process.send_signal(number)
    ended = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - ended < 2
    assert process.returncode == 128 + number and "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("sinkscope: ")] == ["sinkscope: Ended by a signal."]
    there = sorted(units.glob("*.json"))
    assert len(there) >= 3 and f"stopped: {len(there)} of " in said
    assert not list(out.rglob("*.partial"))
    for path in there:
        assert json.loads(path.read_text())["result"]
    when = {path.name: path.stat().st_mtime_ns for path in there}
    again = started(words)
    printed, said = again.communicate(timeout=300)
    assert again.returncode == 0 and f"{len(there)} of " in said, said
    assert all((units / name).stat().st_mtime_ns == before for name, before in when.items())
    assert json.loads(printed)["run"]["units"] > len(there)


@contextmanager
def handled(number: signal.Signals) -> Iterator[None]:
    def end(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, end)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_unit_is_stored_waits_for_it(number: signal.Signals) -> None:
    done: list[str] = []

    def store() -> None:
        with handled(number), Stop().listening() as stop:
            with stop.storing():
                os.kill(os.getpid(), number)
                done.append("stored")
            done.append("went on")

    def wait() -> None:
        with handled(number), Stop().listening():
            os.kill(os.getpid(), number)
            done.append("went on")

    for work in (store, wait):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert done == ["stored"]


def test_the_first_ctrl_c_asks_and_the_second_ends() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and background jobs ignore it
    done: list[str] = []

    def work() -> None:
        with Stop().listening() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop()
            with stop.storing():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("stored")
            done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        work()
    found = signal.signal(signal.SIGINT, before)
    assert done == ["stored"] and found is signal.default_int_handler
