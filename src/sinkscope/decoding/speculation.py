"""Nemotron's self-speculation: a block is drafted by denoising, and a causal forward keeps the part that it would write.

A step is a forward of a draft. The causal forwards, which also fill the cache, belong to no step, as in other decoders.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.decoding.cache import BlockForwards
from sinkscope.decoding.canvas import Block, History
from sinkscope.decoding.commit.continued import Continued, next_token
from sinkscope.decoding.diffusion import Denoiser
from sinkscope.errors import DecodeError
from sinkscope.models.model import Model
from sinkscope.settings import Decode


def speculate(
    model: Model, prompt: Tensor, settings: Decode, attention_mask: Tensor | None, run: History
) -> tuple[Tensor, list[Tensor]]:
    """prompt [1, position] → the text with whatever stands behind it, and the answer, which may exceed the length."""
    if len(prompt) != 1:
        raise DecodeError(
            f"Self-speculation decodes one prompt at a time, got {len(prompt)}; decode them in turn (in a study: chunk: 1)."
        )
    # An end token in a draft ends nothing: only what is confirmed counts.
    state = Denoiser(model, prompt, replace(settings, stop="never"), attention_mask, run)
    assert isinstance(state.forwards, BlockForwards) and settings.block is not None
    start = state.canvas.answers[0]
    state.fill_cache(start)
    answer = [int(next_token(state, torch.zeros(1, dtype=torch.int64, device=prompt.device)))]
    fed = answer[0]
    while len(answer) < settings.length and not _ended(state, settings, answer):
        place = state.forwards.kept
        block = _block(state, place, fed, settings.block)
        _draft(state, block)
        written = _verified(state, block)
        answer += written
        state.forwards.cut(place + len(written))
        fed = written[-1]
        most, marker = settings.max_thinking_tokens, settings.end_think_id
        if most is not None and marker is not None and len(answer) > most and marker not in answer:
            fed = marker  # the model reads it; the text keeps what was written
    if _ended(state, settings, answer):
        answer = answer[: answer.index(int(state.eos_id or 0)) + 1]
    done = torch.tensor(answer, device=prompt.device)
    state.canvas.tokens = state.canvas.tokens.clone()
    state.canvas.tokens[0, start:] = state.canvas.blank
    state.canvas.tokens[0, start : start + len(answer)] = done
    run.note(state.canvas.tokens)
    run.cut(start + max(len(answer), settings.length))
    return state.canvas.tokens[:, : start + max(len(answer), settings.length)], [done]


def _ended(state: Denoiser, settings: Decode, answer: list[int]) -> bool:
    return settings.stop != "never" and state.eos_id in answer


def _block(state: Denoiser, place: int, first: int, size: int) -> Block:
    """The columns of a draft: what was written last, then masks."""
    columns = torch.arange(state.canvas.width, device=state.canvas.tokens.device)[None]
    inside = (columns >= place) & (columns < place + size)
    tokens = state.canvas.tokens.masked_fill(columns >= place, state.canvas.blank)
    tokens[0, place] = first
    state.canvas.tokens = tokens
    return Block((place, place + size), inside, columns < place + size)


def _draft(state: Denoiser, block: Block) -> None:
    assert isinstance(state.forwards, BlockForwards)
    rule = Continued(state, block)
    while rule.unfinished() and rule.step < state.forwards.size:  # a model that chooses its mask token does not end
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


def _verified(state: Denoiser, block: Block) -> list[int]:
    """What the causal forward writes after the draft's tokens, as long as it writes the draft itself, and one more."""
    first, last = block.span
    draft = state.canvas.tokens[0, first + 1 : last].tolist()
    state.fill_cache(last)
    assert isinstance(state.forwards, BlockForwards) and state.forwards.stored is not None
    columns = torch.arange(last - first, device=state.canvas.tokens.device)
    logits = state.logits(state.forwards.stored, torch.zeros_like(columns), columns)
    state.noise.frame(last - first)
    written = state.chooser.choose(logits, columns)[0].tolist()
    pairs = enumerate(zip(written, draft, strict=False))
    agreed = next((count for count, (own, drafted) in pairs if own != drafted), len(draft))
    return [int(token) for token in written[: agreed + 1]]
