"""`Decode`: every choice of a decoder in one frozen, serialisable dataclass, with a constructor per published sampler."""

# ruff: noqa: RUF009 - what `only` makes is a field
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import ceil
from typing import Any, Concatenate, Literal, ParamSpec

from sinkscope.aliases import rename_settings
from sinkscope.errors import DecodeError
from sinkscope.fields import among, need, thawed
from sinkscope.settings import choices as may_be
from sinkscope.settings.choices import Cache, Confidence, SparseCache, check

Ids = Sequence[int] | None
Given = ParamSpec("Given")


def only(*families: may_be.Kind, default: Any = None) -> Any:
    """A setting that has a meaning in these families only; elsewhere it would be ignored, so it is refused."""
    return field(default=default, metadata={"only": families})


def sampler(make: Callable[Concatenate[Any, Given], dict[str, Any]]) -> classmethod[Decode, Given, Decode]:
    """A classmethod that constructs: `make` gives the settings beside its arguments, its further words among them.

    The family is called as the constructor, unless it says another. Words that are unknown, given twice, missing, or set by
    the sampler itself are refused.
    """
    takes = inspect.signature(make)
    shown = [name for name, one in takes.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]

    @functools.wraps(make)
    def made(kind: Any, *values: Any, **words: Any) -> Any:
        words = rename_settings(words, DecodeError)
        try:
            given = takes.bind(kind, *values, **words)
            if "family" in words:
                raise TypeError("got multiple values for argument 'family'")
            given.apply_defaults()
            own = {field.name: given.arguments[field.name] for field in fields(kind) if field.name in given.arguments}
            return kind(**{"family": make.__name__, **own, **make(kind, *values, **words)})
        except TypeError as error:
            # What Python says of a call names the argument: "got an unexpected keyword argument 'lenght'".
            why = str(error).partition("() ")[2] or str(error)
            raise DecodeError(
                f"Expected Decode.{make.__name__}({', '.join([*shown, '…'])}) and further fields of Decode, but it {why}."
            ) from None

    made.__signature__ = takes.replace(return_annotation="Decode")  # type: ignore[attr-defined]  # for help()
    return classmethod(made)  # type: ignore[arg-type]  # it takes what `make` takes


@dataclass(frozen=True)
class Decode:
    """How a canvas becomes text; build one with `Decode.llada(…)` and its siblings."""

    family: may_be.Kind
    length: may_be.Count  # tokens to generate
    block: may_be.Count | None = None  # None: the whole canvas is one block
    # forwards over the whole answer (grid layout: per block); None: as the commit rule needs
    steps: may_be.Count | None = None
    temperature: may_be.Number = 0.0
    top_p: may_be.Share | None = None
    top_k: may_be.Count | None = None
    guidance: may_be.Number = 0.0
    confidence: may_be.Confidence = "probability"
    confidence_dtype: Literal["model", "float32", "float64"] = "model"
    commit: may_be.Commit = "quota"  # name of a registered commit rule
    threshold: may_be.Share | None = None
    factor: may_be.Number | None = None
    algorithm_temperature: may_be.Number | None = None
    epsilon: may_be.Share = 1e-3  # where Dream's schedule of times ends
    forbid_eos: bool = False  # end-of-text is never chosen
    late_eos: bool = False  # end-of-text and end-of-turn are committed last
    eos_id: may_be.TokenId | None = None  # None: the model's
    eot_id: may_be.TokenId | None = None
    stop: may_be.Stop = "never"
    cache: Cache = None
    seed: may_be.Seed = 0
    noise: may_be.Noise = "reference"
    # What came with block diffusion; left out of to_dict where it has its default, so that older files read the same.
    layout: may_be.Layout = "answer"  # where blocks are counted from, and how a batch is padded
    choice: may_be.Choice | None = None  # how a token is chosen; None: drawn for Dream and left to right, else Gumbel
    block_causal: bool = False  # a position sees its own block and those before it
    minimal_topk: may_be.Count | None = only("llada2")  # LLaDA2.0: steps per block are at most length // minimal_topk
    editing_threshold: may_be.Share | None = only("llada21")  # LLaDA2.1: a known token is replaced by a surer other one
    max_post_steps: may_be.FromZero | None = only("llada21")  # LLaDA2.1: forwards over a block without masks
    num_to_transfer: may_be.Count | None = only("llada21")  # LLaDA2.1: commits per step at least
    # SDAR: "reference" lets a quota overwrite known tokens
    overwrite: Literal["never", "reference"] = only("sdar", default="never")
    stochastic: bool = only("mdlm", "bd3lm", default=False)  # dllm: the quota of a step is drawn, not rounded
    steps_per_block: may_be.Count | None = only("bd3lm")
    sub_block: may_be.Count | None = only("fast_dllm2")  # Fast-dLLM v2: a block is filled in parts of this length
    # whether row i predicts token i + 1; None: as the model was trained
    shift: bool | None = only("mdlm", "bd3lm", "llada", "mmada", "dream", "parallel")
    pad_id: may_be.TokenId | None = only("bd3lm")
    stop_ids: may_be.TokenIds = only("sdar", default=())  # generation ends after the block that holds one of these
    guidance_keep: may_be.TokenIds = only("mdlm", "bd3lm", default=())  # tokens that the unconditional copy still sees
    suppress: may_be.TokenIds = only("mdlm", "bd3lm", default=())  # never chosen
    # taken out after the choice, so that only confidences change
    begin_suppress: may_be.TokenIds = only("mdlm", "bd3lm", default=())
    recompute: bool = only("autoregressive", default=False)  # every step computes all rows again, and keeps no cache
    delete: may_be.Positions = ()  # positions of the prompt that are taken out before it is read
    mode: may_be.Mode | None = only("nemotron", "autoregressive")  # None: the checkpoint decodes in one way
    causal_context: bool = only("nemotron", default=True)  # Nemotron: prompt and finished blocks are read causally
    # after so many tokens without end_think_id it is written
    max_thinking_tokens: may_be.FromZero | None = only("nemotron", "autoregressive")
    end_think_id: may_be.TokenId | None = only("nemotron", "autoregressive")
    # RND1: columns of the canvas, the prompt's included; None: as length needs
    total_length: may_be.Count | None = only("rnd1")
    suffix: may_be.TokenIds = only("rnd1", default=())  # RND1: text behind the masks
    infill_length: may_be.Count | None = only("rnd1")  # RND1: masks; None: as many as there is room for
    eos_at_end: bool = only("rnd1", default=False)  # RND1: the column reserved for end-of-text holds it, not padding
    greedy: bool = only("rnd1", default=True)  # RND1: the likeliest token, whatever the temperature
    gamma: may_be.Number | None = only("rnd1", "native")  # entropy that the commits of one step may add up to
    t_min: may_be.Number | None = only("native")  # DiffusionGemma: temperature at the last step of a canvas
    t_max: may_be.Number | None = only("native")  # … and at its first
    stability: may_be.FromZero | None = only("native")  # DiffusionGemma: steps without a change that end a canvas

    # Each constructor returns what it sets beside the arguments that are settings themselves; `sampler` puts both together.

    @sampler
    def llada(
        cls, /, length: int, block: int | None = None, steps: int | None = None, temperature: float = 0.0,
        guidance: float = 0.0, confidence: Confidence = "probability", forbid_eos: bool = False, late_eos: bool = False,
        eos_id: int | None = None, eot_id: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """LLaDA's semi-autoregressive sampler: blocks left to right, the same number of commits every step."""
        return {"steps": length if steps is None else steps, **more}

    @sampler
    def mmada(
        cls, /, length: int, block: int | None = None, steps: int | None = None, temperature: float = 0.0,
        guidance: float = 0.0, confidence: Confidence = "probability", **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """MMaDA's sampler: LLaDA's with float64 confidence; stop="eot" is its fast variant."""
        return {"steps": length if steps is None else steps, "confidence_dtype": "float64", **more}

    @sampler
    def dream(
        cls, /, length: int, steps: int | None = None, algorithm: str = "origin",
        algorithm_temperature: float | None = None, temperature: float = 1.0, top_p: float | None = 1.0,
        top_k: int | None = 50, epsilon: float = 1e-3, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Dream's sampler; arguments left out are what its code takes then, top_k = 50 included (None switches off).

        algorithm="p2" is Open-dCoder's: the least confident of all generated tokens are masked again at every step.
        """
        return dict(steps=length if steps is None else steps, **may_be.dream_algorithm(algorithm), **more)

    @sampler
    def parallel(
        cls, /, length: int, block: int | None = None, threshold: float | None = 0.9, factor: float | None = None,
        cache: Cache | Literal["none"] = None, steps: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Fast-dLLM: commit what is confident enough, by `factor` instead of `threshold`, or a quota of `steps`.

        As in the authors' code, `steps` may stand beside a threshold or a factor, which decide alone.
        """
        commit = "factor" if factor is not None else "threshold" if threshold is not None else "quota"
        steps = (length if steps is None else steps) if commit == "quota" else None
        threshold = threshold if commit == "threshold" else None
        return dict(commit=commit, steps=steps, threshold=threshold, cache=None if cache == "none" else cache,
                    **{"confidence_dtype": "float64", **more})  # fmt: skip

    @sampler
    def autoregressive(
        cls, /, length: int, temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None,
        recompute: bool = False, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """One token per step, left to right, with a key-value cache.

        recompute=True keeps no cache: every step computes all rows again, the protocol of a diffusion model. Without an
        intervention both write the same tokens (to rounding); under one, rows of the prompt are computed under it too.
        """
        return dict(commit="next", **more)

    @sampler
    def llada2(
        cls, /, length: int, block: int = 32, steps: int = 32, threshold: float = 0.95, minimal_topk: int = 1,
        eos_id: int | None = None, early_stop: bool = False, temperature: float = 0.0, top_p: float | None = None,
        top_k: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """LLaDA2.0: blocks from column 0, block-causal; all that are sure enough, or else a quota of the block.

        It ends after the block that holds end-of-text; early_stop ends inside the block, once all before it is known.
        """
        return dict(commit="dynamic", **{"stop": "early_eos" if early_stop else "eos", **BLOCK_DIFFUSION, **more})

    @sampler
    def llada21(
        cls, /, length: int, block: int = 32, threshold: float = 0.95, editing_threshold: float = 0.9,
        max_post_steps: int = 16, num_to_transfer: int = 1, eos_id: int | None = None, early_stop: bool = False,
        temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """LLaDA2.1: as 2.0, and known tokens of the block are replaced while the model is sure of others."""
        stop = "eos" if early_stop else "never"
        return dict(commit="edit", steps=None, **{"stop": stop, **BLOCK_DIFFUSION, **more})

    @sampler
    def sdar(
        cls, /, length: int, block: int = 4, steps: int = 4, rule: str = "dynamic", threshold: float = 0.85,
        temperature: float = 1.0, top_p: float | None = 1.0, top_k: int | None = None, stop_ids: Ids = (),
        overwrite: Literal["never", "reference"] = "never", **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """SDAR and TraDo: block by block over an exact cache; tokens are drawn, by the rules dynamic, static, sequential.

        overwrite="reference" lets a quota above the masks left replace known tokens, the prompt's too, as the authors'
        code does; "never" commits masks only. temperature 0 takes the likeliest token (the authors' code cannot).
        """
        need("rule", rule, among(("dynamic", "static", "sequential")), DecodeError)
        settings = {"cache": "exact", "stop": "ids" if stop_ids else "never", **BLOCK_DIFFUSION, **more}
        return dict(commit=rule, threshold=threshold if rule == "dynamic" else None, top_k=top_k or None, **settings)

    @sampler
    def mdlm(
        cls, /, length: int, block: int | None = None, steps: int | None = None, confidence: Confidence = "probability",
        stochastic: bool = False, guidance: float = 0.0, guidance_keep: Ids = (), suppress: Ids = (),
        begin_suppress: Ids = (), shift: bool | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """dllm's masked sampler: blocks from each row's own prompt end, quotas rounded half to even."""
        sizes = {"block": length if block is None else block, "steps": length if steps is None else steps}
        return dict(commit="rounded", **sizes, **{"layout": "rows", **more})

    @sampler
    def bd3lm(
        cls, /, length: int, block: int | None = None, steps: int | None = None, confidence: Confidence = "probability",
        stochastic: bool = False, guidance: float = 0.0, guidance_keep: Ids = (), suppress: Ids = (),
        begin_suppress: Ids = (), shift: bool | None = None, steps_per_block: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """dllm's block sampler: prompts padded at the left to whole blocks, block-causal, over an exact cache."""
        sizes = {"block": length if block is None else block, "steps": length if steps is None else steps}
        settings = {"layout": "left", "block_causal": True, "cache": "exact", "stop": "row_eos", **more}
        return dict(commit="rounded", **sizes, **settings)

    @sampler
    def fast_dllm2(
        cls, /, length: int, block: int = 32, sub_block: int = 8, threshold: float = 1.0, temperature: float = 0.0,
        top_p: float | None = 0.95, top_k: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Fast-dLLM v2: block-causal and shifted; blocks are filled in sub-blocks, at least one token per step."""
        return dict(commit="sub_blocks", steps=None, **{"cache": "exact", "stop": "eos", **BLOCK_DIFFUSION, **more})

    @sampler
    def nemotron(
        cls, /, length: int, block: int = 32, threshold: float | None = 0.9, mode: may_be.Mode = "diffusion",
        causal_context: bool = True, temperature: float = 0.0, eos_id: int | None = None,
        max_thinking_tokens: int | None = None, end_think_id: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Nemotron-Labs-Diffusion: blocks from the prompt's end over a causal text, one at work sees all of itself.

        threshold: None commits one token per step. mode="autoregressive" writes left to right (block and threshold have no
        part in it). "self_speculation" drafts a block and keeps what a causal forward confirms. With threshold 0 or None a
        draft is one forward, and the text may become up to a block longer than length. stop="batch_eos" is the authors'
        rule, in which rows of a batch wait for each other; "early_eos" ends each row by itself, "never" reads no end token.
        """
        more = {"stop": "batch_eos", **more}
        if mode == "autoregressive":
            return dict(family=mode, commit="next", block=None, threshold=None, causal_context=True, **more)
        drafts = mode == "self_speculation"
        usual = {"layout": "ahead", "choice": "draw"} if drafts else {"confidence_dtype": "float32"}
        return dict(commit="continued", steps=None, threshold=(threshold or None) if drafts else threshold,
                    **{"block_causal": True, "cache": "exact", **usual, **more})  # fmt: skip

    @sampler
    def wedlm(
        cls, /, length: int, block: int = 16, threshold: float | None = None, temperature: float = 0.0, **more: Any
    ) -> dict[str, Any]:
        """WeDLM: known tokens are read first, causally, and masks after them; all that are sure enough, else the best.

        threshold: 0 or None commits one token per step. The likeliest token is taken; temperature only changes how sure it is.
        """
        return dict(commit="threshold" if threshold else "best", steps=None, threshold=threshold or None,
                    **{"layout": "aligned", "block_causal": True, "choice": "likeliest", **more})  # fmt: skip

    @sampler
    def rnd1(
        cls, /, total_length: int | None = None, steps: int = 256, temperature: float = 1.0, greedy: bool = True,
        top_k: int | None = None, top_p: float | None = None, gamma: float | None = None, suffix: Ids = (),
        infill_length: int | None = None, eos_id: int | None = None, eos_at_end: bool = False, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """RND1: positions of high entropy stay masked longest, by a schedule over steps or by the entropy bound gamma.

        total_length counts the prompt; length=… in its place counts new tokens alone. With an eos_id the last column is
        reserved: it holds padding, or end-of-text with eos_at_end. suffix: ids behind the masks. Unless greedy, tokens are drawn.
        """
        return dict(commit="entropy" if gamma is None else "entropy_bounded", block=None, top_k=top_k or None,
                    **{"length": total_length, "layout": "total", "choice": "entropy", **more})  # fmt: skip

    @sampler
    def diffusion_gemma(
        cls, /, length: int, block: int = 256, steps: int = 48, gamma: float | None = None, t_min: float | None = None,
        t_max: float | None = None, threshold: float | None = None, stability: int | None = None,
        eos_id: int | None = None, **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """DiffusionGemma's own generate: canvases of `block` random tokens, each denoised in at most `steps` forwards.

        block is the checkpoint's canvas length; whole canvases are written. gamma is its entropy_bound, threshold
        its confidence_threshold (entropy at which a stable canvas is done), stability its stability_threshold; None: as it
        has them.
        """
        usual = {"stop": "eos", "cache": "exact", "layout": "grid", "block_causal": True}
        return dict(family="native", commit="accepted", **{**usual, **more})

    @property
    def answer_length(self) -> int:
        """Columns behind the prompt: the length, or the canvases that hold it."""
        return self.blocks * (self.block or 1) if self.family == "native" else self.length

    @property
    def blocks(self) -> int:
        return 1 if self.block is None else ceil(self.length / self.block)

    @property
    def most_steps(self) -> int:
        """The most denoising steps that these settings can take, whatever the prompt."""
        if self.family in ("mdlm", "bd3lm"):
            return self.blocks * (self.steps_per_block or ceil((self.steps or self.length) / self.blocks))
        if self.family == "native":
            return self.blocks * (self.steps or 48)
        if self.layout == "ahead":  # a round adds at least one token, and drafts one mask per forward at least
            return self.length * (1 if self.threshold is None else max((self.block or 2) - 1, 1))
        if self.layout == "grid":  # the first block holds the end of the prompt, and there may be one more for it
            block = self.block or self.length
            return (self.blocks + 1) * (block + (self.max_post_steps or 0) if self.steps is None else self.steps)
        return self.length if self.steps is None else self.steps

    def to_dict(self) -> dict[str, Any]:
        left_out = {one.name for one in fields(self) if one.name in LATER and getattr(self, one.name) == one.default}
        return {name: thawed(value) for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_dict(cls, values: Any) -> Decode:
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"family", "length"} <= set(values):
            raise DecodeError(f"Expected decode settings with at least family and length, got {values!r:.60}.")
        if strange := sorted(map(str, set(values) - known)):
            came = ", ".join(f"{name:.60}" for name in strange[:5])
            raise DecodeError(f"Expected decode settings among {', '.join(sorted(known))}, got {came}.")
        cache = values.get("cache")
        return cls(**{**values, "cache": SparseCache.from_dict(cache) if isinstance(cache, Mapping) else cache})

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(item.default, tuple) and (value is None or isinstance(value, Sequence)):
                object.__setattr__(self, item.name, tuple(value or ()))
        check(self)


BLOCK_DIFFUSION: dict[str, Any] = {"layout": "grid", "block_causal": True, "choice": "block_draw"}
_NAMES = [field.name for field in fields(Decode)]
LATER = set(_NAMES[_NAMES.index("layout") :])
