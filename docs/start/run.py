"""Run every command of the tutorial in an empty folder and compare what it prints: `make tutorial` (about 15 minutes).

    python docs/start/run.py --write     # also writes the page's outputs and lab/results/tutorial.txt again

A block `console` holds commands after `$ ` and what they print; a block with a title is a file to save first. `…` stands for
what differs from machine to machine, and on a line of its own for the rest of an output. Numbers may differ by 2 %:
processors round differently.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "first-steps.md", HERE.parents[1] / "lab" / "results" / "tutorial.txt"
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.M | re.S)
# Times, sizes, addresses and free ports.
VARIES = re.compile(r"\d+:\d\d \(m:ss\)|\d+\.\d+ MB|(?<=127\.0\.0\.1:)\d+/[\w-]+|[\d.]+ (?:s|seconds)\b")
NUMBER = re.compile(r"[−-]?\d+(?:\.\d+)?")
ENDLESS = ("sinkscope view",)  # serves until Ctrl-C


@dataclass(frozen=True)
class Command:
    """A line of the page, and what it must print."""

    line: str
    output: str


def files(page: str) -> dict[str, str]:
    """The files that the reader saves: name → text."""
    return {match[2]: match[3] for match in BLOCK.finditer(page) if match[2]}


def commands(page: str) -> list[Command]:
    blocks = [match[3] for match in BLOCK.finditer(page) if match[1] == "console"]
    return [Command(*_cut(part)) for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]


def _cut(part: str) -> tuple[str, str]:
    line, _, output = part.partition("\n")
    while line.endswith("\\"):  # continued on the next line
        more, _, output = output.partition("\n")
        line = f"{line}\n{more}"
    return line, output.rstrip("\n")


def settled(output: str) -> str:
    """Output with `…` for what differs from machine to machine."""
    lines = (VARIES.sub("…", line).rstrip() for line in output.strip("\n").splitlines())
    return "\n".join(lines)


def differs(printed: str, expected: str) -> str:
    """Which line of an output is not the expected one; empty if none is."""
    ours, theirs = printed.splitlines(), expected.splitlines()
    if theirs[-1:] == ["…"]:  # the page leaves the rest out
        theirs.pop()
        ours = ours[: len(theirs)]
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if NUMBER.sub("0", one).split() != NUMBER.sub("0", other).split() or not _close(one, other):
            return f"line {number}: expected {other!r}, got {one!r}"
    return "" if len(ours) == len(theirs) else f"expected {len(theirs)} lines, got {len(ours)}"


def shortened(printed: str, before: str) -> str:
    """An output as long as the page has it, which may leave the rest out."""
    lines = before.splitlines()
    return "\n".join([*printed.splitlines()[: len(lines) - 1], "…"]) if lines[-1:] == ["…"] else printed


def _close(one: str, other: str) -> bool:
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(_value(a) - _value(b)) <= 0.02 * max(abs(_value(a)), abs(_value(b)), 1) for a, b in pairs)


def _value(text: str) -> float:
    return float(text.replace("−", "-"))


def execute(command: Command, folder: Path) -> str:
    """What a command prints on stdout, settled; one that serves until Ctrl-C is ended once it has printed its address."""
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    started = subprocess.Popen(
        ["bash", "-c", f"exec {command.line}" if command.line.startswith(ENDLESS) else command.line],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    if command.line.startswith(ENDLESS):
        printed = "".join(started.stdout.readline() for _ in command.output.splitlines())
        started.terminate()
        started.wait()
    else:
        printed = started.communicate()[0]
        if started.returncode:
            raise SystemExit(f"{command.line} ended with exit code {started.returncode}:\n{printed}")
    return settled(printed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true")
    write = options.parse_args().write
    page, wrong, kept = PAGE.read_text(encoding="utf-8"), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files(page).items():
            (folder / file).write_text(text, encoding="utf-8")
        for command in commands(page):
            start = time.perf_counter()
            printed = execute(command, folder)
            print(f"$ {command.line}\n{printed}\n({time.perf_counter() - start:.0f} s)\n", flush=True)
            kept.append(f"$ {command.line}\n{printed}\n")
            problem = differs(printed, command.output)
            if write:  # within the tolerance too: page and record are of one run
                before = f"$ {command.line}\n{command.output}\n" if command.output else f"$ {command.line}\n"
                page = page.replace(before, f"$ {command.line}\n{shortened(printed, command.output)}\n")
            elif problem:
                wrong.append(f"{command.line}: {problem}")
    if write:
        PAGE.write_text(page, encoding="utf-8")
        KEPT.write_text("\n".join(kept), encoding="utf-8")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
