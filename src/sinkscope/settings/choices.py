"""What a setting may be: the annotations of `Decode`; and `SparseCache`, a choice that has settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, get_args

from sinkscope.errors import DecodeError
from sinkscope.fields import Allowed, among, check_fields, number, whole

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

By = Literal["received", "sinks", "no_sinks", "recent", "random"]
Per = Literal["head", "layer"]


@dataclass(frozen=True)
class SparseCache:
    """Between refreshes only the block is computed, against its own keys and a kept share of all others.

    by: "received" keeps the keys that received most attention at the last refresh. "sinks" keeps what `rule` calls so, the
    strongest first, then the nearest. "no_sinks" leaves the strongest out first (the control). "recent" keeps the nearest,
    "random" random ones. recent: so many nearest keys are kept whatever `by` says. blocks: so many blocks share one look at
    the whole canvas. refresh: also after so many forwards. drift: also as soon as the block's most attended key's value
    has turned by more than this (1 − cosine, mean over layers; a batch is refreshed as a whole, by its mean).
    keep = 1 is the dual cache; with refresh = 1 it is decoding without a cache.
    """

    keep: Annotated[float, Allowed("a share from 0 to 1", number(0, 1))] = 0.25  # share of the keys outside the block
    by: By = "received"
    recent: Annotated[int, whole(0)] = 0
    refresh: Annotated[int, whole(1)] | None = None
    per: Per = "head"
    drift: Annotated[float, number(0, 2)] | None = None
    # a sink rule as in study files; None: the paper's epsilon of 3, in column sums
    rule: Annotated[Mapping[str, Any], Allowed("a mapping", lambda rule: isinstance(rule, Mapping))] | None = None
    seed: Annotated[int, whole(0)] = 0  # of random keys
    blocks: Annotated[int, whole(1)] | Literal["all"] = 1

    def __post_init__(self) -> None:
        check_fields(self, DecodeError, " of a sparse cache")
        if self.rule is not None and self.by not in ("sinks", "no_sinks"):
            raise DecodeError(f"rule has no effect in a sparse cache by {self.by}; leave it out, or keep by sinks.")
        if self.blocks != 1 and self.refresh == 1:
            raise DecodeError(
                "blocks has no effect in a sparse cache that is refreshed at every step; drop one of them."
            )
        if self.seed and self.by != "random":
            raise DecodeError(f"seed has no effect in a sparse cache by {self.by}; leave it out, or keep by random.")

    @property
    def ranks(self) -> bool:
        """Whether what keys received is needed at a refresh: not where all are kept, or none is ever read."""
        chooses = self.by in ("received", "sinks", "no_sinks") and self.keep < 1 and self.refresh != 1
        return chooses or self.drift is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SparseCache:
        known = [field.name for field in fields(cls)]
        if strange := sorted(set(map(str, values)) - set(known)):
            raise DecodeError(f"A sparse cache takes {', '.join(known)}, not {', '.join(strange)}.")
        return cls(**values)


CACHE = Allowed(
    f"a SparseCache or one of {', '.join((*CACHES, 'exact'))}",
    lambda value: isinstance(value, SparseCache) or value in (*CACHES, "exact"),
)
Cache = Annotated[CanvasCache | Literal["exact"] | SparseCache, CACHE] | None  # of `Decode`
