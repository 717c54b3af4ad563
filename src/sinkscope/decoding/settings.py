"""`Decode`: every choice of a decoder in one frozen, serialisable dataclass, with a constructor a family."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from sinkscope.errors import DecodeError

Kind = Literal["llada", "dream", "mmada", "parallel", "autoregressive"]
Confidence = Literal["probability", "margin", "entropy", "random"]
Commit = Literal["quota", "threshold", "factor", "schedule", "origin", "next"]
Noise = Literal["reference", "per_row"]

DREAM_ALGORITHMS: dict[str, tuple[Confidence, Commit]] = {
    "origin": ("probability", "origin"),
    "maskgit_plus": ("probability", "schedule"),
    "topk_margin": ("margin", "schedule"),
    "entropy": ("entropy", "schedule"),
}


@dataclass(frozen=True)
class Decode:
    """How a canvas becomes text. Build one with `Decode.llada(…)` and its siblings."""

    family: Kind
    length: int  # tokens to generate
    block: int | None = None  # None: the whole canvas is one block
    steps: int | None = None  # forwards over the whole canvas; None: as many as the commit rule needs
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    guidance: float = 0.0
    confidence: Confidence = "probability"
    confidence_dtype: Literal["model", "float32", "float64"] = "model"
    commit: Commit = "quota"
    threshold: float | None = None
    factor: float | None = None
    algorithm_temperature: float | None = None
    epsilon: float = 1e-3  # where Dream's schedule of times ends
    forbid_eos: bool = False  # end-of-text is never chosen
    late_eos: bool = False  # end-of-text and end-of-turn are committed last
    eos_id: int | None = None  # None: the model's
    eot_id: int | None = None
    stop: Literal["never", "eot"] = "never"  # "eot": a row is done when a block ends in end-of-turn
    cache: Literal["prefix", "dual"] | None = None
    seed: int = 0
    noise: Noise = "reference"

    @classmethod
    def llada(
        cls, length: int, block: int | None = None, steps: int | None = None, temperature: float = 0.0,
        guidance: float = 0.0, confidence: Confidence = "probability", forbid_eos: bool = False, late_eos: bool = False,
        eos_id: int | None = None, eot_id: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """LLaDA's semi-autoregressive sampler: blocks left to right, the same number of commits every step."""
        return cls("llada", length, block, length if steps is None else steps, temperature, guidance=guidance,
                   confidence=confidence, forbid_eos=forbid_eos, late_eos=late_eos, eos_id=eos_id, eot_id=eot_id,
                   **more)  # fmt: skip

    @classmethod
    def mmada(
        cls, length: int, block: int | None = None, steps: int | None = None, temperature: float = 0.0,
        guidance: float = 0.0, confidence: Confidence = "probability", **more: Any,
    ) -> Decode:  # fmt: skip
        """MMaDA's sampler: LLaDA's with float64 confidence; stop="eot" is its fast variant."""
        more = {"confidence_dtype": "float64", **more}
        return cls("mmada", length, block, length if steps is None else steps, temperature, guidance=guidance,
                   confidence=confidence, **more)  # fmt: skip

    @classmethod
    def dream(
        cls, length: int, steps: int | None = None, algorithm: str = "origin",
        algorithm_temperature: float | None = None, temperature: float = 1.0, top_p: float | None = 1.0,
        top_k: int | None = 50, epsilon: float = 1e-3, **more: Any,
    ) -> Decode:  # fmt: skip
        """Dream's sampler; arguments left out are what its code takes then, top_k = 50 included (None switches off)."""
        if algorithm not in DREAM_ALGORITHMS:
            raise DecodeError(f"Expected algorithm to be one of {', '.join(DREAM_ALGORITHMS)}, got {algorithm!r}.")
        confidence, commit = DREAM_ALGORITHMS[algorithm]
        return cls("dream", length, steps=length if steps is None else steps, temperature=temperature, top_p=top_p,
                   top_k=top_k, confidence=confidence, commit=commit, algorithm_temperature=algorithm_temperature,
                   epsilon=epsilon, **more)  # fmt: skip

    @classmethod
    def parallel(
        cls, length: int, block: int | None = None, threshold: float | None = 0.9, factor: float | None = None,
        cache: Literal["prefix", "dual", "none"] | None = None, steps: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """Fast-dLLM: commit what is confident enough, by `factor` instead of `threshold`, or a quota of `steps`."""
        commit: Commit = "factor" if factor is not None else "threshold" if threshold is not None else "quota"
        more = {"confidence_dtype": "float64", **more}
        return cls("parallel", length, block, (length if steps is None else steps) if commit == "quota" else None,
                   commit=commit, threshold=threshold if commit == "threshold" else None, factor=factor,
                   cache=None if cache == "none" else cache, **more)  # fmt: skip

    @classmethod
    def autoregressive(
        cls, length: int, temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None, **more: Any
    ) -> Decode:
        """One token a step, left to right, with a key-value cache."""
        return cls("autoregressive", length, temperature=temperature, top_p=top_p, top_k=top_k, commit="next", **more)

    @property
    def blocks(self) -> int:
        return 1 if self.block is None else self.length // self.block

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Decode:
        known = {field.name for field in fields(cls)}
        if strange := sorted(set(values) - known):
            raise DecodeError(f"Expected decode settings among {', '.join(sorted(known))}, got {', '.join(strange)}.")
        return cls(**values)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise DecodeError(
                    f"Expected {name} to be one of {', '.join(map(repr, choices))}, got {getattr(self, name)!r}."
                )
        for name in ("length", "block", "steps", "top_k"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise DecodeError(f"Expected {name} to be a whole number of at least 1, got {value!r}.")
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is not None and not (low <= value and (high is None or value <= high)):  # false for NaN too
                raise DecodeError(
                    f"Expected {name} {f'from {low} to {high}' if high else f'of at least {low}'}, got {value}."
                )
        self._check_sizes()
        self._check_combination()

    def _check_sizes(self) -> None:
        if self.block is not None and self.length % self.block:
            raise DecodeError(
                f"Expected a length that blocks divide, got length {self.length} and block {self.block}; try length "
                f"{self.length // self.block * self.block or self.block} or block {_divisor(self.length, self.block)}."
            )
        if self.steps is None:
            return
        if self.steps % self.blocks:
            raise DecodeError(
                f"Expected steps that the {self.blocks} blocks share evenly, got {self.steps}; "
                f"try {max(self.steps // self.blocks, 1) * self.blocks}."
            )
        if self.commit == "quota" and self.steps > self.length:
            raise DecodeError(
                f"Expected at most as many steps as tokens, got {self.steps} steps for length {self.length}: "
                "some steps would commit nothing; use fewer steps."
            )

    def _check_combination(self) -> None:
        if self.cache is not None and self.guidance > 0:
            raise DecodeError("Guidance and a cache were both asked for, and no published decoder has both; drop one.")
        if self.cache is not None and self.commit in ("origin", "schedule", "next"):
            raise DecodeError(
                f"A {self.cache} cache goes with Decode.parallel or Decode.llada, not with {self.family}."
            )
        if (self.commit == "threshold") != (self.threshold is not None) or (self.commit == "factor") != (
            self.factor is not None
        ):
            raise DecodeError(
                f"Commit rule {self.commit!r} does not go with threshold {self.threshold} and factor {self.factor}."
            )


RANGES: tuple[tuple[str, float, float | None], ...] = (
    ("temperature", 0, None),
    ("top_p", 0, 1),
    ("threshold", 0, 1),
    ("factor", 0, None),
    ("algorithm_temperature", 0, None),
    ("epsilon", 0, 1),
    ("guidance", 0, None),
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "family": get_args(Kind),
    "confidence": get_args(Confidence),
    "confidence_dtype": ("model", "float32", "float64"),
    "commit": get_args(Commit),
    "stop": ("never", "eot"),
    "cache": (None, "prefix", "dual"),
    "noise": get_args(Noise),
}


def _divisor(length: int, near: int) -> int:
    """The divisor of `length` that is nearest to `near`."""
    return min((size for size in range(1, length + 1) if length % size == 0), key=lambda size: abs(size - near))
