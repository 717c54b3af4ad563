"""A soak: studies on two workers for hours, while processes are killed, the disk is filled and the clock jumps.

    python -m lab.soak --minutes 120 --out lab/results/soak

An undisturbed run is made first. Then the same study is run again and again, by local processes, in shards and on Ray in
turn. Every so often something happens to it: the driver or a worker is killed with −9, the disk is full for some seconds,
the clock jumps by hours. A run that ended starts again until it is finished. Then it must have every unit, none stored
twice, and the bytes of the undisturbed run. Memory of drivers and workers is sampled. Writes soak.json,
soak.md and soak.svg.

The disk is a tmpfs of its own that is filled up, where this process may mount one. Else files may not grow beyond a
kilobyte (RLIMIT_FSIZE) in the process that starts next. The clock is `time.time` of every Python process, replaced at
its start: nothing else of the machine is touched, and only processes that were started here are killed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ENGINES = ("local", "shards", "ray")
MODELS = ("tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada")
KINDS = ("kill driver", "kill worker", "fill disk")
SAME = ("results.json", "results.parquet", "study.yaml")
FULL_FOR = 6.0  # seconds
SAMPLE = 1.0  # seconds between two looks at the memory
TRIES = 5  # of a run that ends with an error by itself
SETTLED = 20  # samples of a process before its growth is judged
DISK = 256 << 20  # bytes of the tmpfs
MB = 1 << 20
ADOPT = 36  # PR_SET_CHILD_SUBREAPER
# Read by every Python process at its start, from a folder on PYTHONPATH: the clock is off by what the file says.
CLOCK = """import time as _time

_real, _file = _time.time, {file!r}


def _jumping():
    try:
        with open(_file) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()


_time.time = _jumping
"""


def plan(problems: int) -> str:
    """The study, as a YAML file."""
    return f"""name: soak
about: A small study of every kind of condition, run under disturbances.
models: [{", ".join(MODELS)}]
tasks:
  - {{name: arithmetic, problems: {problems}}}
  - {{name: recall, problems: {problems}}}
chunk: 2
decode: {{length: 16}}
conditions:
  - none
  - noop
  - {{name: mask_sinks, k: [1, 5]}}
  - {{name: mask_random, k: [1, 5]}}
trace: {{problems: 2, keep: 1}}
"""


# ---- processes that were started here


@dataclass(frozen=True)
class Process:
    """A process by its id and the time of its start: the id alone may be somebody else's by now."""

    pid: int
    born: str
    driver: bool

    @property
    def alive(self) -> bool:
        return _born(self.pid) == self.born

    def kill(self) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    @property
    def memory(self) -> float | None:
        """Resident, in MB."""
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * resource.getpagesize() / MB
        return None


def _stat(pid: int | str) -> list[str] | None:
    """Fields behind the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _born(pid: int) -> str | None:
    found = _stat(pid)
    return None if found is None or found[0] == "Z" else found[19]


def descendants(root: int) -> list[Process]:
    """Of a process, itself first; none where it is gone."""
    parents = {
        int(one.name): int(found[1])
        for one in Path("/proc").iterdir()
        if one.name.isdigit() and (found := _stat(one.name))
    }
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return [Process(pid, born, pid == root) for pid in tree if (born := _born(pid)) is not None]


def is_worker(process: Process) -> bool:
    """A process that holds a model: of the local pool, or an actor of Ray, which calls itself so."""
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    actor = command.startswith("ray::") and not command.startswith("ray::IDLE")
    return not process.driver and (actor or "sinkscope.study.engine" in command)


# ---- what happens to a run


@dataclass
class Surroundings:
    """The disk and the clock of the runs."""

    folder: Path
    mounted: bool
    clock: Path

    @property
    def filler(self) -> Path:
        return self.folder / "filler"

    def environment(self) -> dict[str, str]:
        here = str(self.clock.parent)
        ours = str(Path(__file__).parents[1])
        quiet = {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "RAY_DEDUP_LOGS": "0",
        }
        return {**os.environ, **quiet, "PYTHONPATH": f"{here}{os.pathsep}{ours}"}

    def fill(self) -> None:
        with suppress(OSError), self.filler.open("wb") as file:
            while True:
                file.write(bytes(MB))
                file.flush()

    def free(self) -> None:
        self.filler.unlink(missing_ok=True)

    def jump(self, source: random.Random) -> float:
        offset = source.choice([-1, 1]) * source.uniform(60, 30 * 3600)
        self.clock.write_text(str(offset))
        return offset


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    with tempfile.TemporaryDirectory(prefix="soak-") as where:
        folder, clock = Path(where) / "disk", Path(where) / "clock"
        folder.mkdir()
        clock.mkdir()
        (clock / "offset").write_text("0")
        (clock / "sitecustomize.py").write_text(CLOCK.format(file=str(clock / "offset")))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        mounted = (
            shutil.which("mount") is not None
            and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        )
        try:
            yield Surroundings(folder, mounted, clock / "offset")
        finally:
            for one in descendants(os.getpid())[1:]:
                one.kill()
            if mounted:
                subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


@dataclass
class Cycle:
    """One run of the study, begun as often as it was stopped."""

    engine: str
    began: float
    seconds: float = 0.0
    starts: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)  # ended with an error, and nothing had been done to it
    units: int = 0
    lost: int = 0  # stored once, and gone at the end; or never stored
    twice: int = 0  # stored again though they were there
    equal: bool = False
    finished: bool = False


@dataclass
class Soak:
    """All that a soak keeps in mind."""

    study: Path
    around: Surroundings
    source: random.Random
    every: float
    began: float
    until: float
    samples: list[dict[str, Any]] = field(default_factory=list)
    known: dict[tuple[int, str], Process] = field(default_factory=dict)
    looked: float = 0.0
    loaded: bool = False  # a unit was stored since the last start: what grows from now on is no loading

    def now(self) -> float:
        return time.monotonic() - self.began

    def start(self, command: Sequence[str], full: bool = False) -> subprocess.Popen[bytes]:
        with (self.around.clock.parent / "log").open("ab") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "sinkscope", *command], env=self.around.environment(), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        if full:
            resource.prlimit(made.pid, resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return made

    def look(self, drivers: Sequence[subprocess.Popen[bytes]], engine: str) -> None:
        """Remember who is there, and how much memory they have."""
        if time.monotonic() - self.looked < SAMPLE:
            return
        self.looked = time.monotonic()
        for driver in drivers:
            for process in descendants(driver.pid):
                self.known[process.pid, process.born] = process
                if (process.driver or is_worker(process)) and (memory := process.memory):
                    role, name = "driver" if process.driver else "worker", f"{process.pid}-{process.born}"
                    row = {"at": round(self.now(), 1), "engine": engine, "role": role, "process": name}
                    self.samples.append({**row, "memory": round(memory, 1), "loaded": self.loaded})

    def clear(self) -> None:
        """What a killed driver left behind ends by itself within seconds; whatever does not is ended here."""
        patience = time.monotonic() + 15
        while any(one.alive for one in self.known.values()) and time.monotonic() < patience:
            time.sleep(0.2)
        for one in [*self.known.values(), *descendants(os.getpid())[1:]]:
            one.kill()
        self.known.clear()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # ---- one run

    def cycle(self, engine: str, folder: Path, reference: Path) -> Cycle:
        done, full = Cycle(engine, self.now()), False
        stored: dict[str, tuple[int, int]] = {}
        while not done.finished:
            drivers = [self.start(command, full) for command in _commands(engine, self.study, folder)]
            done.starts, full = done.starts + 1, False
            event = self._wait(drivers, engine, folder)
            codes = [driver.poll() for driver in drivers]
            if event is not None:
                done.events.append(event)
                full = event["kind"] == "fill disk" and not self.around.mounted
            elif any(codes) and not (done.events and done.events[-1]["kind"] == "fill disk"):
                log = (self.around.clock.parent / "log").read_text(errors="replace")
                done.failures.append({"at": round(self.now(), 1), "codes": codes, "log": log[-1500:]})
                print(f"{engine} ended with {codes} though nothing had happened:\n{log[-3000:]}", flush=True)
                if len(done.failures) >= TRIES:
                    raise SystemExit(f"{engine} ended {TRIES} times though nothing had happened; given up.")
            elif not any(codes):
                done.finished = True
            self.clear()
            done.twice += _changed(stored, _units(folder))
            stored |= _units(folder)
        if engine == "shards":
            merge = self.start(["merge", str(folder), "--no-report"])
            self._wait([merge], engine)
            assert merge.returncode == 0, "merge failed"
        found = _units(folder)
        wanted = set(_units(reference))
        done.units, done.seconds = len(found), round(self.now() - done.began, 1)
        done.lost = len(set(stored) - set(found)) + len(wanted - set(found))
        done.twice += _changed(stored, found)
        done.equal = all((folder / name).read_bytes() == (reference / name).read_bytes() for name in SAME)
        return done

    def _wait(
        self, drivers: Sequence[subprocess.Popen[bytes]], engine: str, folder: Path | None = None
    ) -> dict[str, Any] | None:
        """Until all have ended by themselves, or something happened to them; what did.

        The time to the next disturbance begins with the first unit that is stored, so that slow machines get on too.
        """
        self.loaded = False
        before, until = 0 if folder is None else len(_units(folder)), float("inf")
        while any(driver.poll() is None for driver in drivers):
            self.look(drivers, engine)
            time.sleep(0.1)
            if folder is not None and until == float("inf") and len(_units(folder)) > before:
                self.loaded = True
                until = time.monotonic() + self.every * self.source.uniform(0.1, 1.9)
            if time.monotonic() > until:
                return self._disturb(drivers, engine)
        return None

    def _disturb(self, drivers: Sequence[subprocess.Popen[bytes]], engine: str) -> dict[str, Any]:
        kind = self.source.choice(KINDS)
        alive = [driver for driver in drivers if driver.poll() is None]
        tree = [one for driver in alive for one in descendants(driver.pid)]
        self.known |= {(one.pid, one.born): one for one in tree}
        workers = [one for one in tree if is_worker(one)]
        if kind == "kill worker" and not workers:
            kind = "kill driver"
        event = {"at": round(self.now(), 1), "kind": kind, "clock": round(self.around.jump(self.source))}
        if kind == "fill disk" and self.around.mounted:
            self.around.fill()
            self._settle(drivers, engine, FULL_FOR)
            self.around.free()
        elif kind == "kill worker":
            self.source.choice(workers).kill()
            self._settle(drivers, engine, self.every)  # the driver may go on without it, or end and say so
        if kind != "kill worker" or self.source.random() < 0.5:
            for driver in alive:
                if driver.poll() is None and kind != "fill disk":
                    driver.kill()
        self._settle(drivers, engine, self.every if kind == "fill disk" else 5.0)
        for driver in drivers:
            if driver.poll() is None:
                driver.kill()
            driver.wait()
        return event

    def _settle(self, drivers: Sequence[subprocess.Popen[bytes]], engine: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(driver.poll() is None for driver in drivers):
            self.look(drivers, engine)
            time.sleep(0.1)


def _commands(engine: str, study: Path, folder: Path) -> list[list[str]]:
    words = ["study", str(study), "--out", str(folder), "--no-report"]
    if engine == "shards":
        return [[*words, "--workers", "1", "--shard", f"{index}/2"] for index in (1, 2)]
    return [[*words, "--workers", "2", *(["--engine", "ray"] if engine == "ray" else [])]]


def _units(folder: Path) -> dict[str, tuple[int, int]]:
    """Unit id → what changes when its file is written again."""
    found = {}
    for path in (folder / "units").glob("*.json"):
        with suppress(OSError):
            kept = path.stat()
            found[path.stem] = (kept.st_ino, kept.st_mtime_ns)
    return found


def _changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> int:
    return sum(before[name] != after[name] for name in before.keys() & after.keys())


# ---- what came out


def growth(samples: Sequence[dict[str, Any]], role: str) -> dict[str, Any]:
    """MB that processes of a role gained from the second quarter to the last of their lives after the first stored unit."""
    lives: dict[str, list[float]] = {}
    for one in (one for one in samples if one["role"] == role):
        lives.setdefault(one["process"], []).extend([one["memory"]] * one["loaded"])
    long = [life for life in lives.values() if len(life) >= SETTLED]
    gained = [
        statistics.mean(life[-len(life) // 4 :]) - statistics.mean(life[len(life) // 4 : len(life) // 2])
        for life in long
    ]
    peak = max((one["memory"] for one in samples if one["role"] == role), default=0.0)
    median = round(statistics.median(gained), 1) if gained else None
    worst = round(max(gained), 1) if gained else None
    return {
        "processes": len(lives),
        "judged": len(long),
        "median_growth": median,
        "largest_growth": worst,
        "peak": peak,
        "unit": "MB",
    }


def figure(found: dict[str, Any], samples: Sequence[dict[str, Any]], path: Path) -> None:
    """Memory of drivers and workers over the hours; a line where something happened."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"
    from matplotlib import pyplot

    colours = {"local": "#1f77b4", "shards": "#2ca02c", "ray": "#d62728"}
    drawn, axes = pyplot.subplots(2, 1, sharex=True, figsize=(9, 5), constrained_layout=True)
    for axis, role in zip(axes, ("driver", "worker"), strict=True):
        for engine, colour in colours.items():
            mine = [one for one in samples if one["role"] == role and one["engine"] == engine]
            axis.plot(
                [one["at"] / 60 for one in mine], [one["memory"] for one in mine], ".", ms=2, color=colour, label=engine
            )
        for cycle in found["cycles"]:
            for event in cycle["events"]:
                axis.axvline(event["at"] / 60, color="#bbbbbb", lw=0.5, zorder=0)
        axis.set_ylabel(f"{role}s, resident MB")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="lower right", markerscale=5)
    axes[1].set_xlabel("minutes; grey lines: something was killed, or the disk filled")
    drawn.savefig(path, format="svg", metadata={"Date": None})


def page(found: dict[str, Any]) -> str:
    """The same for readers, the conclusion first."""
    cycles, runs = found["cycles"], found["runs"]
    lines = [
        "# Soak", "",
        f"{found['equal']} of {runs} disturbed runs have the bytes of the undisturbed one. {found['lost']} units were lost, and "
        f"{found['twice']} were stored twice. {found['failures']} starts ended with an error though nothing had been done "
        "to them.", "",
        f"Command: `{found['command']}`. It took {found['minutes']:g} minutes. A run has {found['units']} units, on two workers.",
        "", "| engine | runs | starts | driver killed | worker killed | disk filled | equal |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for engine in dict.fromkeys(one["engine"] for one in cycles):
        mine = [one for one in cycles if one["engine"] == engine]
        kinds = [event["kind"] for one in mine for event in one["events"]]
        counts = [len(mine), sum(one["starts"] for one in mine), *(kinds.count(kind) for kind in KINDS)]
        lines.append(f"| {engine} | {' | '.join(map(str, counts))} | {sum(one['equal'] for one in mine)} |")
    disk = "a tmpfs that was filled up" if found["disk"] == "tmpfs" else "a limit on the size of files"
    lines += ["", f"The clock (`time.time`) jumped by up to 30 hours at each disturbance. The disk was {disk}.", ""]
    lines += [
        "| role | processes | of them judged | median growth | largest growth | peak |",
        "|---|---|---|---|---|---|",
    ]
    for role, one in found["memory"].items():
        grown = [
            "—" if value is None else f"{value:+.1f} MB" for value in (one["median_growth"], one["largest_growth"])
        ]
        lines.append(f"| {role} | {one['processes']} | {one['judged']} | {' | '.join(grown)} | {one['peak']:.0f} MB |")
    lines += ["", "Growth is from the second quarter to the last of the time after the first stored unit. Processes with fewer "
              f"than {SETTLED} samples, one per second, are not judged.", "",
              "![Memory of drivers and workers over time](soak.svg)", ""]  # fmt: skip
    return "\n".join(lines)


def write(soak: Soak, cycles: Sequence[Cycle], units: int, asked: argparse.Namespace) -> dict[str, Any]:
    """soak.json, soak.md and soak.svg, of all runs so far."""
    words = " ".join(f"--{name} {getattr(asked, name):g}" for name in ("minutes", "every", "problems", "seed"))
    events = [event["kind"] for one in cycles for event in one.events]
    found = {
        "command": f"python -m lab.soak {words}",
        "minutes": round(soak.now() / 60, 1), "units": units, "runs": len(cycles), "starts": sum(one.starts for one in cycles),
        "events": {kind: events.count(kind) for kind in KINDS}, "clock_jumps": len(events),
        "disk": "tmpfs" if soak.around.mounted else "RLIMIT_FSIZE",
        "lost": sum(one.lost for one in cycles), "twice": sum(one.twice for one in cycles),
        "failures": sum(len(one.failures) for one in cycles), "equal": sum(one.equal for one in cycles),
        "memory": {role: growth(soak.samples, role) for role in ("driver", "worker")},
        "cycles": [asdict(one) for one in cycles],
    }  # fmt: skip
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    (asked.out / "soak.md").write_text(page(found))
    figure(found, soak.samples, asked.out / "soak.svg")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=float, default=180, help="seconds between two disturbances, on average")
    parser.add_argument("--problems", type=int, default=40, help="of each of two tasks")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("lab/results/soak"))
    asked = parser.parse_args(arguments)
    ctypes.CDLL(None).prctl(ADOPT, 1)  # what a killed driver leaves behind becomes a child of this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was mounted and started is taken away
    engines = asked.engines.split(",")
    cycles: list[Cycle] = []
    with surroundings() as around:
        study = around.clock.parent / "soak.yaml"
        study.write_text(plan(asked.problems))
        began = time.monotonic()
        soak = Soak(study, around, random.Random(asked.seed), asked.every, began, began + 60 * asked.minutes)
        reference = around.folder / "undisturbed"
        first = soak.start(_commands("local", study, reference)[0])
        soak._wait([first], "local")
        assert first.returncode == 0, (around.clock.parent / "log").read_text()[-2000:]
        units = len(_units(reference))
        print(
            f"undisturbed: {units} units, {soak.now():.0f} s; the disk is {'a tmpfs' if around.mounted else 'RLIMIT_FSIZE'}"
        )
        while time.monotonic() < soak.until or len(cycles) < len(engines):
            engine = engines[len(cycles) % len(engines)]
            folder = around.folder / "run"
            cycles.append(soak.cycle(engine, folder, reference))
            shutil.rmtree(folder)
            last = cycles[-1]
            told = ", ".join(event["kind"] for event in last.events) or "nothing happened"
            found = write(soak, cycles, units, asked)
            print(f"{soak.now() / 60:.1f} min {engine}: {last.starts} starts ({told}); lost {last.lost}, twice {last.twice}, "
                  f"{'equal' if last.equal else 'NOT EQUAL'}", flush=True)  # fmt: skip
    print(json.dumps({name: value for name, value in found.items() if name != "cycles"}))
    return 0 if found["lost"] == found["twice"] == found["failures"] == 0 and found["equal"] == len(cycles) else 1


if __name__ == "__main__":
    sys.exit(main())
