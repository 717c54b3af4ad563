"""The words that decode settings are made of, and what each may be."""

from __future__ import annotations

from typing import Any, Literal, get_args

from sinkscope.fields import TRUTH, Allowed, number, whole
from sinkscope.settings.sparse import SparseCache

# native: DiffusionGemma's own generate in transformers.
Kind = Literal[
    "llada", "dream", "mmada", "parallel", "autoregressive", "llada2", "llada21", "sdar", "mdlm", "bd3lm", "fast_dllm2",
    "nemotron", "wedlm", "rnd1", "native",
]  # fmt: skip
Confidence = Literal["probability", "margin", "entropy", "random"]
Noise = Literal["reference", "per_row", "counter"]
Choice = Literal["gumbel", "draw", "block_draw", "likeliest", "entropy"]
Mode = Literal["diffusion", "autoregressive", "self_speculation"]  # of a checkpoint that decodes in several ways
CanvasCache = Literal["prefix", "dual"]  # kinds of decoding/cache.py, for models that see the whole canvas
CACHES: tuple[str, ...] = get_args(CanvasCache)
Cache = CanvasCache | Literal["exact"] | SparseCache | None

# answer: blocks from the end of a left-padded prompt. rows: from the end of each row's own prompt, padded on either side.
# grid: from column 0, the first block holding the end of the prompt. left: prompts padded at the left to whole blocks.
# aligned: as answer, with padding on either side and blocks that need not divide the length. ahead: as aligned, with room
# for a draft beyond the length. total: one stretch of masks, which may have more text behind it.
Layout = Literal["answer", "rows", "grid", "left", "aligned", "ahead", "total"]

# eot: a row is done when a block ends in end-of-turn. eos: when a finished block leaves end-of-text in the answer.
# early_eos: also within a block, as soon as nothing before the first end-of-text is masked. ids: after a block with one
# of stop_ids. row_eos: when all rows have end-of-text. batch_eos: so too, and a block ends for all rows as soon as one of
# them has end-of-text with nothing masked before it.
Stop = Literal["never", "eot", "eos", "early_eos", "ids", "row_eos", "batch_eos"]

DREAM_ALGORITHMS: dict[str, tuple[Confidence, str]] = {
    "origin": ("probability", "origin"),
    "maskgit_plus": ("probability", "schedule"),
    "topk_margin": ("margin", "schedule"),
    "entropy": ("entropy", "schedule"),
    "p2": ("probability", "p2"),
}

# Names of commit rules that are known without reading decoding/commit; every other rule adds its own when it is registered.
COMMITS: list[str] = [
    "quota", "threshold", "factor", "schedule", "origin", "next",
    "dynamic", "static", "sequential", "edit", "rounded", "p2", "sub_blocks",
    "best", "continued", "entropy", "entropy_bounded", "accepted",
]  # fmt: skip

# Settings that only these commit rules read, and cannot do without; a rule from elsewhere says so when it is registered.
READERS: dict[str, list[str]] = {"threshold": ["threshold", "dynamic", "edit", "sub_blocks"], "factor": ["factor"]}

CHOICES: dict[str, Any] = {
    "family": get_args(Kind),
    "confidence": get_args(Confidence),
    "confidence_dtype": ("model", "float32", "float64"),
    "commit": COMMITS,
    "stop": get_args(Stop),
    "cache": (None, *CACHES, "exact"),
    "noise": get_args(Noise),
    "layout": get_args(Layout),
    "choice": (None, *get_args(Choice)),
    "overwrite": ("never", "reference"),
    "mode": (None, *get_args(Mode)),
}
LONGEST = 1 << 24  # tokens, steps and the like: far above any context, and small enough to count with
LAST_ID = (1 << 31) - 1
SEEDS = 1 << 64  # what a generator of torch takes
ALWAYS = ("length", "seed", "temperature", "guidance", "epsilon")  # None means nothing for these
ID_LISTS = ("stop_ids", "guidance_keep", "suppress", "begin_suppress", "suffix")
TOKEN_ID = Allowed(f"a token id from 0 to {LAST_ID}", whole(0, LAST_ID))
COUNT = whole(1, LONGEST)

# What a setting may be beside None; those of CHOICES and ID_LISTS are not here.
ALLOWED: dict[str, Allowed] = {
    **dict.fromkeys(("length", "block", "steps", "top_k", "minimal_topk"), COUNT),
    **dict.fromkeys(("num_to_transfer", "steps_per_block", "sub_block", "total_length", "infill_length"), COUNT),
    **dict.fromkeys(("max_post_steps", "max_thinking_tokens", "stability"), whole(0, LONGEST)),
    "seed": whole(0, SEEDS - 1),
    **dict.fromkeys(("eos_id", "eot_id", "pad_id", "end_think_id"), TOKEN_ID),
    **dict.fromkeys(
        ("temperature", "factor", "algorithm_temperature", "guidance", "gamma", "t_min", "t_max"), number(0)
    ),
    **dict.fromkeys(("top_p", "threshold", "epsilon", "editing_threshold"), number(0, 1)),
    **dict.fromkeys(("forbid_eos", "late_eos", "block_causal", "stochastic", "shift", "recompute"), TRUTH),
    **dict.fromkeys(("causal_context", "greedy", "eos_at_end"), TRUTH),
}

# Settings that have a meaning in these families only; elsewhere they would be ignored, so they are refused.
ONLY: dict[str, tuple[str, ...]] = {
    "minimal_topk": ("llada2",),
    "editing_threshold": ("llada21",),
    "max_post_steps": ("llada21",),
    "num_to_transfer": ("llada21",),
    "overwrite": ("sdar",),
    "stochastic": ("mdlm", "bd3lm"),
    "steps_per_block": ("bd3lm",),
    "sub_block": ("fast_dllm2",),
    "pad_id": ("bd3lm",),
    "stop_ids": ("sdar",),
    "guidance_keep": ("mdlm", "bd3lm"),
    "suppress": ("mdlm", "bd3lm"),
    "begin_suppress": ("mdlm", "bd3lm"),
    "shift": ("mdlm", "bd3lm", "llada", "mmada", "dream", "parallel"),
    "recompute": ("autoregressive",),
    "mode": ("nemotron", "autoregressive"),
    "causal_context": ("nemotron",),
    "max_thinking_tokens": ("nemotron", "autoregressive"),
    "end_think_id": ("nemotron", "autoregressive"),
    **dict.fromkeys(("total_length", "suffix", "infill_length", "eos_at_end", "greedy"), ("rnd1",)),
    "gamma": ("rnd1", "native"),
    **dict.fromkeys(("t_min", "t_max", "stability"), ("native",)),
}
