"""What a setting may be: the annotations of `Decode`, `SparseCache` among them, and which settings cannot work together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from sinkscope.errors import DecodeError
from sinkscope.fields import Allowed, among, check_fields, need, number, whole
from sinkscope.registry import load_plugins

if TYPE_CHECKING:
    from sinkscope.settings.decode import Decode

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


def dream_algorithm(name: Any) -> dict[str, Any]:
    """The settings that one of Dream's algorithms stands for."""
    need("algorithm", name, among(DREAM_ALGORITHMS), DecodeError)
    return dict(zip(("confidence", "commit"), DREAM_ALGORITHMS[name], strict=True))


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


# ---- settings that cannot work are refused when they are made, in one sentence


def check(settings: Decode) -> None:
    """Every value alone, then whether it has a meaning here, then sizes, then what does not go together."""
    if settings.commit not in COMMITS:
        load_plugins()  # a rule of an installed package adds its name
    check_fields(settings, DecodeError)
    _check_used(settings)
    if settings.layout == "answer":
        _check_sizes(settings)
    _check_combination(settings)


def _check_used(settings: Decode) -> None:
    for field in fields(settings):
        families = field.metadata.get("only", (settings.family,))
        if settings.family not in families and getattr(settings, field.name) != field.default:
            raise DecodeError(
                f"{field.name} has no effect in {settings.family} decoding, only in {', '.join(families)}; leave it out."
            )
    if settings.guidance_keep and not settings.guidance:
        raise DecodeError("guidance_keep has no effect without guidance; give guidance above 0, or leave it out.")


def _check_sizes(settings: Decode) -> None:
    length, block, steps = settings.length, settings.block, settings.steps
    if block is not None and length % block:
        near = next(size for away in range(block) for size in (block - away, block + away) if length % size == 0)
        raise DecodeError(
            f"Expected a length that blocks divide, got length {length} and block {block}; try length "
            f"{length // block * block or block} or block {near}."
        )
    if steps is not None and steps % settings.blocks:
        raise DecodeError(
            f"Expected steps that the {settings.blocks} blocks share evenly, got {steps}; "
            f"try {max(steps // settings.blocks, 1) * settings.blocks}."
        )
    if steps is not None and steps > length and settings.commit == "quota":
        raise DecodeError(
            f"Expected at most as many steps as tokens, got {steps} steps for length {length}: "
            "some steps would commit nothing; use fewer steps."
        )


def _caches(settings: Decode) -> list[str | None]:
    """The caches that go with the settings."""
    if settings.family == "native" or settings.layout == "ahead" or not settings.causal_context:
        return ["exact"]
    if settings.layout == "aligned":
        return [None]
    if settings.block_causal:
        return [None, "exact"]
    whole = [] if settings.commit in ("origin", "schedule", "next", "p2") else [*CACHES]
    return [None, *whole, *(["a sparse cache"] if settings.layout == "answer" and settings.commit != "next" else [])]


def _check_combination(settings: Decode) -> None:
    cache = "a sparse cache" if isinstance(settings.cache, SparseCache) else settings.cache
    if settings.guidance > 0 and cache in (*CACHES, "a sparse cache"):
        raise DecodeError("Guidance and a cache were both asked for, and no published decoder has both; drop one.")
    if cache not in (known := _caches(settings)):
        raise DecodeError(
            f"Expected a cache that goes with these {settings.family} settings ({', '.join(map(str, known))}), got {cache}."
        )
    if settings.end_think_id is None and settings.max_thinking_tokens is not None:
        raise DecodeError("max_thinking_tokens needs end_think_id, the token that is written then; give it.")
    if settings.guidance > 0 and (settings.block_causal or settings.family == "rnd1") and settings.family != "bd3lm":
        raise DecodeError(f"Guidance is no part of {settings.family} decoding; leave it out.")
    for name, rules in READERS.items():
        given = getattr(settings, name)
        if given is not None and settings.commit not in (*rules, "continued", "accepted"):  # which may do without
            raise DecodeError(
                f"Expected {name} with a commit rule that reads it ({', '.join(rules)}), got {name}={given} with "
                f"commit={settings.commit!r}; leave it out, or choose such a rule."
            )
        if given is None and settings.commit in rules:
            raise DecodeError(f"Expected {name}=… with commit={settings.commit!r}, which reads it, got none; give one.")
