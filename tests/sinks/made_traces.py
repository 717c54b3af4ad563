"""Traces made by hand, whose sinks are known because they were put there."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sinkscope.decoding.settings import Decode
from sinkscope.tracing import Trace

GROUPS = ("masked", "committed", "prompt")
MASK, NEWLINE, STOP, WORD = 99, 1, 2, 3
VOCABULARY = {MASK: ("<mask>", "mask"), NEWLINE: ("⏎", "newline"), STOP: (".", "punctuation"), WORD: ("cat", "word")}


def made(
    received: Tensor,
    queries: Tensor,
    canvas: Tensor,
    blocks: Tensor,
    prompt: int,
    committed_at: Tensor,
    causal: bool = False,
    value_norms: Tensor | None = None,
    seen: Tensor | None = None,
) -> Trace:
    """A trace of the given attention; committed_at is that of the generated tokens."""
    length = canvas.shape[1] - prompt
    return Trace(
        received=received,
        queries=queries,
        canvas=canvas,
        confidence=torch.full((len(queries), canvas.shape[1]), torch.nan),
        committed_at=torch.cat([torch.full((prompt,), -1), committed_at]).int(),
        blocks=blocks,
        prompt_length=prompt,
        settings=Decode.autoregressive(length) if causal else Decode.llada(length),
        model={},
        backend="made",
        vocabulary=dict(VOCABULARY),
        mask_id=None if causal else MASK,
        causal=causal,
        prompt="",
        text="",
        value_norms=value_norms,
        seen=seen,
    )


def full(trace: Trace) -> Tensor:
    """The received attention of a trace that is not in summary form."""
    assert trace.received is not None
    return trace.received


def diffusion(
    sinks: Sequence[Sequence[Sequence[int | None]]],
    prompt: int = 4,
    length: int = 16,
    block: int = 4,
    order: str = "right",
    share: float = 0.6,
    dtype: torch.dtype = torch.float32,
) -> Trace:
    """A trace of one layer: sinks[head][group][step] is the key that draws `share` of that group's attention, or None.

    One token per step is committed, from the left ("right") or from the right ("left"); a head with one path uses it for
    every group.
    """
    size, steps = prompt + length, length
    canvas = torch.full((steps + 1, size), WORD)
    committed = torch.zeros(steps + 1, size, dtype=torch.bool)
    for t in range(steps + 1):
        known = slice(prompt, prompt + t) if order == "right" else slice(size - t, size)
        committed[t, known] = True
        canvas[t, prompt:] = torch.where(committed[t, prompt:], WORD, MASK)
    count = committed[:-1].sum(-1)
    queries = torch.stack([length - count, count, torch.full_like(count, prompt)], -1).int()  # [step, group]
    received = torch.zeros(steps, 1, len(sinks), 3, size)
    for h, groups in enumerate(sinks):
        for g in range(3):
            path = groups[g if len(groups) > 1 else 0]
            for t, key in enumerate(path):
                row = torch.full((size,), 1 / size)
                if key is not None:
                    row = torch.full((size,), (1 - share) / (size - 1))
                    row[key] = share
                received[t, 0, h, g] = row * queries[t, g]
    active = torch.arange(steps) // block * block
    blocks = torch.stack([prompt + active, prompt + active + block], -1).int()
    time = torch.arange(length) if order == "right" else torch.arange(length).flip(0)
    return made(received.to(dtype), queries, canvas, blocks, prompt, time)


def autoregressive(prompt: int = 5, length: int = 8, sink: int | None = 0, share: float = 0.7) -> Trace:
    """A causal trace of one layer and head: each row gives `share` to the sink and the rest evenly to what it sees."""
    size = prompt + length
    rows = torch.zeros(size, size)
    for i in range(size):
        rows[i, : i + 1] = 1 / (i + 1)
        if sink is not None and i > sink:
            rows[i, : i + 1] = (1 - share) / i
            rows[i, sink] = share
    received, queries = torch.zeros(length, 1, 1, 3, size), torch.zeros(length, 3, dtype=torch.int32)
    seen = torch.zeros(length, 3, size, dtype=torch.int32)
    received[0, 0, 0, 2], queries[0, 2] = rows[:prompt].sum(0), prompt
    seen[0, 2, :prompt] = torch.arange(prompt, 0, -1)
    for t in range(1, length):
        received[t, 0, 0, 1], queries[t, 1] = rows[prompt + t - 1], 1
        seen[t, 1, : prompt + t] = 1
    canvas = torch.full((length + 1, size), WORD)
    blocks = torch.stack([prompt + torch.arange(length), prompt + 1 + torch.arange(length)], -1).int()
    return made(received, queries, canvas, blocks, prompt, torch.arange(length), causal=True, seen=seen)


def random_trace(seed: int, steps: int = 5, layers: int = 2, heads: int = 2, size: int = 12, prompt: int = 3) -> Trace:
    """Peaky random attention with all three groups, on a canvas of random tokens that loses its masks at random."""
    generator = torch.Generator().manual_seed(seed)
    length = size - prompt
    committed_at = torch.randint(0, steps, (length,), generator=generator)
    final = torch.randint(1, 4, (size,), generator=generator)
    canvas = final.repeat(steps + 1, 1)
    for t in range(steps + 1):
        canvas[t, prompt:][committed_at >= t] = MASK
    masked = canvas[:-1] == MASK
    kinds = torch.stack([masked, ~masked, torch.zeros_like(masked)], 1)  # [step, group, query]
    kinds[:, :, :prompt] = torch.tensor([False, False, True])[None, :, None]
    logits = torch.randn(steps, layers, heads, size, size, generator=generator)
    logits += 2.5 * torch.randn(steps, layers, heads, 1, size, generator=generator)
    received = torch.einsum("tgq,tlhqk->tlhgk", kinds.float(), logits.softmax(-1))
    start = torch.randint(prompt, size - 1, (steps,), generator=generator)
    norms = torch.rand(steps, layers, 1, size, generator=generator) + 0.1
    blocks = torch.stack([start, start + 2], -1).int()
    return made(received, kinds.sum(-1).int(), canvas, blocks, prompt, committed_at, value_norms=norms)
