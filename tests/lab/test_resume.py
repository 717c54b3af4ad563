"""A run that was killed goes on to the very same weights as one that was not."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from lab import checkpoint
from lab.errors import TrainingError
from lab.tiny import TinyRun
from lab.train import train

CHILD = """
import sys, torch
torch.set_num_threads(1)
from lab.train import train
train(sys.argv[1], sys.argv[2], quiet=True)
"""


def states(folder):
    return load_file(folder / checkpoint.STATE)


def equal(one, two):
    return set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


def step_of(folder):
    path = folder / checkpoint.STATE
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["run"])["step"]


@pytest.mark.parametrize("family", ["llada"])
def test_kill_9_and_resume_gives_the_same_bits(small, tmp_path, family):
    # Long enough to be hit in the middle; the signal leaves no chance to tidy up.
    recipe = small(family=family, steps=60, save_every=4)
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(recipe.to_dict()))
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file), str(killed)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        until = time.monotonic() + 300
        while step_of(killed) < 8 and child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    reached = step_of(killed)
    assert 8 <= reached < 60, "the child was not killed in the middle of its run"
    train(recipe, killed, quiet=True)
    train(recipe, whole, quiet=True)
    assert equal(states(killed), states(whole))
    assert equal(load_file(killed / "model/model.safetensors"), load_file(whole / "model/model.safetensors"))
    lines = [json.loads(line) for line in (killed / checkpoint.CURVE).read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})
    assert lines[-1]["step"] == 60


def test_training_learns_and_records_sinks(small, tmp_path):
    train(small(family="llama", steps=40), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / checkpoint.CURVE).read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    probes = [line for line in lines if "sink_share" in line]
    assert [line["step"] for line in probes] == [1, 10, 20, 30, 40]
    assert all(0 <= line["sink_share"] <= 1 and line["strongest"] >= 1 for line in probes)
    assert set(lines[-1]["accuracy"]) == {"recall", "arithmetic"}


@pytest.mark.parametrize("variant", ["off_by_one", "sink_token"])
@pytest.mark.parametrize("family", ["llama", "llada"])
def test_variants_train_and_keep_their_direction(small, tmp_path, family, variant):
    recipe = small(family=family, variant=variant, steps=2)
    run = TinyRun(recipe, tmp_path)
    losses = [run.one_step().loss for _ in range(2)]
    assert all(0 < loss < 20 for loss in losses)
    from lab.rollout import _logits

    ids = torch.randint(8, 100, (1, 12))
    changed = ids.clone()
    changed[0, -1] += 1
    with torch.no_grad():
        moved = (_logits(run.module, recipe, run.coder, ids) - _logits(run.module, recipe, run.coder, changed)).abs()
    assert bool(moved[0, 0].max() == 0) == (family == "llama")


def test_a_longer_recipe_may_go_on_but_another_one_may_not(small, tmp_path):
    train(small(steps=4), tmp_path / "run", quiet=True)
    train(small(steps=6), tmp_path / "run", quiet=True)
    assert step_of(tmp_path / "run") == 6
    with pytest.raises(TrainingError, match=r"another recipe .*seed"):
        train(small(steps=6, seed=1), tmp_path / "run", quiet=True)
    with pytest.raises(TrainingError, match="holds a run already"):
        train(small(steps=6), tmp_path / "run", resume=False, quiet=True)


def test_folders_that_cannot_be_used(small, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(TrainingError, match="not empty"):
        train(small(), tmp_path / "other", quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be used"):
        train(small(), tmp_path / "file", quiet=True)
    recipe = small(steps=1)
    train(recipe, tmp_path / "run", quiet=True)
    (tmp_path / "run" / checkpoint.STATE).write_bytes(b"\0" * 100)
    with pytest.raises(TrainingError, match="not a whole training state"):
        train(recipe, tmp_path / "run", quiet=True)


def test_a_failed_write_keeps_the_state_before(small, tmp_path):
    recipe = small(steps=2)
    run = TinyRun(recipe, tmp_path)
    run.one_step()
    run.save()
    before = (tmp_path / checkpoint.STATE).read_bytes()
    (tmp_path / (checkpoint.STATE + ".part")).mkdir()  # a write that cannot succeed, as on a full disk
    with pytest.raises((TrainingError, OSError)):
        run.save()
    assert (tmp_path / checkpoint.STATE).read_bytes() == before
