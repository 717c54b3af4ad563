"""Engines: which unit goes where, nothing imported from the working folder, and nothing left running."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_conditions import make_condition
from sinkscope.errors import StudyError
from sinkscope.study.engine import Ray, UnitQueue, choose_engine, command
from sinkscope.study.schema import Study
from sinkscope.study.units import Unit

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def unit(model: str, problems: int = 1, steps: int = 1, chunk: int = 0) -> Unit:
    return Unit(
        "answers", model, make_condition("none"), last=problems, chunk=chunk, decode={"steps": steps}, shown=model
    )


def cost(one: Unit) -> float:
    return float({"a": 1, "b": 5, "c": 2}[one.model] * one.last * one.decode["steps"])


UNITS = st.lists(st.builds(unit, st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99)))


@given(UNITS, st.lists(st.sampled_from(["a", "b", "c", None])))
def test_every_unit_is_taken_once_as_the_slow_way_would(units: list[Unit], loaded: list[str | None]) -> None:
    units = [replace(one, chunk=place) for place, one in enumerate(units)]  # ids of a plan are different
    waiting, left = UnitQueue(units, cost), list(units)
    for model in [*loaded, *[None] * len(units)]:
        at = Counter({"a": 2, "b": 1})
        taken = waiting.take(model, at)
        if not left:
            assert taken is None
            continue
        own = [one for one in left if one.model == model]
        if not own:
            shares = {
                name: sum(cost(one) for one in left if one.model == name) / (at[name] + 1)
                for name in dict.fromkeys(one.model for one in reversed(units)) if any(one.model == name for one in left)
            }  # fmt: skip
            best = max(shares.values())
            assert taken is not None and shares[taken.model] == pytest.approx(best)
            own = [one for one in left if one.model == taken.model]
        longest = max(cost(one) for one in own)
        assert taken is next(one for one in own if cost(one) == longest)
        left.remove(taken)
    assert len(waiting) == len(left) == 0


def test_a_unit_that_came_back_is_the_next_of_its_model() -> None:
    waiting = UnitQueue([unit("a", 9), unit("a", 3, chunk=1)], cost)
    first = waiting.take("a", Counter())
    assert first is not None and first.last == 9
    waiting.put_back(first)
    assert waiting.take("a", Counter()) is first and len(waiting) == 1


@pytest.mark.parametrize(
    "words",
    [{"workers": 0}, {"gpus_per_worker": -1}, {"gpus_per_worker": 1.5}, {"cpus_per_worker": float("nan")},
     {"cpus_per_worker": 0}, {"address": " "}],
)  # fmt: skip
def test_senseless_choices_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(StudyError, match=r"worker|address|GPU"):
        Ray(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choice", "device"),
    [
        (Ray(gpus_per_worker=1), None),
        (Ray(gpus_per_worker=1), "cpu"),
        (Ray(gpus_per_worker=2), "cuda"),
        (Ray(), "cuda"),
    ],
)
def test_gpus_that_nobody_would_use_are_refused(choice: Ray, device: str | None) -> None:
    with pytest.raises(StudyError, match=r"--device|--gpus-per-worker"):
        choice.fit(device)


def test_workers_beside_an_engine_and_unknown_engines_are_refused() -> None:
    with pytest.raises(StudyError, match="workers=3"):
        choose_engine(Ray(), workers=3)
    with pytest.raises(StudyError, match="local or ray"):
        choose_engine("cloud")


def test_a_worker_imports_nothing_from_the_working_folder(tmp_path: Path, study: Study) -> None:
    for name in ("sinkscope", "json", "torch"):
        (tmp_path / f"{name}.py").write_text("open('hijacked', 'w').close()")
    asked = [
        {"study": study.to_dict(), "folder": "."},
        {"unit": {"kind": "no such kind", "model": "a", "condition": {"name": "none"}}, "prompts": []},
    ]
    with subprocess.Popen(
        command(), cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in asked:
            process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        assert "error" in json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(timeout=10) == 0
    assert not (tmp_path / "hijacked").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_killed_parent_leaves_no_process_after_two_seconds(number: signal.Signals, tmp_path: Path) -> None:
    long = {
        "name": "long", "models": ["tiny-llada", "tiny-dream"], "tasks": [{"name": "arithmetic", "problems": 400}],
        "chunk": 400, "decode": {"length": 64}, "conditions": ["none", {"name": "mask_sinks", "k": 1}],
    }  # fmt: skip
    file = tmp_path / "long.yaml"
    file.write_text(json.dumps(long))
    words = ["study", str(file), "--workers", "2", "--no-report", "-o", str(tmp_path / "run")]
    start = [sys.executable, "-c", "import sys; from sinkscope.cli import main; main(sys.argv[1:])", *words]
    heard = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # nohup around the tests would be inherited
    with (
        subprocess.Popen(
            start,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=heard,  # noqa: PLW1509
        ) as parent,
        contextlib.ExitStack() as ending,
    ):
        ending.callback(parent.kill)
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "run.json").exists() and time.monotonic() < deadline:
            assert parent.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # both workers are in the middle of a unit
        workers = children(parent.pid)
        assert len(workers) == 2 and not list((tmp_path / "run" / "units").iterdir())
        parent.send_signal(number)
        deadline = time.monotonic() + 2
        assert parent.wait(timeout=2) == (-number if number is signal.SIGKILL else 128 + number)
        assert parent.stderr is not None and b"Traceback" not in parent.stderr.read()
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def alive(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"
