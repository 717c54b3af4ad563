"""`table1` killed and resumed, in shards, and with --fast: what is the same, and what is saved.

    python benchmarks/table1.py [--data FOLDER] [--problems 200] [--models tiny-llada,…] [--only bytes|fast]

Killed and in shards: tiny-llama and tiny-llada on GSM8K (--data has gsm8k_test.jsonl), every file compared byte for byte.
Fast: the diffusion models of the tiny family on our arithmetic, with the protocol's decoding and with --fast, in one
process; forwards of the model are counted, and processor time is taken, which a busy machine does not change much.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.cli.app import run as command
from sinkscope.errors import TaskError
from sinkscope.evals.table1 import table1
from sinkscope.models.load import load

WORDS = ["--models", "tiny-llama,tiny-llada", "--limit", "2", "--task", "gsm8k", "--fewshot", "0", "--ks", "1"]
WORDS += ["--set", "length=8", "--batch-size", "1", "--traced", "1"]
KILLS = 3
MODELS = ("tiny-llada", "tiny-dream", "tiny-mmada")
LENGTH = 24


def files_of(folder: Path) -> dict[str, bytes]:
    """What was written, but for the answers as they came in and the marks of shards."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("requests")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.parent.name != "shards"}


def quiet(words: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert command(words) == 0, words


def killed(words: list[str], folder: Path, seconds: float) -> int:
    """Start the command and kill it with −9 so long after its first answer; how many answers it had kept."""
    program = [sys.executable, "-m", "sinkscope", "table1", *words, "-o", str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = answers(folder)
    while answers(folder) == before and process.poll() is None:
        time.sleep(0.05)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return answers(folder)


def answers(folder: Path) -> int:
    return sum(path.read_bytes().count(b'"text"') for path in folder.glob("*/*/requests*.jsonl"))


def same_bytes(data: Path, folder: Path) -> None:
    words = [*WORDS, "--data", str(data)]
    whole, broken, parts = folder / "whole", folder / "killed", [folder / "1", folder / "2"]
    quiet(["table1", *words, "-o", str(whole)])
    drawn = random.Random(0)
    kept = [killed(words, broken, drawn.uniform(0.2, 3)) for _ in range(KILLS)]
    unfinished = not (broken / "results.json").exists()
    quiet(["table1", *words, "-o", str(broken)])
    for index, part in enumerate(parts, 1):
        quiet(["table1", *words, "-o", str(part), "--shard", f"{index}/2"])
    quiet(["merge", *map(str, parts), "-o", str(folder / "merged")])
    expected = files_of(whole)
    shown = " ".join(WORDS)
    print(f"`sinkscope table1 {shown} --data DATA`: {answers(whole)} answers, {len(expected)} files.\n")
    print("| run | answers kept when it ended | files equal to the whole run's |\n|---|---|---|")
    state = "each time before its end" if unfinished else "once after its end"
    for name, count, found in (
        (f"killed with −9 {KILLS} times, {state}, then resumed", ", ".join(map(str, kept)), files_of(broken)),
        ("`--shard 1/2` and `--shard 2/2` in folders of their own, then `merge`",
         ", ".join(str(answers(part)) for part in parts), files_of(folder / "merged")),
    ):  # fmt: skip
        equal = sum(found.get(path) == content for path, content in expected.items())
        print(f"| {name} | {count} | {equal} of {len(expected)} |")
        assert found == expected, name


def counted(work: Callable[[list[Any]], Any], model: Any) -> tuple[Any, int, float]:
    """What the work gives, the forwards that it made, and its processor time."""
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    handle, started = model.module.get_input_embeddings().register_forward_pre_hook(count), time.process_time()
    try:
        return work([model]), forwards, time.process_time() - started
    finally:
        handle.remove()


def saving(problems: int, folder: Path, names: list[str]) -> None:
    words: dict[str, Any] = {
        "tasks": ["sinkscope_arithmetic"], "ks": (1,), "problems": problems, "settings": {"length": LENGTH}, "traced": 0,
        "batch_size": 50,
    }  # fmt: skip
    asked = f"--task sinkscope_arithmetic -n {problems} --ks 1 --set length={LENGTH} --traced 0 --batch-size 50"
    print(f"`sinkscope table1 --models MODEL {asked}`, and the same with `--fast --fast-problems {problems}`, which")
    print(f"decodes {problems} unmasked problems both ways first; that is counted.\n")
    print("| model | forwards | with --fast | ratio | processor time | with --fast | ratio | right, unmasked |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        model = load(name)
        slow, many, long = counted(partial(table1, out=folder / name / "slow", **words), model)
        try:
            quick, few, short = counted(partial(table1, out=folder / name / "fast", fast=problems, **words), model)
        except TaskError as error:
            print(f"| {name} | {many} | refused: {error} | | {long:.0f} s | | | |")
            continue
        right = " → ".join(f"{100 * found['cells'][0]['accuracy']:.1f} %" for found in (slow, quick))
        print(
            f"| {name} | {many} | {few} | {many / few:.1f} | {long:.0f} s | {short:.0f} s | {long / short:.1f} | {right} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SINKSCOPE_DATA", shared)))
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--only", choices=("bytes", "fast"))
    asked = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    words = " ".join(sys.argv[1:])
    print("# Table 1: killed, in shards, and fast\n")
    print(f"Written by `python benchmarks/table1.py {words}`, on two cores that other work shared.\n")
    with tempfile.TemporaryDirectory() as folder:
        if asked.only != "fast":
            print("## The same bytes\n")
            same_bytes(asked.data, Path(folder))
            print(
                "\nCompared are results.json, table1.md, and results.json and samples of every condition. The answers in"
            )
            print("requests.jsonl are the same; they stand in the order in which they came.\n")
        if asked.only != "bytes":
            print("## What `--fast` saves\n")
            saving(asked.problems, Path(folder) / "fast", asked.models.split(","))


if __name__ == "__main__":
    main()
