"""`SparseCache`: which keys outside the block are kept between two looks at the whole canvas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

from sinkscope.errors import DecodeError
from sinkscope.fields import Allowed, check_fields, number, whole
from sinkscope.settings.choices import CACHES, CanvasCache

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
