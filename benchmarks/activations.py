"""How much memory `sk.activations` takes: the peak of a fresh process per number of prompts, all layers exported.

python benchmarks/activations.py [MODEL] [--prompts 4 16] [--length 8] [--shard 16]
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import sinkscope as sk


def peak() -> float:
    """Megabytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def export(name: str, count: int, length: int, shard: int) -> tuple[float, float, float, float, float]:
    """Peak before and after in MB, vectors in MB, seconds of CPU, and bytes of the largest shard in MB."""
    model = sk.load(name)
    prompts = [problem.prompt for problem in sk.tasks.problems("arithmetic", n=count, split="train", seed=0)]
    words = {"length": length, **({} if model.causal else {"steps": length})}
    settings = sk.trace(model, prompts[:2], **words)[0].settings
    before, start = peak(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = sk.activations(
            model, iter(prompts), out=Path(folder) / "a", batch=2, shard=shard << 20, settings=settings
        )
        sizes = [path.stat().st_size / 2**20 for path in found.shards]
    return before, peak(), sum(sizes), time.process_time() - start, max(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smol-dream")
    parser.add_argument("--prompts", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--length", type=int, default=8, help="tokens, and steps of a diffusion model")
    parser.add_argument("--shard", type=int, default=16, help="megabytes of vectors held before they are written")
    given = parser.parse_args()
    for count in given.prompts:
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            before, after, written, seconds, largest = fresh.apply(
                export, (given.model, count, given.length, given.shard)
            )
        print(
            f"{given.model}, {count} prompts: {written:,.0f} MB written, largest shard {largest:.0f} MB, peak {after:,.0f} MB "
            f"({after - before:+,.0f} MB beyond generating), {seconds:.0f} s CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
