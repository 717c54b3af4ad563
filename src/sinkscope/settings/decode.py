"""`Decode`: every choice of a decoder in one frozen, serialisable dataclass, with a constructor per published sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Literal

from sinkscope.errors import DecodeError
from sinkscope.settings.checks import check
from sinkscope.settings.choices import DREAM_ALGORITHMS, Cache, Choice, Confidence, Kind, Layout, Mode, Noise, Stop
from sinkscope.settings.samplers import sampler
from sinkscope.settings.sparse import SparseCache

Ids = Sequence[int] | None


@dataclass(frozen=True)
class Decode:
    """How a canvas becomes text; build one with `Decode.llada(…)` and its siblings."""

    family: Kind
    length: int  # tokens to generate
    block: int | None = None  # None: the whole canvas is one block
    steps: int | None = None  # forwards over the whole answer (grid layout: per block); None: as the commit rule needs
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    guidance: float = 0.0
    confidence: Confidence = "probability"
    confidence_dtype: Literal["model", "float32", "float64"] = "model"
    commit: str = "quota"  # name of a registered commit rule
    threshold: float | None = None
    factor: float | None = None
    algorithm_temperature: float | None = None
    epsilon: float = 1e-3  # where Dream's schedule of times ends
    forbid_eos: bool = False  # end-of-text is never chosen
    late_eos: bool = False  # end-of-text and end-of-turn are committed last
    eos_id: int | None = None  # None: the model's
    eot_id: int | None = None
    stop: Stop = "never"
    cache: Cache = None
    seed: int = 0
    noise: Noise = "reference"
    # What came with block diffusion; left out of to_dict where it has its default, so that older files read the same.
    layout: Layout = "answer"  # where blocks are counted from, and how a batch is padded
    choice: Choice | None = None  # how a token is chosen; None: drawn for Dream and left to right, else Gumbel
    block_causal: bool = False  # a position sees its own block and those before it
    minimal_topk: int | None = None  # LLaDA2.0: steps per block are at most length // minimal_topk
    editing_threshold: float | None = None  # LLaDA2.1: a known token is replaced by a surer other one
    max_post_steps: int | None = None  # LLaDA2.1: forwards over a block without masks
    num_to_transfer: int | None = None  # LLaDA2.1: commits per step at least
    overwrite: Literal["never", "reference"] = "never"  # SDAR: "reference" lets a quota overwrite known tokens
    stochastic: bool = False  # dllm: the quota of a step is drawn, not rounded
    steps_per_block: int | None = None
    sub_block: int | None = None  # Fast-dLLM v2: a block is filled in parts of this length
    shift: bool | None = None  # whether row i predicts token i + 1; None: as the model was trained
    pad_id: int | None = None
    stop_ids: tuple[int, ...] = ()  # generation ends after the block that holds one of these
    guidance_keep: tuple[int, ...] = ()  # tokens that the unconditional copy still sees
    suppress: tuple[int, ...] = ()  # never chosen
    begin_suppress: tuple[int, ...] = ()  # taken out after the choice, so that only confidences change
    recompute: bool = False  # left to right: every step computes all rows again, and keeps no cache
    delete: tuple[int, ...] = ()  # positions of the prompt that are taken out before it is read
    mode: Mode | None = None  # of a checkpoint that decodes in several ways; None: it knows one
    causal_context: bool = True  # Nemotron: prompt and finished blocks are read causally
    max_thinking_tokens: int | None = None  # after so many tokens without end_think_id it is written
    end_think_id: int | None = None
    total_length: int | None = None  # RND1: columns of the canvas, the prompt's included; None: as length needs
    suffix: tuple[int, ...] = ()  # RND1: text behind the masks
    infill_length: int | None = None  # RND1: masks; None: as many as there is room for
    eos_at_end: bool = False  # RND1: the column reserved for end-of-text holds it, and not padding
    greedy: bool = True  # RND1: the likeliest token, whatever the temperature
    gamma: float | None = None  # RND1, DiffusionGemma: entropy that the commits of one step may add up to
    t_min: float | None = None  # DiffusionGemma: temperature at the last step of a canvas
    t_max: float | None = None  # … and at its first
    stability: int | None = None  # DiffusionGemma: steps over which a finished canvas stays the same

    @classmethod
    @sampler
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
    @sampler
    def mmada(
        cls, length: int, block: int | None = None, steps: int | None = None, temperature: float = 0.0,
        guidance: float = 0.0, confidence: Confidence = "probability", **more: Any,
    ) -> Decode:  # fmt: skip
        """MMaDA's sampler: LLaDA's with float64 confidence; stop="eot" is its fast variant."""
        more = {"confidence_dtype": "float64", **more}
        return cls("mmada", length, block, length if steps is None else steps, temperature, guidance=guidance,
                   confidence=confidence, **more)  # fmt: skip

    @classmethod
    @sampler
    def dream(
        cls, length: int, steps: int | None = None, algorithm: str = "origin",
        algorithm_temperature: float | None = None, temperature: float = 1.0, top_p: float | None = 1.0,
        top_k: int | None = 50, epsilon: float = 1e-3, **more: Any,
    ) -> Decode:  # fmt: skip
        """Dream's sampler; arguments left out are what its code takes then, top_k = 50 included (None switches off).

        algorithm="p2" is Open-dCoder's: the least confident of all generated tokens are masked again at every step.
        """
        if algorithm not in tuple(DREAM_ALGORITHMS):  # a list cannot be looked up in a mapping
            raise DecodeError(f"Expected algorithm to be one of {', '.join(DREAM_ALGORITHMS)}, got {algorithm!r}.")
        confidence, commit = DREAM_ALGORITHMS[algorithm]
        return cls("dream", length, steps=length if steps is None else steps, temperature=temperature, top_p=top_p,
                   top_k=top_k, confidence=confidence, commit=commit, algorithm_temperature=algorithm_temperature,
                   epsilon=epsilon, **more)  # fmt: skip

    @classmethod
    @sampler
    def parallel(
        cls, length: int, block: int | None = None, threshold: float | None = 0.9, factor: float | None = None,
        cache: Cache | Literal["none"] = None, steps: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """Fast-dLLM: commit what is confident enough, by `factor` instead of `threshold`, or a quota of `steps`.

        As in the authors' code, `steps` may stand beside a threshold or a factor, which decide alone.
        """
        commit = "factor" if factor is not None else "threshold" if threshold is not None else "quota"
        more = {"confidence_dtype": "float64", **more}
        return cls("parallel", length, block, (length if steps is None else steps) if commit == "quota" else None,
                   commit=commit, threshold=threshold if commit == "threshold" else None, factor=factor,
                   cache=None if cache == "none" else cache, **more)  # fmt: skip

    @classmethod
    @sampler
    def autoregressive(
        cls, length: int, temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None,
        recompute: bool = False, **more: Any,
    ) -> Decode:  # fmt: skip
        """One token per step, left to right, with a key-value cache.

        recompute=True keeps no cache: every step computes all rows again, the protocol of a diffusion model. Without an
        intervention both write the same tokens (to rounding); under one, rows of the prompt are computed under it too.
        """
        return cls("autoregressive", length, temperature=temperature, top_p=top_p, top_k=top_k, commit="next",
                   recompute=recompute, **more)  # fmt: skip

    @classmethod
    @sampler
    def llada2(
        cls, length: int, block: int = 32, steps: int = 32, threshold: float = 0.95, minimal_topk: int = 1,
        eos_id: int | None = None, early_stop: bool = False, temperature: float = 0.0, top_p: float | None = None,
        top_k: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """LLaDA2.0: blocks from column 0, block-causal; all that are sure enough, or else a quota of the block.

        It ends after the block that holds end-of-text; early_stop ends inside the block, once all before it is known.
        """
        stop: Stop = "early_eos" if early_stop else "eos"
        return cls("llada2", length, block, steps, temperature, top_p, top_k, commit="dynamic", threshold=threshold,
                   minimal_topk=minimal_topk, eos_id=eos_id, **{"stop": stop, **BLOCK_DIFFUSION, **more})  # fmt: skip

    @classmethod
    @sampler
    def llada21(
        cls, length: int, block: int = 32, threshold: float = 0.95, editing_threshold: float = 0.9,
        max_post_steps: int = 16, num_to_transfer: int = 1, eos_id: int | None = None, early_stop: bool = False,
        temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """LLaDA2.1: as 2.0, and known tokens of the block are replaced while the model is sure of others."""
        stop: Stop = "eos" if early_stop else "never"
        return cls("llada21", length, block, None, temperature, top_p, top_k, commit="edit", threshold=threshold,
                   editing_threshold=editing_threshold, max_post_steps=max_post_steps, num_to_transfer=num_to_transfer,
                   eos_id=eos_id, **{"stop": stop, **BLOCK_DIFFUSION, **more})  # fmt: skip

    @classmethod
    @sampler
    def sdar(
        cls, length: int, block: int = 4, steps: int = 4, rule: str = "dynamic", threshold: float = 0.85,
        temperature: float = 1.0, top_p: float | None = 1.0, top_k: int | None = None, stop_ids: Ids = (),
        overwrite: Literal["never", "reference"] = "never", **more: Any,
    ) -> Decode:  # fmt: skip
        """SDAR and TraDo: block by block over an exact cache; tokens are drawn, by the rules dynamic, static, sequential.

        overwrite="reference" lets a quota above the masks left replace known tokens, the prompt's too, as the authors'
        code does; "never" commits masks only. temperature 0 takes the likeliest token (the authors' code cannot).
        """
        if rule not in ("dynamic", "static", "sequential"):
            raise DecodeError(f"Expected rule to be 'dynamic', 'static' or 'sequential', got {rule!r}.")
        settings = {"cache": "exact", "stop": "ids" if stop_ids else "never", **BLOCK_DIFFUSION, **more}
        return cls("sdar", length, block, steps, temperature, top_p, top_k or None, commit=rule,
                   threshold=threshold if rule == "dynamic" else None, stop_ids=_ids(stop_ids),
                   overwrite=overwrite, **settings)  # fmt: skip

    @classmethod
    @sampler
    def mdlm(
        cls, length: int, block: int | None = None, steps: int | None = None, confidence: Confidence = "probability",
        stochastic: bool = False, guidance: float = 0.0, guidance_keep: Ids = (), suppress: Ids = (),
        begin_suppress: Ids = (), shift: bool | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """dllm's masked sampler: blocks from each row's own prompt end, quotas rounded half to even."""
        return cls(length=length, block=length if block is None else block, steps=length if steps is None else steps,
                   commit="rounded", confidence=confidence, stochastic=stochastic, guidance=guidance,
                   guidance_keep=_ids(guidance_keep), suppress=_ids(suppress),
                   begin_suppress=_ids(begin_suppress), shift=shift,
                   **{"family": "mdlm", "layout": "rows", **more})  # fmt: skip

    @classmethod
    @sampler
    def bd3lm(
        cls, length: int, block: int | None = None, steps: int | None = None, confidence: Confidence = "probability",
        stochastic: bool = False, guidance: float = 0.0, guidance_keep: Ids = (), suppress: Ids = (),
        begin_suppress: Ids = (), shift: bool | None = None, steps_per_block: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """dllm's block sampler: prompts padded at the left to whole blocks, block-causal, over an exact cache."""
        settings = {"layout": "left", "block_causal": True, "cache": "exact", "stop": "row_eos", **more}
        return cls.mdlm(length, block, steps, confidence, stochastic, guidance, guidance_keep, suppress, begin_suppress,
                        shift, family="bd3lm", steps_per_block=steps_per_block, **settings)  # fmt: skip

    @classmethod
    @sampler
    def fast_dllm2(
        cls, length: int, block: int = 32, sub_block: int = 8, threshold: float = 1.0, temperature: float = 0.0,
        top_p: float | None = 0.95, top_k: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """Fast-dLLM v2: block-causal and shifted; blocks are filled in sub-blocks, at least one token per step."""
        settings = {"cache": "exact", "stop": "eos", **BLOCK_DIFFUSION, **more}
        return cls("fast_dllm2", length, block, None, temperature, top_p, top_k, commit="sub_blocks",
                   threshold=threshold, sub_block=sub_block, **settings)  # fmt: skip

    @classmethod
    @sampler
    def nemotron(
        cls, length: int, block: int = 32, threshold: float | None = 0.9, mode: Mode = "diffusion",
        causal_context: bool = True, temperature: float = 0.0, eos_id: int | None = None,
        max_thinking_tokens: int | None = None, end_think_id: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """Nemotron-Labs-Diffusion: blocks from the prompt's end over a causal text, one at work sees all of itself.

        threshold: None commits one token per step. mode="autoregressive" writes left to right (block and threshold have no
        part in it). "self_speculation" drafts a block and keeps what a causal forward confirms. With threshold 0 or None a
        draft is one forward, and the text may become up to a block longer than length. stop="batch_eos" is the authors'
        rule, in which rows of a batch wait for each other; "early_eos" ends each row by itself, "never" reads no end token.
        """
        shared: dict[str, Any] = {"eos_id": eos_id, "max_thinking_tokens": max_thinking_tokens, "mode": mode,
                                  "end_think_id": end_think_id, "stop": "batch_eos"}  # fmt: skip
        if mode == "autoregressive":
            return cls.autoregressive(length, temperature, **{**shared, **more})
        drafts = mode == "self_speculation"
        shared |= {"layout": "ahead", "choice": "draw"} if drafts else {"confidence_dtype": "float32"}
        return cls("nemotron", length, block, None, temperature, commit="continued",
                   threshold=(threshold or None) if drafts else threshold, causal_context=causal_context,
                   **{"block_causal": True, "cache": "exact", **shared, **more})  # fmt: skip

    @classmethod
    @sampler
    def wedlm(
        cls, length: int, block: int = 16, threshold: float | None = None, temperature: float = 0.0, **more: Any
    ) -> Decode:
        """WeDLM: known tokens are read first, causally, and masks after them; all that are sure enough, else the best.

        threshold: 0 or None commits one token per step. The likeliest token is taken; temperature only changes how sure it is.
        """
        return cls("wedlm", length, block, None, temperature, commit="threshold" if threshold else "best",
                   threshold=threshold or None,
                   **{"layout": "aligned", "block_causal": True, "choice": "likeliest", **more})  # fmt: skip

    @classmethod
    @sampler
    def rnd1(
        cls, total_length: int | None = None, steps: int = 256, temperature: float = 1.0, greedy: bool = True,
        top_k: int | None = None, top_p: float | None = None, gamma: float | None = None, suffix: Ids = (),
        infill_length: int | None = None, eos_id: int | None = None, eos_at_end: bool = False, **more: Any,
    ) -> Decode:  # fmt: skip
        """RND1: positions of high entropy stay masked longest, by a schedule over steps or by the entropy bound gamma.

        total_length counts the prompt; length=… in its place counts new tokens alone. With an eos_id the last column is
        reserved: it holds padding, or end-of-text with eos_at_end. suffix: ids behind the masks. Unless greedy, tokens are drawn.
        """
        length = more.pop("length", total_length)
        return cls("rnd1", length, None, steps, temperature, top_p, top_k or None, gamma=gamma, suffix=_ids(suffix),
                   commit="entropy" if gamma is None else "entropy_bounded", total_length=total_length, greedy=greedy,
                   infill_length=infill_length, eos_id=eos_id, eos_at_end=eos_at_end,
                   **{"layout": "total", "choice": "entropy", **more})  # fmt: skip

    @classmethod
    @sampler
    def diffusion_gemma(
        cls, length: int, block: int = 256, steps: int = 48, gamma: float | None = None, t_min: float | None = None,
        t_max: float | None = None, threshold: float | None = None, stability: int | None = None,
        eos_id: int | None = None, **more: Any,
    ) -> Decode:  # fmt: skip
        """DiffusionGemma's own generate: canvases of `block` random tokens, each denoised in at most `steps` forwards.

        block is the checkpoint's canvas length; whole canvases are written. gamma is its entropy_bound, threshold
        its confidence_threshold (entropy at which a stable canvas is done), stability its stability_threshold; None: as it
        has them.
        """
        return cls("native", length, block, steps, commit="accepted", gamma=gamma, threshold=threshold, eos_id=eos_id,
                   t_min=t_min, t_max=t_max, stability=stability,
                   **{"stop": "eos", "cache": "exact", "layout": "grid", "block_causal": True, **more})  # fmt: skip

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
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name not in LATER or getattr(self, field.name) != field.default
        }

    @classmethod
    def from_dict(cls, values: Any) -> Decode:
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"family", "length"} <= set(values):
            raise DecodeError(f"Expected decode settings with at least family and length, got {values!r:.60}.")
        if strange := sorted(map(str, set(values) - known)):
            came = ", ".join(f"{name:.60}" for name in strange[:5])
            raise DecodeError(f"Expected decode settings among {', '.join(sorted(known))}, got {came}.")
        made: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        if isinstance(made.get("cache"), Mapping):
            made["cache"] = SparseCache.from_dict(made["cache"])
        return cls(**made)

    def __post_init__(self) -> None:
        check(self)


def _ids(value: Any) -> Any:
    """A sequence as a tuple; what is none stays as it is, and is refused with the other values."""
    return tuple(value) if isinstance(value, Sequence) else () if value is None else value


def _plain(value: Any) -> Any:
    if isinstance(value, SparseCache):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


BLOCK_DIFFUSION: dict[str, Any] = {"layout": "grid", "block_causal": True, "choice": "block_draw"}
LATER = {field.name for field in fields(Decode)} - {
    "family", "length", "block", "steps", "temperature", "top_p", "top_k", "guidance", "confidence", "confidence_dtype",
    "commit", "threshold", "factor", "algorithm_temperature", "epsilon", "forbid_eos", "late_eos", "eos_id", "eot_id",
    "stop", "cache", "seed", "noise",
}  # fmt: skip
