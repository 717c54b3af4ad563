"""Stop rules: which rows are done; each is asked after every step, and again when a block is finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser

Stops = Callable[["Denoiser", Block, bool], Tensor | None]  # (run, block, finished) → bool [batch]


def never(run: Denoiser, block: Block, finished: bool) -> None:
    return None


def end_of_turn(run: Denoiser, block: Block, finished: bool) -> Tensor | None:
    """MMaDA's fast variant: when a block is full and ends in end-of-turn."""
    start, stop = block.span
    tokens = run.canvas.tokens
    full = not bool((tokens[:, start:stop] == run.canvas.blank).any())
    return torch.eq(tokens[:, stop - 1], -1 if run.eot_id is None else run.eot_id) if full else None


def end_of_text(run: Denoiser, block: Block, finished: bool) -> Tensor | None:
    """LLaDA2: after the block that left end-of-text in the answer."""
    return _answered(run, [run.eos_id]).any(1) if finished else None


def early_end_of_text(run: Denoiser, block: Block, finished: bool) -> Tensor | None:
    """LLaDA2.0's early stop: also within a block, once nothing before the first end-of-text is open."""
    ends = _answered(run, [run.eos_id])
    if finished:
        return ends.any(1)
    before = ends.cumsum(1) == 0
    waiting = (run.canvas.open() & before).any(1)
    return ends.any(1) & ~waiting


def stop_ids(run: Denoiser, block: Block, finished: bool) -> Tensor | None:
    """SDAR: after the block that left one of stop_ids in the answer."""
    return _answered(run, list(run.settings.stop_ids)).any(1) if finished else None


def every_row(run: Denoiser, block: Block, finished: bool) -> Tensor | None:
    """dllm's bd3lm, and Nemotron: when every row has end-of-text; a row that has it goes on with the others."""
    if not finished:
        return None
    ended = _answered(run, [run.eos_id]).any(1)
    return ended.all().expand_as(ended)


def _answered(run: Denoiser, ids: list[int | None]) -> Tensor:
    """bool [batch, position]: generated positions that hold one of `ids`."""
    wanted = torch.tensor([token for token in ids if token is not None], device=run.canvas.tokens.device)
    return torch.isin(run.canvas.tokens, wanted) & ~run.canvas.given & run.canvas.real


STOPS: dict[str, Stops] = {
    "never": never,
    "eot": end_of_turn,
    "eos": end_of_text,
    "early_eos": early_end_of_text,
    "ids": stop_ids,
    "row_eos": every_row,
    "batch_eos": every_row,  # what it does within a block is the commit rule's
}
