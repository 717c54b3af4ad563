"""BD3-LM's own sampler: block after block, by first hitting or on a schedule, over a cache of finished blocks or without."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.forward import Forward, forward_context
from sinkscope.decoding.canvas import DecodeRun
from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, all_rows, known_tokens
from sinkscope.decoding.samplers.mdlm import noise_level
from sinkscope.decoding.settings import Cache, Layout, TokenId, sampler
from sinkscope.errors import DecodeError
from sinkscope.models.family import block_mask
from sinkscope.models.model import Model
from sinkscope.validation import Count, Share, Truth

TESTED = 256  # tokens whose entropy is tested
LEAST_ENTROPY = 4.0  # nats


@sampler("bd3lm_dit")
class BD3LMDiT(NoisyDecode):
    """BD3-LM's sampler for its own checkpoints (Decode.bd3lm is dllm's, for others).

    first_hitting fills one token per forward, one text at a time; else `steps` times per block decide. nucleus: the
    likeliest tokens whose chances sum to at most this are drawn from. window: how many tokens a forward sees at most, the
    checkpoint's length unless given. entropy_test: a text whose last 256 tokens repeat too much is refused, as the authors'
    code does. var_length cuts them instead, and ends the text at end-of-text. An empty prompt is the begin token.
    """

    layout: ClassVar[Layout] = "begun"
    block_causal: ClassVar[bool] = True
    caches: ClassVar[tuple[str | None, ...]] = (None, "exact")
    pads: ClassVar[bool] = False
    unused: ClassVar[tuple[str, ...]] = ("temperature",)

    block: Count | None = 4
    steps: Count | None = 5000
    _: KW_ONLY
    first_hitting: Truth = True
    nucleus: Share = 1.0
    window: Count | None = None
    var_length: Truth = False
    entropy_test: Truth = True
    eos_id: TokenId | None = None
    cache: Cache = "exact"

    @property
    def most_steps(self) -> int:
        if self.first_hitting and self.length:
            return self.length + 1
        return (self.blocks + 1) * (self.steps or 1)

    def fit(self, length: int, words: Any) -> dict[str, Any]:
        return {"length": length, "block": words.get("block") or self.block}

    def generate(
        self, model: Model, prompt: Tensor, attention_mask: Tensor | None, run: DecodeRun
    ) -> tuple[Tensor, list[Tensor]]:
        if self.first_hitting and len(prompt) != 1:
            raise DecodeError(f"first_hitting writes one text at a time, got {len(prompt)}; decode them in turn.")
        state = NoisyCanvas.start(model, prompt, self, attention_mask, run)
        return write_blocks(state, prompted=bool(prompt.shape[1]))


class BlockReader:
    """Forwards of a block over the blocks before it: kept in a cache, or read again within the window."""

    def __init__(self, state: NoisyCanvas) -> None:
        self.state = state
        self.size = int(state.settings.block)
        self.window = int(state.settings.window or state.model.config.window)
        self.cache = DynamicCache(config=state.model.config) if state.settings.cache == "exact" else None
        self.stored = torch.zeros(state.canvas.width, dtype=torch.bool, device=state.tokens.device)

    def span(self, block: tuple[int, int]) -> tuple[int, int]:
        """The columns that a forward computes."""
        return block if self.cache is not None else (max(block[1] - self.window, 0), block[1])

    def read(self, block: tuple[int, int], sigma: Tensor) -> Tensor:
        """Logits of the block, [batch, column, vocab]."""
        span = self.span(block)
        self.state.begin(span)
        self.state.span = block
        logits = self.run(span, sigma, "denoise")
        if self.cache is not None:
            self.cache.crop(block[0] - block[1])
        return logits[:, block[0] - span[0] :]

    def store(self, block: tuple[int, int], sigma: Tensor) -> None:
        """Keep a finished block's keys and values, by one more forward."""
        if self.cache is None:
            return
        self.state.run.forwards += 1
        self.run(block, sigma, "store")
        self.stored[slice(*block)] = True

    def skip(self, block: tuple[int, int]) -> None:
        """A block that was not finished takes room in the cache, and nobody sees it."""
        if self.cache is None:
            return
        config = self.state.model.config
        shape = (self.state.canvas.batch, config.num_attention_heads, block[1] - block[0], config.head_dim)
        nothing = torch.zeros(shape, dtype=self.state.model.dtype, device=self.state.tokens.device)
        for layer in range(config.num_hidden_layers):
            self.cache.update(nothing, nothing, layer)

    def run(self, span: tuple[int, int], sigma: Tensor, kind: str) -> Tensor:
        visible, first = self.visible(span)
        seen = torch.zeros(1, span[1] - span[0], span[1], dtype=torch.bool, device=self.state.tokens.device)
        seen[..., span[1] - visible.shape[-1] :] = visible
        forward: Forward = replace(self.state.describe(span, all_rows(sigma, self.state), kind), visible=seen)
        positions = first + torch.arange(span[1] - span[0], device=self.state.tokens.device)[None]
        with forward_context(forward):
            return self.state.run_model(
                self.state.tokens[:, slice(*span)], attention_mask=visible[:, None], position_ids=positions,
                past_key_values=self.cache,
            )  # fmt: skip

    def visible(self, span: tuple[int, int]) -> tuple[Tensor, int]:
        """Which keys the queries of these columns see, bool [1, query, key], and the position of the first query."""
        size, device = span[1] - span[0], self.stored.device
        if self.cache is None:
            mask = block_mask(self.size, 0, size, None, device)
            return torch.ones(1, size, size, dtype=torch.bool, device=device) if mask is None else mask[0], 0
        before = self.stored[: span[0]].nonzero().flatten()
        keys = torch.zeros(span[1], dtype=torch.bool, device=device)
        keys[before[max(len(before) - (self.window - size), 0) :]] = True
        keys[span[0] :] = True
        return keys.expand(1, size, -1), len(before)


def write_blocks(state: NoisyCanvas, prompted: bool) -> tuple[Tensor, list[Tensor]]:
    """The text, and each row's answer, cut where the authors' code cuts it.

    Blocks of a prompt are stored, which the authors' code does not; a begin token that fills a block is not, as there.
    """
    reader, size, width = BlockReader(state), int(state.settings.block), state.canvas.width
    chance = np.random.RandomState(state.settings.seed)
    reached = width
    for start in range(0, width, size):
        block = (start, min(start + size, width))
        if bool(state.masked[:, slice(*block)].any()):
            write_block(state, reader, block, chance)
        elif prompted:
            reader.store(block, torch.zeros(()))
        else:
            reader.skip(block)
        stop, kept = test_end(state, block[1])
        if stop:
            reached = kept
            break
    tokens, answers = state.finish()
    state.run.cut(reached)
    lost = width - reached
    return tokens[:, :reached], [answer[: max(len(answer) - lost, 0)] for answer in answers]


def write_block(state: NoisyCanvas, reader: BlockReader, block: tuple[int, int], chance: Any) -> None:
    settings, columns = state.settings, slice(*block)
    times, time, sigma = torch.linspace(1, 0, settings.steps), torch.ones(()), torch.zeros(())
    chances: Tensor | None = None
    for number in range(settings.steps):
        if not bool(state.masked[:, : block[1]].any()):
            break
        if settings.first_hitting:
            left = int(state.masked[:, slice(max(block[1] - reader.window, 0), block[1])].sum())
            time = time * chance.random_sample() ** (1 / left)
        else:
            time = times[number]
        sigma = noise_of(time)
        if chances is None:
            state.end_step()
            chances = read_block(state, reader, block, sigma)
        if write_tokens(state, chances, block, time, 1 / settings.steps):
            chances = None
    if bool(state.masked[:, columns].any()):
        reader.skip(block)
    else:
        reader.store(block, sigma)
    state.end_step()


def noise_of(time: Tensor) -> Tensor:
    """Sigma of the schedule in which a time is the share of masks, at most that of time 1."""
    return torch.minimum(-torch.log(1 - time), noise_level(torch.ones(())))


def read_block(state: NoisyCanvas, reader: BlockReader, block: tuple[int, int], sigma: Tensor) -> Tensor:
    """Chances [batch, column, vocab] of the block's tokens, float64, of which the nucleus is left."""
    chances = known_tokens(reader.read(block, sigma), state.mask_id).double()
    state.look(chances, block)
    return keep_nucleus(chances, state.settings.nucleus)


def keep_nucleus(chances: Tensor, share: float) -> Tensor:
    """The likeliest tokens whose sum is at most the share, and the first always: the one that crosses it is out."""
    if share == 1:
        return chances
    ordered, order = chances.sort(-1, descending=True)
    inside = ordered.cumsum(-1) <= share
    inside[..., 0] = True
    kept = torch.zeros_like(chances).scatter(-1, order, ordered * inside)
    return kept / kept.sum(-1, keepdim=True)


def write_tokens(state: NoisyCanvas, chances: Tensor, block: tuple[int, int], time: Tensor, gap: float) -> bool:
    """One update of a block; whether it changed anything."""
    if not state.settings.first_hitting:
        stays = ((time - gap) / time).double()
        weights = chances * (1 - stays)
        weights[..., state.mask_id] = stays
        return state.fill(state.draws.token(weights), block)
    tokens = state.draws.token(chances)
    masked = state.masked[0, slice(*block)].nonzero().flatten()
    place = block[0] + int(masked[torch.randint(0, len(masked), (1,), generator=state.draws.generator)])
    return state.fill(tokens[:, place - block[0]][:, None], (place, place + 1))


def test_end(state: NoisyCanvas, stop: int) -> tuple[bool, int]:
    """Whether a text of more than 256 tokens ends here, and how much of it is kept."""
    settings = state.settings
    if stop <= TESTED or not (settings.entropy_test or settings.var_length):
        return False, stop
    text = state.tokens[:, :stop]
    repeats = entropy(text[:, -TESTED:]) < LEAST_ENTROPY
    if not settings.var_length:
        if repeats:
            raise DecodeError(
                f"The text of seed {settings.seed} repeats itself (its last {TESTED} tokens have less than {LEAST_ENTROPY:g} "
                "nats of entropy), and BD3-LM's authors refuse it; take another seed, or entropy_test=False."
            )
        return False, stop
    if repeats:
        return True, stop - TESTED
    eos = state.model.eos_id if settings.eos_id is None else settings.eos_id
    ends = (text[0] == eos).nonzero().flatten().tolist()
    return (True, ends[1] + 1) if len(ends) > 1 else (False, stop)


def entropy(tokens: Tensor) -> float:
    """Of the counts of tokens, in nats."""
    counts = tokens.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())
