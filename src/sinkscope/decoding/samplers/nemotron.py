"""Nemotron-Labs-Diffusion: blocks over a causal text, left to right, or self-speculation.

In self-speculation a block is drafted by denoising, and a causal forward keeps the part that it would write. A step is a
forward of a draft. The causal forwards, which also fill the cache, belong to no step, as in other decoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, DecodeRun, Picks
from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.samplers.causal import continue_text
from sinkscope.decoding.samplers.parallel import above_threshold
from sinkscope.decoding.settings import Cache, Choice, Decode, Layout, Mode, Stop, TokenId, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, FromZero, NonNegative, Share, Truth

if TYPE_CHECKING:
    from sinkscope.decoding.forwards import BlockForwards, Forwards
    from sinkscope.decoding.loop import Denoiser
    from sinkscope.models.model import Model


@sampler("nemotron")
class Nemotron(Decode):
    """Sampler of Nemotron-Labs-Diffusion: blocks from the end of the prompt, with bidirectional attention inside the
    present block and causal attention before it.

    Args:
        block: Number of tokens per block, or per draft of "self_speculation"; unused by "autoregressive".
        threshold: Smallest confidence at which a token is committed; None commits one token per step. In
            "self_speculation", None or 0 makes a draft with a single forward.
        mode: Way of decoding: "diffusion", "autoregressive", or "self_speculation", which drafts a block and keeps the
            tokens that a causal forward confirms; its text may exceed `length` by up to one block.
        causal_context: Whether the prompt and finished blocks use causal attention.
        max_thinking_tokens: Number of tokens after which `end_think_id` is written, if the text does not have it yet;
            None for no limit.
        end_think_id: Token id that ends the model's thinking.
        stop: Rule that ends a sequence: "batch_eos" is the authors' rule, in which the sequences of a batch wait for
            each other; "early_eos" ends each sequence by itself; "never" ignores end-of-text.
    """

    own_rule: ClassVar[str] = "continued"
    block_causal: ClassVar[bool] = True
    draws_by_block: ClassVar[bool] = True
    reads_context: ClassVar[bool] = True
    stores_last_block: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("steps",)

    block: Count | None = 32
    threshold: Share | None = 0.9
    mode: Mode = "diffusion"
    _: KW_ONLY
    causal_context: Truth = True
    temperature: NonNegative = 0.0
    eos_id: TokenId | None = None
    max_thinking_tokens: FromZero | None = None
    end_think_id: TokenId | None = None
    cache: Cache = "exact"
    stop: Stop = "batch_eos"

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        return "ahead" if self.mode == "self_speculation" else "answer"

    @property
    def choice(self) -> Choice:  # type: ignore[override]
        return "gumbel" if self.mode == "diffusion" else "draw"

    @property
    def confidence_dtype(self) -> str:  # type: ignore[override]
        return "float32" if self.mode == "diffusion" else "model"

    @property
    def caches(self) -> tuple[str | None, ...]:  # type: ignore[override]
        return (None, "exact") if self.mode == "diffusion" and self.causal_context else ("exact",)

    @property
    def left_to_right(self) -> bool:  # type: ignore[override]
        return self.mode == "autoregressive"

    @property
    def cuts_at_end(self) -> bool:  # type: ignore[override]
        return self.stop == "early_eos"

    @property
    def room(self) -> int:  # type: ignore[override]
        return self.block or 0 if self.mode == "self_speculation" else 0  # a draft may begin before the last token

    @property
    def most_steps(self) -> int:
        if self.mode == "self_speculation":  # a round adds at least one token, and drafts one mask per forward at least
            return self.length * (1 if self.threshold is None else max((self.block or 2) - 1, 1))
        return self.length

    def complete(self) -> None:
        self.put(steps=None)
        if self.left_to_right:
            self.put(block=None, threshold=None, causal_context=True)
        elif self.mode == "self_speculation":
            self.put(threshold=self.threshold or None)

    def check(self) -> None:
        super().check()
        if self.end_think_id is None and self.max_thinking_tokens is not None:
            raise DecodeError("max_thinking_tokens needs end_think_id, the token that is written then; give it.")

    def forwards(self, model: Model) -> Forwards:
        from sinkscope.decoding.forwards import TextForwards

        assert self.block is not None
        return TextForwards(model, self.block, self.causal_context, self.cache == "exact")

    def generate(self, run: DecodeRun) -> tuple[Tensor, Sequence[Tensor]]:
        if self.mode == "diffusion":
            return super().generate(run)
        if self.mode == "self_speculation":
            return speculate(run)
        canvas, reached = continue_text(run, thinking=(self.max_thinking_tokens, self.end_think_id))
        return canvas, list(canvas[:, run.prompt.shape[1] : reached])


@register("continued")
class Continued(CommitRule):
    """Everything at or above the threshold, and at least the best; without a threshold the best alone."""

    block_only = True
    reads = ("threshold",)

    def begin(self) -> None:
        run, block = self.run, self.block
        if self.settings.mode == "diffusion":  # a draft of self-speculation brings its first token
            run.canvas.tokens = run.canvas.tokens.clone()
            if self.settings.causal_context:
                rows = (~run.done).nonzero().flatten()
                run.canvas.tokens[rows, block.span[0]] = next_token(run, rows)
            self._end_thinking(*block.span)
        self.written = (
            ~run.canvas.masked_positions() & block.inside
        )  # written by no step of this block: told with its first

    def _end_thinking(self, first: int, last: int) -> None:
        most, marker = self.settings.max_thinking_tokens, self.settings.end_think_id
        if most is None or marker is None:
            return
        tokens = self.run.canvas.tokens
        for row, start in enumerate(self.run.canvas.answers):
            if last - start > most and not bool((tokens[row, start:first] == marker).any()):
                tokens[row, max(start + most, first)] = marker

    def is_unfinished(self) -> bool:
        if self.settings.stop == "batch_eos" and self.step and self._ends():
            return False
        return super().is_unfinished()

    def _ends(self) -> bool:
        """Whether in any row an end-of-text of this block has nothing masked before it."""
        first, last = self.block.span
        tokens = self.run.canvas.tokens[:, first:last]
        masked = (tokens == self.run.canvas.mask_id).cumsum(1) > 0
        return bool((self.run.ends(tokens) & ~masked).any())

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        # At a threshold that nothing can reach, only the best is left.
        chosen = above_threshold(confidence, 2.0 if self.settings.threshold is None else self.settings.threshold)
        return Picks(chosen | self.written if self.step == 0 else chosen)


def block_forwards(run: Denoiser) -> BlockForwards:
    return cast("BlockForwards", run.forwards)


def hidden_of_text(run: Denoiser) -> Tensor:
    """[batch, window, width]: of the last forward that read text into the cache."""
    hidden = block_forwards(run).stored
    assert hidden is not None
    return hidden


def next_token(run: Denoiser, rows: Tensor) -> Tensor:
    """What the causal head of the text in the cache writes next, [row]."""
    logits = run.logits(hidden_of_text(run)[:, -1:], rows, torch.zeros_like(rows))
    if run.settings.temperature == 0:
        return logits.argmax(-1)
    run.noise.frame(1)
    shares = (logits / run.settings.temperature).softmax(-1)
    return run.noise.draw(shares.cpu(), rows).to(logits.device)


def speculate(run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
    """The text of one prompt with whatever stands behind it, and the answer, which may exceed the length."""
    settings, prompt = run.settings, run.prompt
    if len(prompt) != 1:
        raise DecodeError(
            f"Self-speculation decodes one prompt at a time, got {len(prompt)}; decode them in turn (in a study: chunk: 1)."
        )
    from sinkscope.decoding.loop import Denoiser

    # An end token in a draft ends nothing: only what is confirmed counts.
    run.settings = replace(settings, stop="never")
    state = Denoiser(run)
    start = state.canvas.answers[0]
    state.fill_cache(start)
    answer = [int(next_token(state, torch.zeros(1, dtype=torch.int64, device=prompt.device)))]
    fed = answer[0]
    while len(answer) < settings.length and not is_ended(state, settings, answer):
        place = block_forwards(state).kept
        block = draft_block(state, place, fed, settings.block)
        write_draft(state, block)
        written = verify_draft(state, block)
        answer += written
        block_forwards(state).cut(place + len(written))
        fed = written[-1]
        most, marker = settings.max_thinking_tokens, settings.end_think_id
        if most is not None and marker is not None and len(answer) > most and marker not in answer:
            fed = marker  # the model reads it; the text keeps what was written
    if is_ended(state, settings, answer):
        answer = answer[: answer.index(int(state.eos_id or 0)) + 1]
    done = torch.tensor(answer, device=prompt.device)
    state.canvas.tokens = state.canvas.tokens.clone()
    state.canvas.tokens[0, start:] = state.canvas.mask_id
    state.canvas.tokens[0, start : start + len(answer)] = done
    run.note(state.canvas.tokens)
    run.cut(start + max(len(answer), settings.length))
    return state.canvas.tokens[:, : start + max(len(answer), settings.length)], [done]


def is_ended(state: Denoiser, settings: Nemotron, answer: list[int]) -> bool:
    return settings.stop != "never" and state.eos_id in answer


def draft_block(state: Denoiser, place: int, first: int, size: int) -> Block:
    """The columns of a draft: what was written last, then masks."""
    columns = torch.arange(state.canvas.width, device=state.canvas.tokens.device)[None]
    inside = (columns >= place) & (columns < place + size)
    tokens = state.canvas.tokens.masked_fill(columns >= place, state.canvas.mask_id)
    tokens[0, place] = first
    state.canvas.tokens = tokens
    return Block((place, place + size), inside, columns < place + size)


def write_draft(state: Denoiser, block: Block) -> None:
    rule = Continued(state, block)
    while (
        rule.is_unfinished() and rule.step < block_forwards(state).size
    ):  # a model that chooses its mask token does not end
        hidden, start = state.forward(block)
        # A draw is over the whole block, known tokens included: so the random numbers fall as in the authors' code.
        chosen, confidence = state.candidates(hidden, start, block.inside, block)
        usable = confidence.masked_fill(~rule.open(), -torch.inf)
        picks = rule.pick(chosen, usable)
        if state.settings.threshold is None:
            picks.commit = rule.open() | picks.commit
        chosen = torch.where(rule.open(), chosen, state.canvas.tokens)
        state.commit(chosen, confidence, picks, block)
        rule.step += 1


def verify_draft(state: Denoiser, block: Block) -> list[int]:
    """What the causal forward writes after the draft's tokens, as long as it writes the draft itself, and one more."""
    first, last = block.span
    draft = state.canvas.tokens[0, first + 1 : last].tolist()
    state.fill_cache(last)
    columns = torch.arange(last - first, device=state.canvas.tokens.device)
    logits = state.logits(hidden_of_text(state), torch.zeros_like(columns), columns)
    state.noise.frame(last - first)
    written = state.chooser.choose(logits, columns)[0].tolist()
    pairs = enumerate(zip(written, draft, strict=False))
    agreed = next((count for count, (own, drafted) in pairs if own != drafted), len(draft))
    return [int(token) for token in written[: agreed + 1]]
