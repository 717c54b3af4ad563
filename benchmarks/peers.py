"""What every key received in one forward of a model: sinkscope against transformers' eager attention and nnsight.

    python benchmarks/peers.py                     # prints the table, without nnsight
    python benchmarks/peers.py --nnsight --write   # … with it, and writes lab/results/peers.md

nnsight is installed into a temporary environment of its own (or name one that has it with --nnsight-python). Every way
runs in its own process, on one thread; the processes take turns, and all must find the same sums. Time is processor
time, memory the highest resident size above the resident size before the forward (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention import MASK, extra_memory, machine, random_module

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "peers.md"
LENGTHS = (512, 2048)
WAYS = ("untouched", "sinkscope observe", "transformers eager", "nnsight")


def column_sums(way: str, length: int) -> Callable[[], Any]:
    """One forward that gives what each key received, [layer, head, key], done the way of one library."""
    module = random_module()
    ids = torch.randint(2, MASK, (1, length), generator=torch.Generator().manual_seed(1))
    words = {"is_causal": False, "use_cache": False, "logits_to_keep": 1}

    def untouched() -> None:
        module(ids, **words)

    def observed() -> Tensor:
        import sinkscope as sk

        with sk.observe(module) as seen:
            module(ids, **words)
        return torch.stack([received[0, :, 0] for received in seen.received])

    def with_attentions() -> Tensor:
        maps = module(ids, output_attentions=True, **words).attentions
        return torch.stack([attention[0].sum(1) for attention in maps])

    def with_nnsight() -> Tensor:
        from nnsight import NNsight

        traced, sums = NNsight(module), []
        with traced.trace(ids, **words):
            for layer in traced.model.layers:
                sums.append(layer.self_attn.output[1][0].sum(1).save())  # summed at once: no map outlives its layer
        return torch.stack(sums)

    if way in ("transformers eager", "nnsight"):
        module.set_attn_implementation("eager")
    return dict(zip(WAYS, (untouched, observed, with_attentions, with_nnsight), strict=True))[way]


def serve(way: str, length: int) -> None:
    """Stay there and run one forward for every line that comes in; peers need other environments, and must take turns."""
    with torch.no_grad():
        run = column_sums(way, length)
        sums = run()
        check = [] if sums is None else sums[:, :, ::97].flatten().tolist()
        print(json.dumps({"bytes": extra_memory(run), "check": check}), flush=True)
        for _ in sys.stdin:
            started = time.process_time()
            run()
            print(json.dumps(time.process_time() - started), flush=True)


def peers(length: int, repeats: int, pythons: dict[str, str]) -> dict[str, tuple[float, int]]:
    """Way → median seconds, extra bytes. All ways must find the same column sums."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    open_processes = {
        way: subprocess.Popen(
            [python, __file__, "--serve", way, "--length", str(length)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for way, python in pythons.items()
    }  # fmt: skip

    def answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        return json.loads(process.stdout.readline())

    first = {way: answer(process) for way, process in open_processes.items()}
    expected = torch.tensor(first["transformers eager"]["check"])
    for way, found in first.items():
        if found["check"] and not torch.allclose(torch.tensor(found["check"]), expected, atol=1e-3):
            raise SystemExit(f"{way} found other column sums")
    seconds: dict[str, list[float]] = {way: [] for way in pythons}
    for _ in range(repeats):
        for way, process in open_processes.items():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds[way].append(answer(process))
    for process in open_processes.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return {way: (statistics.median(seconds[way]), first[way]["bytes"]) for way in pythons}


def nnsight_python(folder: str) -> str:
    """An environment of its own with nnsight in it; sinkscope's own is left alone."""
    import transformers

    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(Path(folder) / "bin" / "python")
    wanted = [f"torch=={torch.__version__.split('+')[0]}", f"transformers=={transformers.__version__}", "nnsight"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", *wanted], check=True)
    return python


def peer_table(repeats: int, python: str | None) -> list[str]:
    pythons = dict.fromkeys(WAYS[:3], sys.executable) | ({"nnsight": python} if python else {})
    lines = ["| S | way | seconds a forward | against untouched | extra memory, MB |", "|---|---|---|---|---|"]
    for length in LENGTHS:
        found = peers(length, repeats if length < 1024 else max(3, repeats // 2), pythons)
        for way, (seconds, extra) in found.items():
            against = seconds / found["untouched"][0]
            lines.append(f"| {length} | {way} | {seconds:.2f} | {against:.2f} × | {extra / 1e6:.0f} |")
            print(lines[-1], flush=True)
    return lines


def page(repeats: int, python: str | None) -> str:
    where = machine()
    return "\n".join([
        "# What every key received in one forward, by several libraries", "",
        f"`python benchmarks/peers.py --repeats {repeats}{' --nnsight' if python else ''} --write` on {where}.", "",
        "A random Llama of 98 M parameters (12 layers × 12 heads), bidirectional, float32, one thread, processor time;",
        "medians of forwards taken in turns. All ways find the same sums. transformers: `output_attentions=True`, then",
        "summed. nnsight: each layer's map of the eager model, summed inside the trace. Extra memory is above the model.", "",
        *peer_table(repeats, python), "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--nnsight", action="store_true", help="install nnsight into a temporary environment")
    parser.add_argument("--nnsight-python", help="an environment that has nnsight already")
    parser.add_argument("--write", action="store_true", help=f"write lab/results/{RESULTS.name}")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, default=512, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        torch.set_num_threads(1)
        serve(asked.serve, asked.length)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = page(asked.repeats, asked.nnsight_python or (nnsight_python(folder) if asked.nnsight else None))
    print(text)
    if asked.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
