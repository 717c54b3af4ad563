"""The paper's own figures (arXiv 2510.15731, Tables 1 and 2), to stand beside ours."""

from __future__ import annotations

# Accuracy in the paper, for none, 1, 5 and 10 masked sinks.
TABLE_1 = {
    ("dream", "gsm8k"): {0: 0.82, 1: 0.79, 5: 0.78, 10: 0.75},
    ("llada", "gsm8k"): {0: 0.76, 1: 0.75, 5: 0.73, 10: 0.55},
    ("mmada", "gsm8k"): {0: 0.54, 1: 0.53, 5: 0.54, 10: 0.37},
    ("llama", "gsm8k"): {0: 0.85, 1: 0.02, 5: 0.02, 10: 0.01},
    ("dream", "humaneval"): {0: 0.60, 1: 0.64, 5: 0.61, 10: 0.57},
    ("llada", "humaneval"): {0: 0.37, 1: 0.37, 5: 0.39, 10: 0.35},
    ("mmada", "humaneval"): {0: 0.16, 1: 0.16, 5: 0.18, 10: 0.09},
    ("llama", "humaneval"): {0: 0.66, 1: 0.00, 5: 0.00, 10: 0.00},
}

# Our tasks in miniature of the paper's benchmarks.
BENCHMARKS = {"arithmetic": "gsm8k", "programs": "humaneval"}
BENCHMARK_NAMES = {"gsm8k": "GSM8K", "humaneval": "HumanEval"}
MODELS = {"dream": "Dream-7B", "llada": "LLaDA-8B", "mmada": "MMaDA-8B", "llama": "Llama-3.1-8B"}

# The model of the paper that one of ours, or a checkpoint, stands for. A family is not enough: SmolLM2 is no Llama-3.1.
STANDS_FOR = {
    "tiny-llada": "LLaDA-8B", "LLaDA-8B-Instruct": "LLaDA-8B", "GSAI-ML/LLaDA-8B-Instruct": "LLaDA-8B",
    "tiny-dream": "Dream-7B", "smol-dream": "Dream-7B",
    "Dream-v0-Instruct-7B": "Dream-7B", "Dream-org/Dream-v0-Instruct-7B": "Dream-7B",
    "tiny-mmada": "MMaDA-8B", "MMaDA-8B-MixCoT": "MMaDA-8B", "Gen-Verse/MMaDA-8B-MixCoT": "MMaDA-8B",
    "tiny-llama": "Llama-3.1-8B", "smol-llama": "Llama-3.1-8B",
    "Llama-3.1-8B-Instruct": "Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
}  # fmt: skip
STATIC = ("MMaDA-8B", "Llama-3.1-8B")  # whose sinks it reports to stand still

# Share of the sinks that each token is.
TABLE_2 = {
    "llada": [("⏎", 0.368), ("mask", 0.366), (".", 0.050), ("start-header", 0.008), ("␣", 0.008)],
    "dream": [("mask", 0.321), ("⏎", 0.090), (".", 0.046), (",", 0.044), ("end-of-text", 0.040)],
    "mmada": [("⏎", 0.180), ("mask", 0.166), ("end-header", 0.160), ("start-of-text", 0.108), ("istant", 0.066)],
}


def family(model: str) -> str:
    """The family of the paper's model that one of ours stands for: a key of the tables; empty where it stands for none."""
    stands_for = STANDS_FOR.get(model)
    return next((name for name, theirs in MODELS.items() if theirs == stands_for), "")


def accuracy(model: str, task: str, k: int) -> float | None:
    """The paper's accuracy for the model that ours stands for, on the benchmark that the task is a miniature of."""
    return TABLE_1.get((family(model), BENCHMARKS.get(task, "")), {}).get(k)
