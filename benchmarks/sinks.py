"""All sink tables of a trace as large as LLaDA-8B's, and its file: time, memory, size. `-o FILE` keeps the report.

The trace is made up (128 steps × 32 layers × 32 heads × 170 keys, three groups, in fp16) but behaves like a real one:
heads with a static sink at the start, heads whose sink moves right with the blocks, heads whose masked and committed queries
differ, weak and strong ones, with noise. No model is needed; the 8B weights are not at hand here.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import torch

from sinkscope import sinks
from sinkscope.decoding.settings import Decode
from sinkscope.tracing import Trace

STEPS, LAYERS, HEADS, KEYS, PROMPT, BLOCK, MASK = 128, 32, 32, 170, 42, 32, 9
LOAD = """
import sys, time, resource
from sinkscope.tracing import Trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
trace = Trace.load(sys.argv[1])
float(trace.received[5, 3, 2].float().sum())
print(time.perf_counter() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def large_trace() -> Trace:
    """Made layer by layer, so that the making needs no more memory than the trace itself."""
    generator = torch.Generator().manual_seed(0)
    time_of = torch.cat([b * BLOCK + torch.randperm(BLOCK, generator=generator) for b in range(STEPS // BLOCK)])
    canvas = torch.randint(0, MASK, (KEYS,), generator=generator).repeat(STEPS + 1, 1)
    canvas[:, PROMPT:][torch.arange(STEPS + 1)[:, None] <= time_of] = MASK
    step = torch.arange(STEPS)
    queries = torch.stack([STEPS - step, step, torch.full_like(step, PROMPT)], -1).int()
    start = PROMPT + step // BLOCK * BLOCK
    received = torch.empty(STEPS, LAYERS, HEADS, 3, KEYS, dtype=torch.float16)
    for layer in range(LAYERS):
        received[:, layer] = _layer(generator, queries, start)
    kinds = ["newline", "space", "punctuation", "digit", "word", "special", "begin", "end", "template", "mask"]
    return Trace(
        received=received,
        queries=queries,
        canvas=canvas,
        confidence=torch.rand(STEPS, KEYS, generator=generator),
        committed_at=torch.cat([torch.full((PROMPT,), -1), time_of]).int(),
        blocks=torch.stack([start, start + BLOCK], -1).int(),
        prompt_length=PROMPT,
        settings=Decode.llada(STEPS, block=BLOCK),
        model={"name": "made up, sizes of LLaDA-8B"},
        backend="none",
        vocabulary={i: (f"token {i}", kind) for i, kind in enumerate(kinds)},
        mask_id=MASK,
        causal=False,
        prompt="",
        text="",
        value_norms=(1 + torch.rand(STEPS, LAYERS, HEADS, KEYS, generator=generator)).half(),
    )


def _layer(generator: torch.Generator, queries: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Received attention `[step, head, group, key]` of one layer."""
    noise = torch.randn(1, HEADS, 1, KEYS, generator=generator) + 0.5 * torch.randn(
        STEPS, HEADS, 3, KEYS, generator=generator
    )
    moving = start[:, None] + torch.randint(0, BLOCK, (1, HEADS), generator=generator)  # [step, head]
    static = torch.randint(0, 4, (1, HEADS), generator=generator).expand_as(moving)
    kind = torch.rand(1, HEADS, generator=generator)  # a third static, a third moving, a third split
    masked = torch.where(kind < 1 / 3, static, moving)
    committed = torch.where(kind < 2 / 3, masked, static)
    where = torch.stack([masked, committed, committed], -1)[..., None]  # [step, head, group, 1]
    strength = 6 * torch.rand(1, HEADS, 1, 1, generator=generator)
    logits = noise.scatter_add(-1, where, strength.expand(where.shape))
    return (logits.softmax(-1) * queries[:, None, :, None]).half()


def memory() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], pl.DataFrame]) -> tuple[float, float, int]:
    """Seconds by the clock, seconds of the processor, rows of the table."""
    start, start_cpu = time.perf_counter(), time.process_time()
    rows = len(work())
    return time.perf_counter() - start, time.process_time() - start_cpu, rows


def report() -> str:
    if hasattr(os, "sched_setaffinity"):  # two cores, also on a larger machine
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    machine = _machine()
    trace = large_trace()
    made = memory()
    tables: dict[str, Callable[[], pl.DataFrame]] = {
        "find: every sink": lambda: sinks.find(trace),
        "head_dynamics: all measures and classes": lambda: sinks.head_dynamics(trace),
        "token_shares": lambda: sinks.token_shares([trace]),
        "sweep: 11 ε × 2 units": lambda: sinks.sweep(trace),
        "histogram": lambda: sinks.histogram(trace),
    }
    results = {name: timed(work) for name, work in tables.items()}
    total, total_cpu = (sum(result[i] for result in results.values()) for i in (0, 1))
    peak = memory()
    classes = sinks.head_dynamics(trace)["class"].value_counts(sort=True)
    lines = [
        "# Sink tables of a trace as large as LLaDA-8B's",
        "",
        f"`python benchmarks/sinks.py` · {STEPS} steps × {LAYERS} layers × {HEADS} heads × {KEYS} keys × 3 groups, fp16,",
        f"made up · {machine}",
        "",
        "| table | seconds | CPU seconds | rows |",
        "|---|---|---|---|",
        *[f"| {name} | {clock:.2f} | {cpu:.2f} | {rows:,} |" for name, (clock, cpu, rows) in results.items()],
        f"| **all** (wanted: ≤ 10 s) | **{total:.2f}** | {total_cpu:.2f} | |",
        "",
        "Where the two differ, others were using the machine: the tables are made on one core.",
        f"Largest memory of the process: {peak:,.0f} MB (wanted: ≤ 2,000), of which {made:,.0f} MB were there before the",
        "first table: Python, torch and the trace itself.",
        f"Classes found: {', '.join(f'{name} {count}' for name, count in classes.iter_rows())}.",
        "",
        *_file_lines(trace),
    ]
    return "\n".join(lines) + "\n"


def _file_lines(trace: Trace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.trace.safetensors"
        start = time.perf_counter()
        trace.save(path)
        saved, size = time.perf_counter() - start, path.stat().st_size / 1e6
        answer = subprocess.run(
            [sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, text=True
        ).stdout.split()
    loaded, grown = float(answer[0]), float(answer[1])
    norms = trace.value_norms
    extra = 0.0 if norms is None else norms.numel() * norms.element_size() / 1e6
    return [
        f"The file: {size:.0f} MB (wanted: ≤ 300), {extra:.0f} MB of them value norms, which are kept on request only; saved",
        f"in {saved:.2f} s. Loaded in a fresh process, with one head of one step read, in {loaded:.3f} s (wanted: < 1 s); the",
        f"process grew by {grown:.0f} MB, since tensors are mapped from the file and read when used.",
    ]


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    load = f", load average {os.getloadavg()[0]:.1f} when it began" if hasattr(os, "getloadavg") else ""
    return (
        f"{cpu}, 2 cores{load} · Python {platform.python_version()}, torch {torch.__version__}, polars {pl.__version__}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-o", "--output", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    text = report()
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")
