"""A canvas that a small diffusion model denoises as a whole: its forwards, its random draws, and what each step changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.forward import Forward, forward_context
from sinkscope.decoding.canvas import Canvas, DecodeRun, Step, build_canvas
from sinkscope.decoding.choose import noise_of
from sinkscope.decoding.settings import Decode, Layout
from sinkscope.errors import DecodeError
from sinkscope.validation import FromZero, settings

Span = tuple[int, int] | None  # columns of the canvas; None: all
TINY = 1e-10  # keeps the logarithm of a uniform number finite, as the authors' code does


@dataclass
class NoisyCanvas:
    """State of one generation of a batch."""

    run: DecodeRun
    canvas: Canvas
    identity: object = field(default_factory=object)
    step: int = 0
    before: Tensor | None = None  # the tokens that the last forward read
    open: Tensor | None = None  # bool [batch, position]: what was a mask to it
    confidence: Tensor | None = None
    reached: int | None = None  # columns that are kept, where the text ends before the canvas does

    def __post_init__(self) -> None:
        self.model, self.settings = self.run.model, self.run.settings
        self.noise = noise_of(self.settings, self.canvas.tokens.shape, self.canvas.padding())

    @property
    def tokens(self) -> Tensor:
        return self.canvas.tokens

    @property
    def mask_id(self) -> int:
        return self.canvas.mask_id

    @property
    def masked(self) -> Tensor:
        """bool [batch, position]: masks that are to be written."""
        return self.canvas.masked_positions()

    def describe(self, span: tuple[int, int], time: Tensor | None = None, kind: str = "denoise") -> Forward:
        """What a forward over these columns is, for all who listen."""
        padding = self.canvas.padding()
        return Forward(
            self.identity, self.step, self.canvas.labels()[:, slice(*span)], self.canvas.batch, span[0],
            padding if int(padding.max()) else None, max(self.canvas.answers), kind=kind, ids=self.tokens,
            time=None if time is None else time.reshape(1), most=self.settings.most_steps,
        )  # fmt: skip

    def forward(self, time: Tensor | None = None, span: Span = None) -> Tensor:
        """Logits [batch, position, vocab] of the canvas, or of some of its columns, which then see each other only."""
        span = span or (0, self.canvas.width)
        self.begin(span)
        real = self.canvas.real[:, slice(*span)]
        mask = None if bool(real.all()) else real.long()
        with forward_context(self.describe(span, time)):
            return self.run_model(self.tokens[:, slice(*span)], attention_mask=mask)

    def begin(self, span: tuple[int, int]) -> None:
        """A denoising forward is about to run."""
        self.run.note(self.tokens)
        self.run.forwards += 1
        self.span, self.before, self.open, self.confidence = span, self.tokens, self.masked, None

    def run_model(self, ids: Tensor, **words: Any) -> Tensor:
        """Logits of the ids; a forward must be described around it."""
        module: Any = self.model.module
        hidden = module.base_model(ids, **words).last_hidden_state
        return self.model.family.head(module, hidden)

    def write(self, tokens: Tensor, where: Tensor) -> bool:
        """Put tokens where they may stand, both [batch, position]; whether anything changed."""
        changed = torch.where(where, tokens, self.tokens)
        same = torch.equal(changed, self.tokens)
        self.canvas = replace(self.canvas, tokens=changed)
        return not same

    def fill(self, tokens: Tensor, span: Span = None) -> bool:
        """Put tokens [batch, column] in the place of the masks of some columns; whether anything changed."""
        first, last = span or (0, self.canvas.width)
        whole, where = self.tokens.clone(), torch.zeros_like(self.masked)
        whole[:, first:last], where[:, first:last] = tokens, self.masked[:, first:last]
        return self.write(whole, where)

    def look(self, probabilities: Tensor, span: Span = None) -> None:
        """Note how sure the model is, [batch, position, vocab] of these columns."""
        first, last = span or (0, self.canvas.width)
        self.confidence = torch.full(self.tokens.shape, torch.nan, device=self.tokens.device)
        self.confidence[:, first:last] = probabilities.amax(-1).float()

    def end_step(self) -> None:
        """Tell what the step of the last forward changed; nothing if it was told already."""
        if self.before is None or self.open is None:
            return
        was, now = self.open, self.masked
        confidence = torch.full(self.tokens.shape, torch.nan) if self.confidence is None else self.confidence
        step = Step(
            self.step, self.tokens, confidence, was & ~now, self.span,
            edited=~was & ~now & (self.before != self.tokens), reopened=~was & now,
        )  # fmt: skip
        self.step, self.before = self.step + 1, None
        self.run.tell(step)

    def draw(self, weights: Tensor) -> Tensor:
        """weights [batch, position, vocab] → ids [batch, position], one of each position with chances like its weights."""
        uniform = self.noise.whole(weights.shape, weights.dtype).to(weights.device)
        return (weights / (TINY - (uniform + TINY).log())).argmax(-1)

    def finish(self) -> tuple[Tensor, list[Tensor]]:
        """The last canvas, and each row's answer."""
        self.end_step()
        self.run.note(self.tokens)
        stop = self.canvas.width if self.reached is None else self.reached
        self.run.cut(stop)
        answers = [row[start:stop] for row, start in zip(self.tokens, self.canvas.answers, strict=True)]
        return self.tokens[:, :stop], answers


@settings(DecodeError)
class NoisyDecode(Decode):
    """What the decoders of small diffusion models share: masks in the prompt are written too, so that length may be 0."""

    layout: ClassVar[Layout] = "open"
    needs_own_model: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("block", "temperature")
    state_class: ClassVar[type[NoisyCanvas]] = NoisyCanvas
    pads: ClassVar[bool] = True  # prompts of unequal length may be in one batch

    length: FromZero

    @property
    def is_stochastic(self) -> bool:
        return True

    @property
    def most_steps(self) -> int:
        return (self.steps or 1) + 1

    def generate(self, run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
        if run.attention_mask is not None and not self.pads:
            raise DecodeError(f"{self.sampler} decoding takes prompts of one length in a batch; decode them in turn.")
        state = self.state_class(run, build_canvas(run.model, run.prompt, self, run.attention_mask))
        self.write(state)
        return state.finish()

    def write(self, state: Any) -> None:
        """All steps of a generation; a subclass writes it."""
        raise NotImplementedError


def known_tokens(logits: Tensor, mask_id: int) -> Tensor:
    """Probabilities [batch, position, vocab] of all tokens but the mask."""
    logits = logits.float()
    logits[..., mask_id] = -torch.inf
    return logits.softmax(-1)
