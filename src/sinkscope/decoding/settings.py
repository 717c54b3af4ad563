"""`Decode`: what all samplers share. Each sampler is a class of its own, beside its commit rule, in decoding/samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, fields, replace
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, dataclass_transform, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field

from sinkscope.decoding.caches import CACHE_POLICIES, CachePolicy, read_policy
from sinkscope.decoding.choose import COMMIT_RULES
from sinkscope.errors import DecodeError
from sinkscope.registry import Registry
from sinkscope.validation import Count, NonNegative, Seed, Share, rename_settings, settings, validate

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.decoding import samplers
    from sinkscope.decoding.canvas import DecodeRun
    from sinkscope.decoding.forwards import Forwards
    from sinkscope.models.model import Model


def as_tuple(value: Any) -> Any:
    return () if value is None else value


def check_rule_name(name: str) -> str:
    """The name of a registered commit rule."""
    _ = COMMIT_RULES[name]
    return name


CommitName = Annotated[str, Field(strict=True), AfterValidator(check_rule_name)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
TokenIds = Annotated[tuple[TokenId, ...], BeforeValidator(as_tuple)]
Position = Annotated[int, Field(strict=True, gt=-(1 << 24), lt=1 << 24)]
Positions = Annotated[tuple[Position, ...], BeforeValidator(as_tuple)]

Confidence = Literal["probability", "margin", "entropy", "random"]
Noise = Literal["reference", "per_row"]
Choice = Literal["gumbel", "draw", "block_draw", "likeliest", "entropy", "klass"]
Mode = Literal["diffusion", "autoregressive", "self_speculation"]  # of a checkpoint that decodes in several ways
CACHES = ("prefix", "dual")  # cache policies of decoding/caches that a name alone stands for

# answer: blocks from the end of a left-padded prompt. rows: from the end of each row's own prompt, padded on either side.
# grid: from column 0, the first block holding the end of the prompt. left: prompts padded at the left to whole blocks.
# aligned: as answer, with padding on either side and blocks that need not divide the length. ahead: as aligned, with room
# for a draft beyond the length. total: one stretch of masks, which may have more text behind it. open: masks of the prompt are
# written too, and there may be no prompt. text: the prompt itself is worked on, at its end.
# drawn: the prompt on a canvas of random tokens.
Layout = Literal["answer", "rows", "grid", "left", "aligned", "ahead", "total", "open", "text", "drawn"]

# eot: a row is done when a block ends in end-of-turn. eos: when a finished block leaves end-of-text in the answer.
# early_eos: also within a block, as soon as nothing before the first end-of-text is masked. ids: after a block with one
# of stop_ids. row_eos: when all rows have end-of-text. batch_eos: so too, and a block ends for all rows as soon as one of
# them has end-of-text with nothing masked before it.
Stop = Literal["never", "eot", "eos", "early_eos", "ids", "row_eos", "batch_eos"]

Cache = Annotated[Literal["prefix", "dual", "exact"] | CachePolicy | None, BeforeValidator(read_policy)]


class Unset:
    """Settings that some samplers have, as those decode that do not."""

    guidance: float = 0.0
    guidance_keep: tuple[int, ...] = ()  # tokens that the unconditional copy still sees
    confidence: Confidence = "probability"
    shift: bool | None = None  # whether row i predicts token i + 1; None: as the model was trained
    forbid_eos: bool = False  # end-of-text is never chosen
    late_eos: bool = False  # end-of-text and end-of-turn are committed last
    top_p: float | None = None
    top_k: int | None = None
    suppress: tuple[int, ...] = ()  # never chosen
    begin_suppress: tuple[int, ...] = ()  # taken out after the choice, so that only confidences change
    stop_ids: tuple[int, ...] = ()
    room: int = 0  # columns behind the answer that a decoder may write to


@settings(DecodeError)
class Decode(Unset):
    """Decode settings: how a canvas of mask tokens becomes text.

    `Decode.llada(...)`, `Decode.dream(...)` and so on are the samplers. Each is a subclass with its authors' defaults
    and has the settings below. Some samplers have further settings, which mean the same in all of them:

    - `guidance`: Scale of classifier-free guidance; 0 switches it off. The unconditional copy has a masked prompt.
    - `guidance_keep`: Token ids that the unconditional copy keeps.
    - `confidence`: Measure of confidence in a candidate: "probability", "margin" (lead over the second token),
      "entropy" (negative entropy) or "random".
    - `shift`: Whether the logits at position i predict token i + 1; the default is as the model was trained.
    - `forbid_eos`: Whether end-of-text is never chosen.
    - `late_eos`: Whether end-of-text and end-of-turn are committed last.
    - `top_p`: Probability mass of the likeliest tokens that are sampled from; None switches it off.
    - `top_k`: Number of likeliest tokens that are sampled from; None switches it off.
    - `suppress`: Token ids that are never chosen.
    - `begin_suppress`: Token ids that are excluded from confidences but may be chosen.
    - `stop_ids`: Token ids that end the generation after their block.

    Args:
        length: Number of tokens to generate.
        block: Number of tokens per block; None makes the whole answer one block.
        steps: Number of denoising steps for the answer (per block for samplers that count blocks from column 0, such as
            `llada2` and `sdar`); None lets the commit rule decide.
        temperature: Sampling temperature; 0 takes the likeliest token.
        seed: Seed of all random numbers.
        noise: Layout of random numbers: "reference" is as in the authors' code, "per_row" gives each sequence of a
            batch the numbers that it would have alone.
        stop: Rule that ends a sequence early: "never"; "eot", a block that ends in end-of-turn; "eos", a finished block
            with end-of-text; "early_eos", end-of-text without a mask token before it; "ids", a block with one of
            `stop_ids`; "row_eos", end-of-text in all sequences of the batch; "batch_eos", as "row_eos", and the block
            ends for all sequences together.
        delete: Positions of the prompt that are deleted before it is read; negative positions count from its end.
        commit: Name of a registered commit rule that replaces the sampler's own rule.
        threshold: Smallest confidence (0 to 1) at which a token is committed, for commit rules with a threshold.
        factor: Factor of Fast-dLLM's rule: the token of rank r is committed while its confidence is at least 1 - factor
            / (r + 1).
        cache: Key-value cache: None, "prefix", "dual", "exact" or a cache policy such as `SparseCache`. The sampler
            decides which of them it supports.
        eos_id: Token id of end-of-text; the default is the model's.
        eot_id: Token id of end-of-turn; the default is the model's.

    Raises:
        DecodeError: If settings contradict each other.
    """

    sampler: ClassVar[str] = ""
    own_rule: ClassVar[str] = ""  # commit rule, if `commit` names no other; "": it has none
    layout: ClassVar[Layout] = "answer"  # where blocks are counted from, and how a batch is padded
    choice: ClassVar[Choice] = "gumbel"  # how a token is chosen
    confidence_dtype: ClassVar[Literal["model", "float32", "float64"]] = "model"
    caches: ClassVar[tuple[str | None, ...]] = (None,)
    block_causal: ClassVar[bool] = False  # a position sees its own block and those before it
    left_to_right: ClassVar[bool] = False
    draws_by_block: ClassVar[bool] = False  # random numbers are for a block, not for the whole canvas
    reads_context: ClassVar[bool] = False  # a forward reads the text before a block, without a cache too
    stores_last_block: ClassVar[bool] = False  # a forward fills the cache after the last block too
    needs_own_model: ClassVar[bool] = False  # only families that name the sampler can be decoded so
    cuts_at_end: ClassVar[bool] = False  # the answer ends after the first end-of-text, as in the authors' code
    unused: ClassVar[tuple[str, ...]] = ()  # settings of others that one call for all samplers may give

    length: Count
    _: KW_ONLY
    block: Count | None = None
    steps: Count | None = None
    temperature: NonNegative = 0.0
    seed: Seed = 0
    noise: Noise = "reference"
    stop: Stop = "never"
    delete: Positions = ()
    commit: CommitName | None = None
    threshold: Share | None = None
    factor: NonNegative | None = None
    cache: Cache = None
    eos_id: TokenId | None = None
    eot_id: TokenId | None = None

    if TYPE_CHECKING:
        llada: ClassVar[type[samplers.llada.LLaDA]]
        mmada: ClassVar[type[samplers.llada.MMaDA]]
        dream: ClassVar[type[samplers.dream.Dream]]
        parallel: ClassVar[type[samplers.parallel.Parallel]]
        autoregressive: ClassVar[type[samplers.causal.Autoregressive]]
        llada2: ClassVar[type[samplers.block_diffusion.LLaDA2]]
        llada21: ClassVar[type[samplers.block_diffusion.LLaDA21]]
        sdar: ClassVar[type[samplers.block_diffusion.SDAR]]
        mdlm: ClassVar[type[samplers.dllm.MDLM]]
        bd3lm: ClassVar[type[samplers.dllm.BD3LM]]
        fast_dllm2: ClassVar[type[samplers.block_diffusion.FastDLLM2]]
        nemotron: ClassVar[type[samplers.nemotron.Nemotron]]
        wedlm: ClassVar[type[samplers.parallel.WeDLM]]
        rnd1: ClassVar[type[samplers.rnd1.RND1]]
        klass: ClassVar[type[samplers.klass.KLASS]]
        wino: ClassVar[type[samplers.wino.WINO]]
        pc_sampler: ClassVar[type[samplers.certainty.PCSampler]]
        certainty: ClassVar[type[samplers.certainty.Certainty]]
        diffusion_gemma: ClassVar[type[samplers.diffusion_gemma.DiffusionGemma]]
        mdlm_dit: ClassVar[type[samplers.mdlm.MDLMDiT]]
        bd3lm_dit: ClassVar[type[samplers.bd3lm.BD3LMDiT]]
        gidd: ClassVar[type[samplers.gidd.GIDD]]
        gidd_correction: ClassVar[type[samplers.gidd.GIDDCorrection]]
        gidd_v2: ClassVar[type[samplers.gidd.GIDDv2]]
        sedd: ClassVar[type[samplers.mdlm.SEDD]]

    def __post_init__(self) -> None:
        self.complete()
        self.check()

    def complete(self) -> None:
        """Set what follows from other settings, with `put`, before the settings are checked."""

    def put(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def mode(self) -> Mode:
        """Mode in which a checkpoint that decodes in several ways is run."""
        return "autoregressive" if self.left_to_right else "diffusion"

    # ---- what follows from the settings

    @property
    def commit_rule(self) -> str:
        return self.commit or self.own_rule

    @property
    def is_stochastic(self) -> bool:
        """Whether answers depend on the seed."""
        return self.temperature > 0 or self.confidence == "random" or self.commit_rule == "origin"

    @property
    def blocks(self) -> int:
        return 1 if self.block is None else ceil(self.length / self.block)

    @property
    def answer_length(self) -> int:
        """Number of columns after the prompt."""
        return self.length

    @property
    def pads_left(self) -> bool:
        """Whether shorter prompts of a batch must be padded at their left."""
        return self.layout == "answer"

    @property
    def most_steps(self) -> int:
        """Largest number of denoising steps that these settings can need for any prompt."""
        if self.layout == "grid":  # the first block holds the end of the prompt, and there may be one more for it
            return (self.blocks + 1) * (self.steps or self.block or self.length)
        return self.length if self.steps is None else self.steps

    def forwards(self, model: Model) -> Forwards:
        """Return the object that runs the canvas through the model: whole, in parts, or block by block.

        Args:
            model: Model to run.
        """
        from sinkscope.decoding.forwards import BlockForwards, Forwards

        shift = model.shift if self.shift is None else self.shift
        if self.block_causal:
            assert self.block is not None
            return BlockForwards(model, self.block, self.cache == "exact", shift)
        policy = CACHE_POLICIES[self.cache]() if isinstance(self.cache, str) else self.cache
        return Forwards(model, shift) if policy is None else policy.forwards(model, shift)

    def generate(self, run: DecodeRun) -> tuple[Tensor, Sequence[Tensor]]:
        """Run the denoising loop.

        Args:
            run: Prompt, model and settings of this generation.

        Returns:
            Final canvas [batch, position], and the answer tokens of each sequence.
        """
        from sinkscope.decoding.loop import denoise

        return denoise(run)

    def fit(self, length: int, words: Mapping[str, Any]) -> dict[str, Any]:
        """Choose length, block and steps that fit together.

        Args:
            length: Number of tokens to generate.
            words: Settings that were given and must be kept.
        """
        block, steps = words.get("block", self.block), words.get("steps")
        if self.layout == "answer":
            if "block" not in words and block is not None:  # where blocks divide the length
                block = max(size for size in range(1, min(block, length) + 1) if length % size == 0)
        else:
            block = self.block if block is None else block
        if self.layout == "rows" and words.get("block") is None and block is not None:
            block = min(block, length)
        if self.steps is not None and self.layout == "grid":
            most = block or length  # steps are counted per block there, and more than its tokens have nothing to do
            return {"length": length, "block": block, "steps": most if steps is None else min(steps, most)}
        without = "steps" not in words if self.layout == "answer" else steps is None
        if self.steps is not None and without:
            steps = length
        return {"length": length, "block": block, "steps": steps}

    # ---- settings that cannot work are refused when they are made

    def check(self) -> None:
        """Check the sizes, then whether the commit rule has the settings that it reads, then whether the cache fits."""
        if self.layout == "answer":
            self.check_sizes()
        if self.own_rule:
            self.check_rule()
        elif self.commit is not None or self.factor is not None:
            raise DecodeError(f"{self.sampler} decoding has no commit rule to choose; leave commit and factor out.")
        cache = "sparse" if isinstance(self.cache, CachePolicy) else self.cache
        if cache not in self.caches:
            known = ", ".join(map(str, self.caches))
            raise DecodeError(f"Expected a cache that goes with {self.sampler} decoding ({known}), got {cache}.")
        if self.guidance > 0 and cache is not None and cache != "exact":
            raise DecodeError("Guidance and a cache were both asked for, and no published decoder has both; drop one.")

    def check_sizes(self) -> None:
        length, block, steps = self.length, self.block, self.steps
        if block is not None and length % block:
            near = next(size for away in range(block) for size in (block - away, block + away) if length % size == 0)
            raise DecodeError(
                f"Expected a length that blocks divide, got length {length} and block {block}; try length "
                f"{length // block * block or block} or block {near}."
            )
        if steps is not None and steps % self.blocks:
            raise DecodeError(
                f"Expected steps that the {self.blocks} blocks share evenly, got {steps}; "
                f"try {max(steps // self.blocks, 1) * self.blocks}."
            )
        if steps is not None and steps > length and self.commit_rule == "quota":
            raise DecodeError(
                f"Expected at most as many steps as tokens, got {steps} steps for length {length}: "
                "some steps would commit nothing; use fewer steps."
            )

    def check_rule(self) -> None:
        rule = COMMIT_RULES[self.commit_rule]
        for name in dict.fromkeys(("threshold", "factor", *rule.needs)):
            given = getattr(self, name, None) is not None
            if given != (name in rule.needs) and not (given and name in rule.reads):
                wrong = "has no effect; leave it out" if given else "is needed; give one"
                raise DecodeError(f"With commit={self.commit_rule!r}, {name} {wrong}, or choose another rule.")

    # ---- as plain data

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data; `family` names the sampler."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if isinstance(self.cache, CachePolicy):
            values["cache"] = self.cache.to_dict()
        return {"family": self.sampler, **values}

    @classmethod
    def from_dict(cls, values: Any) -> Decode:
        """Build settings from the output of `to_dict`.

        Args:
            values: Mapping with at least `family` (the sampler) and `length`.
        """
        if not isinstance(values, Mapping) or not {"family", "length"} <= set(values):
            raise DecodeError(f"Expected decode settings with at least family and length, got {values!r:.60}.")
        kind = SAMPLERS[values["family"]]
        return kind(**kind.own_settings(values))

    @classmethod
    def own_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those values that are settings of this sampler.

        Args:
            values: Mapping from setting to value.

        Raises:
            DecodeError: If a setting belongs to other samplers only and is not None.
        """
        known = {one.name for one in fields(cls)}
        rest = {str(name): value for name, value in values.items() if name != "family"}
        if unknown := sorted(name for name, value in rest.items() if name not in known and value is not None):
            raise DecodeError(f"{', '.join(unknown)} has no effect in {cls.sampler} decoding; leave it out.")
        return {name: value for name, value in rest.items() if name in known}

    def changed(self, words: Mapping[str, Any]) -> Decode:
        """Return a copy with some settings replaced.

        Args:
            words: Mapping from setting to new value; `family` switches to another sampler, which keeps nothing of these
                settings.
        """
        if words.get("family", self.sampler) != self.sampler:
            return self.from_dict(words)
        return replace(self, **self.own_settings(words))


SAMPLERS: Registry[type[Decode]] = Registry("sampler", DecodeError)


@dataclass_transform(frozen_default=True)
def sampler(name: str) -> Any:
    """Class decorator: checked settings that are known as `Decode.name`, and take other libraries' names of settings."""

    def decorate(kind: type[Decode]) -> type[Decode]:
        kind.sampler = name
        checked = settings(DecodeError)(kind)
        construct: Any = checked.__init__

        def init(self: Any, *values: Any, **words: Any) -> None:
            construct(self, *values, **rename_settings(words, DecodeError))

        checked.__init__ = init  # type: ignore[method-assign]
        setattr(Decode, name, checked)
        return SAMPLERS.add(name, checked)

    return decorate


def setting_names(lists: bool = True) -> set[str]:
    """The settings of all samplers; lists: also those that hold several values."""
    settings = [one for kind in SAMPLERS.values() for one in fields(kind)]
    return {one.name for one in settings if lists or not isinstance(one.default, tuple)}


def check_setting(name: str, value: Any, own: Decode | None = None) -> None:
    """Refuse a value that no sampler takes for this setting; own: that these settings do not take, if they have it."""
    wrong: DecodeError | None = None
    has_it = own is not None and name in {one.name for one in fields(own)}
    for kind in [type(own)] if own is not None and has_it else SAMPLERS.values():
        if name not in {one.name for one in fields(kind)}:
            continue
        try:
            validate(get_type_hints(kind, include_extras=True)[name], value, name, DecodeError)
            return
        except DecodeError as error:
            wrong = error
    if wrong is not None:
        raise wrong
