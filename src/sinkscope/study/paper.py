"""The paper's own figures (arXiv 2510.15731, Tables 1 and 2), to stand beside ours."""

from __future__ import annotations

from sinkscope.tasks.table1 import PAPER as TABLE_1

# Our tasks in miniature of the paper's benchmarks.
BENCHMARKS = {"arithmetic": "gsm8k", "programs": "humaneval"}
BENCHMARK_NAMES = {"gsm8k": "GSM8K", "humaneval": "HumanEval"}
MODELS = {"dream": "Dream-7B", "llada": "LLaDA-8B", "mmada": "MMaDA-8B", "llama": "Llama-3.1-8B"}

# Share of the sinks that each token is.
TABLE_2 = {
    "llada": [("⏎", 0.368), ("mask", 0.366), (".", 0.050), ("start-header", 0.008), ("␣", 0.008)],
    "dream": [("mask", 0.321), ("⏎", 0.090), (".", 0.046), (",", 0.044), ("end-of-text", 0.040)],
    "mmada": [("⏎", 0.180), ("mask", 0.166), ("end-header", 0.160), ("start-of-text", 0.108), ("istant", 0.066)],
}


def accuracy(family: str, task: str, k: int) -> float | None:
    """The paper's accuracy for the family's model on the benchmark that the task is a miniature of."""
    return TABLE_1.get((family, BENCHMARKS.get(task, "")), {}).get(k)
