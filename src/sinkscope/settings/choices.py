"""What a setting may be: the annotations of `Decode` and `SparseCache`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from sinkscope.fields import Allowed, among, number, whole

LONGEST = 1 << 24  # tokens, steps and the like: far above any context, and small enough to count with
LAST_ID = (1 << 31) - 1
SEEDS = 1 << 64  # what a generator of torch takes


def _several(one: Allowed) -> Allowed:
    return Allowed(f"a tuple, each {one.expected}", lambda value: isinstance(value, tuple) and all(map(one, value)))


TOKEN = Allowed(f"a token id from 0 to {LAST_ID}", whole(0, LAST_ID))
Count = Annotated[int, whole(1, LONGEST)]
FromZero = Annotated[int, whole(0, LONGEST)]
Positions = Annotated[tuple[int, ...], _several(whole(-LONGEST, LONGEST))]
TokenId = Annotated[int, TOKEN]
TokenIds = Annotated[tuple[int, ...], _several(TOKEN)]
Seed = Annotated[int, whole(0, SEEDS - 1)]
Number = Annotated[float, number(0)]
Share = Annotated[float, number(0, 1)]

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
Commit = Annotated[str, among(COMMITS)]
