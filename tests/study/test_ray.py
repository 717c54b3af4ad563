"""The Ray engine on a real cluster of three nodes on this machine: same bytes, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_conditions import make_condition
from sinkscope.cli.app import run as command
from sinkscope.errors import StudyError
from sinkscope.study.engine import Ray
from sinkscope.study.problem_sets import ProblemSets
from sinkscope.study.ray import Cluster
from sinkscope.study.run import Run, run
from sinkscope.study.run import load_facts as models_of
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, units_of

os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112  read when ray is imported; a busy machine is slow
ray = pytest.importorskip("ray", reason="the extra ray is not installed")

NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # Ray replaces 127.0.0.1 by the machine's outer address
STORE = 200 << 20  # bytes
SAME = ("results.json", "results.parquet")


class Nodes:
    """The cluster, and its nodes by address."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as LocalCluster

        self.cluster: Any = LocalCluster()
        self.nodes = {address: self.add(address) for address in NODES[:2]}

    def add(self, address: str, **environment: str) -> Any:
        return self.cluster.add_node(
            node_ip_address=address, num_cpus=1, object_store_memory=STORE, include_dashboard=False,
            env_vars=environment or None,
        )  # fmt: skip


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of one CPU; the third has another home folder, in which no model is."""
    made = Nodes()
    made.nodes[NODES[2]] = made.add(NODES[2], HOME=str(tmp_path_factory.mktemp("home")))
    ray.init(address=made.cluster.address, _node_ip_address=NODES[0], log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.cluster.shutdown()


@pytest.fixture(scope="module")
def plan(small: dict[str, Any]) -> Study:
    """Every kind of unit, and few of each."""
    conditions = ["none", "noop", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}]
    return Study.from_dict({**small, "conditions": conditions, "tasks": small["tasks"][:1]})


@pytest.fixture(scope="module")
def local(plan: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(plan, tmp_path_factory.mktemp("local") / "run", workers=1)


def same_bytes(made: Path, local: Run) -> None:
    for name in SAME:
        assert (made / name).read_bytes() == (local.folder / name).read_bytes(), name
    kept = [sorted(path.name for path in (folder / "traces").iterdir()) for folder in (made, local.folder)]
    assert kept[0] == kept[1] and kept[0]
    assert not list(made.rglob("*.partial"))


def alive(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"


def gone(processes: set[int], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, processes))


class Disturbed:
    """Called after every unit: does something once, at each of the counts that are asked for."""

    def __init__(self, engine: Cluster, at: dict[int, Callable[[], None]]) -> None:
        self.engine, self.at = engine, at
        self.pids: set[int] = set()
        self.counts: list[int] = []

    def __call__(self, done: int, total: int) -> None:
        self.pids |= {worker.pid for worker in self.engine.workers if worker.pid is not None}
        self.counts.append(done)
        if done in self.at:
            self.at.pop(done)()


def test_a_killed_worker_and_a_lost_node_change_no_byte(
    nodes: Nodes, plan: Study, local: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "sinkscope.py").write_text(f"open({str(hostile / 'hijacked')!r}, 'w').close()")
    monkeypatch.chdir(hostile)
    engine = Cluster(Ray())

    def kill_a_worker() -> None:
        busy = next(w for w in engine.workers if w.unit is not None and w.node != NODES[2])
        assert busy.pid is not None
        os.kill(busy.pid, signal.SIGKILL)

    def lose_a_node() -> None:
        assert any(worker.node == NODES[2] for worker in engine.workers)
        nodes.cluster.remove_node(nodes.nodes.pop(NODES[2]), allow_graceful=False)

    disturbed = Disturbed(engine, {2: kill_a_worker, 8: lose_a_node})
    try:
        made = run(plan, tmp_path / "run", engine, on_progress=disturbed)
        same_bytes(made.folder, local)
        assert not disturbed.at and disturbed.counts == list(range(len(disturbed.counts)))  # nothing done twice
        assert not (hostile / "hijacked").exists()
        assert gone(disturbed.pids)
    finally:
        if NODES[2] not in nodes.nodes:
            home = str(tmp_path / "home")
            Path(home).mkdir()
            nodes.nodes[NODES[2]] = nodes.add(NODES[2], HOME=home)


def test_a_killed_driver_is_gone_with_its_workers_and_goes_on(
    nodes: Nodes, plan: Study, local: Run, tmp_path: Path
) -> None:
    asked = {"address": nodes.cluster.address, "study": plan.to_dict(), "out": str(tmp_path / "run")}
    script = Path(__file__).with_name("driver.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        driver.stdin.write(json.dumps(asked))
        driver.stdin.close()
        pids: set[int] = set()
        for line in driver.stdout:
            if not line.startswith("{"):  # Ray may print
                continue
            told = json.loads(line)
            pids |= set(told["pids"])
            if told["done"] >= 3:
                break
        driver.kill()
    assert pids and gone(pids)
    units = tmp_path / "run" / "units"
    before = {path.name: path.stat().st_mtime_ns for path in units.glob("*.json")}
    assert len(before) >= 3 and not (tmp_path / "run" / "results.json").exists()
    said: list[str] = []
    made = run(plan, tmp_path / "run", Ray(workers=2), on_message=said.append)
    same_bytes(made.folder, local)
    assert any(line.startswith(f"{len(before)} of ") for line in said)
    assert all((units / name).stat().st_mtime_ns == when for name, when in before.items())


def test_what_fails_is_tried_three_times_and_what_a_node_lacks_elsewhere(
    nodes: Nodes, plan: Study, family: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes have different homes, so a model under ~ is on the second alone; a unit without prompts fails everywhere."""
    home = Path(family["llada"]).parent
    monkeypatch.setenv("HOME", str(home))
    model = f"~/{Path(family['llada']).name}"
    said: list[str] = []
    engine = Cluster(Ray(), said.append)
    # The second node is started anew under a home that has the model; the others have theirs.
    nodes.cluster.remove_node(nodes.nodes.pop(NODES[1]), allow_graceful=False)
    deadline = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) > 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    nodes.nodes[NODES[1]] = nodes.add(NODES[1], HOME=str(home))
    study = Study.from_dict({**plan.to_dict(), "models": [model], "likelihood": {}})
    try:
        facts = models_of(study, engine, tmp_path, said.append)
        units = units_of(study, facts)
        sets = ProblemSets(study)
        broken = Job(replace(units[0], shown="broken"))
        jobs = [broken, *map(sets.make_job, units)]
        done: list[str] = []
        work = engine.work(study, jobs, tmp_path, lambda: False)
        with pytest.raises(StudyError, match=r"broken.* failed 3 times \(.*everything else is stored") as caught:
            done.extend(unit.id for unit, _ in work)  # what comes before the error is kept
        assert sorted(done) == sorted(unit.id for unit in units)
        assert isinstance(caught.value.__cause__, RuntimeError) and "Traceback" in str(caught.value.__cause__)
        lacking = [line for line in said if line.startswith(f"Node {NODES[2]} cannot load {model}")]
        assert len(lacking) == 1
        nowhere = Study.from_dict({**study.to_dict(), "models": [str(tmp_path / "nowhere")]})
        with pytest.raises(StudyError, match=r"Node 127\.0\.0\.\d cannot load .*nowhere"):
            models_of(nowhere, engine, tmp_path, said.append)
    finally:
        engine.close()


def test_a_cluster_without_what_a_worker_needs_is_told(
    nodes: Nodes, plan: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StudyError, match="Expected a node with 7 CPUs"):
        run(plan, tmp_path / "run", Ray(cpus_per_worker=7))
    assert command(["study", "quick", "--engine", "ray", "--gpus-per-worker", "1", "-o", str(tmp_path / "b")]) == 2
    assert "--device cuda" in capsys.readouterr().err


def test_without_an_address_a_run_does_not_join_the_cluster_of_others(nodes: Nodes) -> None:
    script = "import ray\nfrom sinkscope.study.ray import _connect\n_connect(ray, None)\nprint(len(ray.nodes()))"
    own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    said = subprocess.run([sys.executable, "-c", script], env=own, stdout=subprocess.PIPE, text=True, check=True)
    assert len(ray.nodes()) >= 2 and said.stdout.split()[-1] == "1"


# ---- benchmarks, by the same workers


def stored_units(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "units").iterdir()}


def test_an_evaluation_writes_the_same_bytes(nodes: Nodes, tmp_path: Path) -> None:
    from sinkscope.conditions import Condition
    from sinkscope.study.table1 import evaluate

    strong = "mask_sinks:k=2,above={rule: head_share, epsilon: 0.2}"
    words: dict[str, Any] = {"settings": {"length": 8}, "limit": 6, "batch_size": 2, "seed": 3}
    for number, change in enumerate(
        (make_condition("none"), Condition.parse(strong), Condition.parse("mask_random:k=1"))
    ):
        here, there = tmp_path / f"here-{number}", tmp_path / f"there-{number}"
        near = evaluate("tiny-llada", ["sinkscope_arithmetic"], change, out=here, **words)
        far = evaluate(
            "tiny-llada", ["sinkscope_arithmetic"], change, out=there, engine=Ray(workers=2), workers=None, **words
        )
        assert near["tasks"] == far["tasks"] and stored_units(here) == stored_units(there)


def test_table_1_writes_the_same_bytes_and_goes_on(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "tiny-llada", "--task", "sinkscope_recall", "-n", "3", "--ks", "1", "--set", "length=8"]
    words += ["--batch-size", "2", "--traced", "1"]
    assert command(["table1", *words, "-o", str(tmp_path / "here")]) == 0
    elsewhere = ["--engine", "ray", "--workers", "2", "-o", str(tmp_path / "there")]
    assert command(["table1", *words, *elsewhere]) == 0
    kept = stored_units(tmp_path / "there")
    assert kept == stored_units(tmp_path / "here")
    results = [(tmp_path / place / "results.json").read_bytes() for place in ("here", "there")]
    assert results[0] == results[1]
    assert command(["table1", *words, *elsewhere]) == 0  # nothing is asked again
    assert stored_units(tmp_path / "there") == kept
    capsys.readouterr()
    assert command(["table1", *words, "--workers", "2", "-o", str(tmp_path / "no")]) == 2
    assert "--workers would have no effect" in capsys.readouterr().err
