"""BD3-LM's own sampler: block after block, by first hitting or on a schedule, over a cache of finished blocks or without."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.forward import forward_context
from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, known_tokens
from sinkscope.decoding.samplers.mdlm import noise_level
from sinkscope.decoding.settings import Cache, TokenId, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, Share, Truth

TESTED = 256  # tokens whose entropy is tested
LEAST_ENTROPY = 4.0  # nats


@sampler("bd3lm_dit")
class BD3LMDiT(NoisyDecode):
    """Sampler of BD3-LM's own checkpoints; `Decode.bd3lm` is the dllm library's sampler for other models.

    An empty prompt becomes the BOS token.

    Args:
        first_hitting: True to fill one token per forward, which decodes one sequence at a time; False to use `steps`
            times per block.
        nucleus: Probability mass of the likeliest tokens that are sampled from.
        window: Largest number of tokens that a forward attends to; the default is the checkpoint's length.
        var_length: True to end the text at end-of-text and to cut the last 256 tokens if they repeat too much.
        entropy_test: True to refuse a text whose last 256 tokens repeat too much, as the authors' code does.
    """

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

    def write(self, state: NoisyCanvas) -> None:
        if self.first_hitting and state.canvas.batch != 1:
            raise DecodeError(
                f"first_hitting writes one text at a time, got {state.canvas.batch}; decode them in turn (in a study: chunk: 1)."
            )
        write_blocks(state)


class BlockReader:
    """Forwards of a block over the blocks before it: kept in a cache, or read again within the window."""

    def __init__(self, state: NoisyCanvas) -> None:
        from transformers import DynamicCache

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
        state, seen = self.state, self.visible(span)
        forward = replace(state.describe(span, sigma, kind), visible=seen)
        first = 0 if self.cache is None else int(self.stored[: span[0]].sum())
        mask = (seen if self.cache is not None else seen[..., span[0] :])[:, None]
        with forward_context(forward):
            return state.run_model(
                state.tokens[:, slice(*span)], attention_mask=None if bool(mask.all()) else mask, past_key_values=self.cache,
                position_ids=first + torch.arange(span[1] - span[0], device=mask.device)[None],
            )  # fmt: skip

    def visible(self, span: tuple[int, int]) -> Tensor:
        """Which columns the queries of these columns see, bool [1, query, column]."""
        columns = torch.arange(span[1], device=self.stored.device)
        rows, inside = columns[span[0] :, None], columns >= span[0]
        if self.cache is None:
            earlier = (columns - span[0]) // self.size <= (rows - span[0]) // self.size
            return (earlier & inside)[None]
        room = self.window - (span[1] - span[0])
        before = self.stored[: span[1]] & ~inside
        recent = before & (before.flip(0).cumsum(0).flip(0) <= room)
        return (recent | inside).expand(1, len(rows), -1)


def write_blocks(state: NoisyCanvas) -> None:
    """Blocks of a prompt are stored, which the authors' code does not; a begin token that fills a block is not, as there."""
    reader, size, width = BlockReader(state), int(state.settings.block), state.canvas.width
    chance, begin = np.random.RandomState(state.settings.seed), state.model.config.bos_token_id
    prompted = state.canvas.answers[0] > 1 or int(state.tokens[0, 0]) != begin
    for start in range(0, width, size):
        block = (start, min(start + size, width))
        is_open = bool(state.masked[:, slice(*block)].any())
        sigma = write_block(state, reader, block, chance) if is_open else torch.zeros(())
        if (is_open or prompted) and not bool(state.masked[:, slice(*block)].any()):
            reader.store(block, sigma)
        else:
            reader.skip(block)
        state.end_step()
        state.reached = find_end(state, block[1])
        if state.reached is not None:
            return


def write_block(state: NoisyCanvas, reader: BlockReader, block: tuple[int, int], chance: Any) -> Tensor:
    """The steps of a block; gives the noise level of the last."""
    settings = state.settings
    times, time, sigma = torch.linspace(1, 0, settings.steps), torch.ones(()), torch.zeros(())
    chances: Tensor | None = None
    for number in range(settings.steps):
        if not bool(state.masked[:, : block[1]].any()):
            break
        if settings.first_hitting:
            left = int(state.masked[:, max(block[1] - reader.window, 0) : block[1]].sum())
            time = time * chance.random_sample() ** (1 / left)
        else:
            time = times[number]
        sigma = noise_of(time)
        if chances is None:
            state.end_step()
            chances = known_tokens(reader.read(block, sigma), state.mask_id).double()
            state.look(chances, block)
            chances = keep_nucleus(chances, settings.nucleus)
        if write_tokens(state, chances, block, time, 1 / settings.steps):
            chances = None
    return sigma


def noise_of(time: Tensor) -> Tensor:
    """Sigma of the schedule in which a time is the share of masks, at most that of time 1."""
    return torch.minimum(-torch.log(1 - time), noise_level(torch.ones(())))


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
        return state.fill(state.draw(weights), block)
    tokens = state.draw(chances)
    masked = state.masked[0, slice(*block)].nonzero().flatten()
    place = block[0] + int(masked[torch.randint(0, len(masked), (1,), generator=state.noise.generators[0])])
    return state.fill(tokens[:, place - block[0]][:, None], (place, place + 1))


def find_end(state: NoisyCanvas, stop: int) -> int | None:
    """How much is kept of a text that ends with this block; None: it goes on."""
    settings = state.settings
    if stop <= TESTED or not (settings.entropy_test or settings.var_length):
        return None
    repeats = entropy(state.tokens[:, stop - TESTED : stop]) < LEAST_ENTROPY
    if repeats and not settings.var_length:
        raise DecodeError(
            f"The text of seed {settings.seed} repeats itself (its last {TESTED} tokens have less than {LEAST_ENTROPY:g} "
            "nats of entropy), and BD3-LM's authors refuse it; take another seed, or entropy_test=False."
        )
    if repeats or not settings.var_length:
        return stop - TESTED if repeats else None
    eos = state.model.eos_id if settings.eos_id is None else settings.eos_id
    ends = torch.eq(state.tokens[0, :stop], -1 if eos is None else eos).nonzero().flatten().tolist()
    return ends[1] + 1 if len(ends) > 1 else None  # the first is the begin token


def entropy(tokens: Tensor) -> float:
    """Of the counts of tokens, in nats."""
    counts = tokens.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())
