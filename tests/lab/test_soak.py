"""The soak's own parts: whom it kills, what it counts, and the clock that jumps. The soak itself takes hours."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from lab import soak


def test_processes_are_known_by_their_start_and_killed_with_their_children() -> None:
    started = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    until = time.monotonic() + 10
    while len(tree := soak.descendants(started.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert [one.driver for one in tree] == [True, False] and all(one.alive and one.memory for one in tree)
    assert not soak.Process(started.pid, "another start", driver=True).alive
    soak.Process(os.getpid(), "another start", driver=False).kill()  # is somebody else's by now: nothing happens
    for one in tree:
        one.kill()
    started.wait()
    assert not any(one.alive for one in tree[:1])


def test_a_unit_that_is_stored_again_is_seen(tmp_path: Path) -> None:
    (tmp_path / "units").mkdir()
    for name in ("a", "b"):
        (tmp_path / "units" / f"{name}.json").write_text("{}")
    before = soak._units(tmp_path)
    assert set(before) == {"a", "b"} and soak._changed(before, soak._units(tmp_path)) == 0
    again = tmp_path / "again"
    again.write_text("{}")
    again.rename(tmp_path / "units" / "a.json")
    assert soak._changed(before, soak._units(tmp_path)) == 1


def test_the_clock_of_a_process_jumps(tmp_path: Path) -> None:
    around = soak.Surroundings(tmp_path, mounted=False, clock=tmp_path / "offset")
    (tmp_path / "sitecustomize.py").write_text(soak.CLOCK.format(file=str(around.clock)))
    offset = around.jump(random.Random(0))
    said = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"], env=around.environment())
    assert abs(float(said) - time.time() - offset) < 30 and abs(offset) >= 60


def test_growth_is_of_processes_that_lived_long_enough() -> None:
    own = {"role": "worker", "loaded": True}
    flat = [{**own, "process": "1", "memory": 100.0 + (at < 10) * -50, "loaded": at >= 10} for at in range(50)]
    leak = [{**own, "process": "2", "memory": 100.0 + at} for at in range(40)]
    brief = [{**own, "process": "3", "memory": 900.0}]
    found = soak.growth([*flat, *leak, *brief], "worker")
    assert (found["processes"], found["judged"], found["peak"]) == (3, 2, 900.0)
    assert found["largest_growth"] == 20.0 and found["median_growth"] == 10.0
    assert soak.growth([], "driver")["largest_growth"] is None
