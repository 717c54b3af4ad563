"""The canvas: how prompts become one (a function per layout), its blocks, what a step may change, and what a run leaves of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.attention.forward import COMMITTED, MASKED, PROMPT
from sinkscope.errors import DecodeError, PromptError

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Decode
    from sinkscope.models.model import Model


@dataclass
class Picks:
    """Decision of a commit rule at one denoising step; every tensor is bool [batch, position].

    Args:
        commit: Masked positions that take their candidate.
        edit: Decoded positions whose token is replaced by their candidate; None for none.
        reopen: Decoded positions that become mask tokens again; None for none.
    """

    commit: Tensor
    edit: Tensor | None = None
    reopen: Tensor | None = None


@dataclass
class Canvas:
    """Tokens of a batch while they are decoded; every tensor is [batch, position].

    Args:
        tokens: Token ids.
        real: bool, False at padding.
        given: bool, True at the prompt's tokens.
        mask_id: Token id of the mask token.
        answers: Column at which the answer of each sequence begins.
        length: Number of tokens of the answer.
        pad: Token id that counts as padding wherever it is, for dllm's block sampler; None for all others.
    """

    tokens: Tensor
    real: Tensor
    given: Tensor
    mask_id: int
    answers: list[int]
    length: int
    pad: int | None = None

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    def masked_positions(self, span: tuple[int, int] | None = None) -> Tensor:
        """Return the positions that hold a mask token, those of the prompt included, bool [batch, position].

        Args:
            span: First column and the column after the last one; the default is the whole canvas.
        """
        masked = (self.tokens == self.mask_id) & self.real
        if span is not None:
            masked[:, : span[0]], masked[:, span[1] :] = False, False
        return masked

    def apply(self, candidates: Tensor, picks: Picks) -> Tensor:
        """Apply the decision of a commit rule.

        Args:
            candidates: Token ids [batch, position].
            picks: Decision of the commit rule.

        Returns:
            Decoded positions whose token changed, bool [batch, position].
        """
        before, known = self.tokens, ~self.masked_positions()
        written = picks.commit if picks.edit is None else picks.commit | picks.edit
        self.tokens = torch.where(written, candidates, self.tokens)
        if picks.reopen is not None:
            self.tokens = self.tokens.masked_fill(picks.reopen, self.mask_id)
        return known & (self.tokens != before)

    def hide_padding(self) -> None:
        """Count generated padding tokens as padding from now on, if padding is known by its id."""
        if self.pad is not None:
            self.real = self.real & (self.tokens != self.pad)

    def labels(self) -> Tensor:
        """Return the query group of each position, int [batch, position]; -1 at padding."""
        labels = torch.full_like(self.tokens, COMMITTED).masked_fill(self.given, PROMPT)
        return labels.masked_fill(self.masked_positions(), MASKED).masked_fill(~self.real, -1)

    def padding(self) -> Tensor:
        """Return the number of padded columns at the left of each sequence, int [batch] on the CPU."""
        return (self.real.cumsum(1) == 0).sum(1).cpu()


@dataclass(frozen=True)
class Block:
    """Columns that are decoded now; they may differ between the sequences of a batch.

    Args:
        span: First column over all sequences, and the column after the last one.
        inside: bool [batch, position], True inside the block.
        until: bool [batch, position], True up to the end of the block.
    """

    span: tuple[int, int]
    inside: Tensor
    until: Tensor


def delete_positions(
    prompt: Tensor, attention_mask: Tensor | None, positions: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Ids and mask [batch, position] without the tokens at these positions; each row counts its own real tokens.

    It is what a model does without the tokens, not without attention to them: what follows one moves one place to the
    left. Negative positions count from the end of the prompt.
    """
    if not positions:
        return prompt, attention_mask
    real = torch.ones_like(prompt, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    lengths = real.sum(1, keepdim=True)  # [batch, 1]
    wanted = torch.tensor(positions, device=prompt.device)
    own = (real.cumsum(1) - 1).masked_fill(~real, -1)
    wanted = torch.where(wanted < 0, lengths + wanted, wanted)  # [batch, position]
    hit = (own[:, :, None] == wanted[:, None]).any(-1) & real
    counts = hit.sum(1)
    if bool((counts != len(positions)).any()) or bool((lengths[:, 0] <= counts).any()):
        raise PromptError(
            f"Expected {len(positions)} different positions of every prompt to delete, and a token that stays, got "
            f"{positions} and a prompt of {int(lengths.min())} tokens; choose others."
        )
    shape = (len(prompt), prompt.shape[1] - len(positions))
    kept = ~hit
    return prompt[kept].view(shape), None if attention_mask is None else attention_mask[kept].view(shape)


def build_canvas(model: Model, prompt: Tensor, settings: Decode, attention_mask: Tensor | None) -> Canvas:
    """prompt [batch, position] and its mask → the canvas before the first step."""
    device, mask_id = prompt.device, model.require_mask()
    real = torch.ones_like(prompt, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    # Row by row on the CPU: on a GPU every look at a row would make the host wait.
    canvas = LAYOUTS[settings.layout](model, prompt.cpu(), real.cpu(), settings, mask_id)
    placed = {name: getattr(canvas, name).to(device) for name in ("tokens", "real", "given")}
    return replace(canvas, **placed)


def blocks(canvas: Canvas, settings: Decode) -> Iterator[Block]:
    """The blocks of a canvas, left to right."""
    size = settings.block or canvas.length
    columns = torch.arange(canvas.width, device=canvas.tokens.device)
    if settings.layout == "grid":
        first = min(canvas.answers) // size * size
        starts = torch.full((canvas.batch,), first)
        ends = torch.full((canvas.batch,), canvas.width)
    else:
        starts = torch.tensor(canvas.answers)
        ends = starts + canvas.length
    for number in range(ceil(int((ends - starts).max()) / size)):
        begin = starts + number * size
        end = torch.minimum(begin + size, ends)
        left, right = (edge.unsqueeze(1).to(columns.device) for edge in (begin, end))
        inside = (columns >= left) & (columns < right)
        yield Block((int(begin.min()), int(end.max())), inside, columns < right)


def rows_layout(
    model: Model, prompt: Tensor, real: Tensor, settings: Any, mask_id: int, length: int | None = None
) -> Canvas:
    """Each answer follows its own prompt; what a shorter row leaves at the right is filled with end-of-text."""
    length = settings.length if length is None else length
    ends = [int(row.nonzero().max()) + 1 for row in real]
    fill = next((token for token in (settings.eos_id, model.eos_id, model.pad_id) if token is not None), 0)
    rows = [tokens[:end] for tokens, end in zip(prompt, ends, strict=True)]
    canvas = place_prompts(rows, [0] * len(rows), [end + length for end in ends], fill, mask_id, length)
    canvas.real[:, : prompt.shape[1]] &= real | ~canvas.given[:, : prompt.shape[1]]
    return canvas


def aligned_layout(
    model: Model, prompt: Tensor, real: Tensor, settings: Any, mask_id: int, length: int | None = None
) -> Canvas:
    """As `rows_layout`, with padding that stood at the right of a prompt moved to its left."""
    order = real.to(torch.int8).argsort(dim=1, stable=True)  # padding first, and each part in its order
    return rows_layout(model, prompt.gather(1, order), real.gather(1, order), settings, mask_id, length)


def ahead_layout(model: Model, prompt: Tensor, real: Tensor, settings: Decode, mask_id: int) -> Canvas:
    """As `aligned_layout`, with room for the last draft, which begins before the length is reached."""
    return aligned_layout(model, prompt, real, settings, mask_id, settings.length + settings.room)


def total_layout(model: Model, prompt: Tensor, real: Tensor, settings: Any, mask_id: int) -> Canvas:
    """Prompt, masks, suffix; what is left of the width is padding that every position sees, or one end-of-text."""
    batch, start = prompt.shape
    suffix, reserved = len(settings.suffix), int(settings.eos_id is not None)
    width = settings.total_length or start + settings.length + suffix + reserved
    room = width - start - suffix - reserved
    if room < 1:
        raise DecodeError(
            f"Expected total_length above the {width - room} columns of prompt, suffix and end token, got {width}."
        )
    masks = min(settings.infill_length or room, room)
    canvas = aligned_layout(model, prompt, real, settings, mask_id, masks)
    behind = torch.full((batch, width - start - masks), model.pad_id or 0)
    behind[:, :suffix] = torch.tensor(settings.suffix).long()
    if settings.eos_at_end and settings.eos_id is not None:
        behind[:, -1] = settings.eos_id
    known = torch.ones_like(behind, dtype=torch.bool)
    canvas.tokens = torch.cat([canvas.tokens, behind], 1)
    canvas.real, canvas.given = (torch.cat([part, known], 1) for part in (canvas.real, canvas.given))
    return canvas


def grid_layout(model: Model, prompt: Tensor, real: Tensor, settings: Decode, mask_id: int) -> Canvas:
    """Blocks from each row's first token; rows are padded by whole blocks, so that they all begin to work in one column."""
    assert settings.block is not None
    size = settings.block
    rows = [tokens[keep] for tokens, keep in zip(prompt, real, strict=True)]
    most = max(len(row) // size for row in rows)
    padding = [(most - len(row) // size) * size for row in rows]
    ends = [first + ceil((len(row) + settings.length) / size) * size for first, row in zip(padding, rows, strict=True)]
    return place_prompts(rows, padding, ends, model.fill_id, mask_id, settings.length)


def left_layout(model: Model, prompt: Tensor, real: Tensor, settings: Any, mask_id: int) -> Canvas:
    """Prompts padded at the left to whole blocks; padding is known by its id, wherever it stands."""
    assert settings.block is not None
    found = prompt[~real].unique().tolist()  # as asked for, else what the prompts are padded with, else the model's
    known = (settings.pad_id, found[0] if len(found) == 1 else None, model.pad_id, model.eos_id)
    pad = next((token for token in known if token is not None), None)
    if pad is None:
        raise DecodeError("These settings need pad_id, and the model names no such token; pass pad_id=… to Decode.")
    rows = [tokens[keep] for tokens, keep in zip(prompt, real, strict=True)]
    width = ceil(max(map(len, rows)) / settings.block) * settings.block
    starts, ends = [width - len(row) for row in rows], [width + settings.length] * len(rows)
    canvas = place_prompts(rows, starts, ends, pad, mask_id, settings.length)
    return replace(canvas, real=canvas.tokens != pad, pad=pad)


def place_prompts(
    rows: list[Tensor], starts: list[int], ends: list[int], fill: int, mask_id: int, length: int
) -> Canvas:
    """Each row's prompt from its own column on, and masks behind it up to its end; the rest is filled, and not real."""
    tokens = torch.full((len(rows), max(ends)), fill)
    real, given = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    answers = [start + len(row) for start, row in zip(starts, rows, strict=True)]
    for number, (row, start, answer, end) in enumerate(zip(rows, starts, answers, ends, strict=True)):
        tokens[number, start:answer], tokens[number, answer:end] = row, mask_id
        real[number, start:end], given[number, start:answer] = True, True
    return Canvas(tokens, real, given, mask_id, answers, length)


def open_layout(model: Model, prompt: Tensor, real: Tensor, settings: Decode, mask_id: int) -> Canvas:
    """The prompt, and masks behind it; masks of the prompt are no part of what is given.

    Of a block-causal model the first token is always given: an empty prompt is the begin token.
    """
    if settings.block_causal and not prompt.shape[1]:
        prompt = prompt.new_full((len(prompt), 1), model.config.bos_token_id)
        real = torch.ones_like(prompt, dtype=torch.bool)
    masks = prompt.new_full((len(prompt), settings.length), mask_id)
    tokens = torch.cat([prompt, masks], 1)
    real = torch.cat([real, torch.ones_like(masks, dtype=torch.bool)], 1)
    return Canvas(tokens, real, (tokens != mask_id) & real, mask_id, [prompt.shape[1]] * len(prompt), settings.length)


def text_layout(model: Model, prompt: Tensor, real: Tensor, settings: Decode, mask_id: int) -> Canvas:
    """The prompt alone; its last tokens are the answer."""
    start = prompt.shape[1] - settings.length
    if start < 0:
        raise PromptError(f"Expected a text of at least {settings.length} tokens, got {prompt.shape[1]}; lower length.")
    given = (torch.arange(prompt.shape[1]) < start).expand_as(prompt)
    return Canvas(prompt, real, given & real, mask_id, [start] * len(prompt), settings.length)


LAYOUTS: dict[str, Callable[..., Canvas]] = {
    "answer": rows_layout,
    "rows": rows_layout,
    "grid": grid_layout,
    "left": left_layout,
    "aligned": aligned_layout,
    "ahead": ahead_layout,
    "total": total_layout,
    "open": open_layout,
    "text": text_layout,
}


@dataclass(frozen=True)
class Step:
    """One denoising step, after its commit."""

    index: int
    canvas: Tensor  # [batch, position]
    confidence: Tensor  # [batch, position] float32, NaN where no candidate was looked at
    committed: Tensor  # [batch, position] bool: what this step filled in
    block: tuple[int, int]  # first column of the active block, and the one after its last
    edited: Tensor | None = None  # [batch, position] bool: tokens that this step replaced by others; None: none
    reopened: Tensor | None = None  # [batch, position] bool: tokens that this step took away again; None: none


OnStep = Callable[[Step], object]


@dataclass(frozen=True)
class CacheUse:
    """What a generation under a cache policy computed and held."""

    policy: str
    computed_share: float  # of positions, over all forwards; 1 without a cache
    looks: int  # forwards over the whole canvas
    kept_bytes: int  # the most that keys and values (and kept outputs) took between two forwards
    peak_bytes: int  # the most at any time
    process_peak_bytes: int  # the most that the process has held so far, whatever for
    computed: Tensor | None = None  # bool [forward, layer, batch, position]; with history only
    kept: Tensor | None = None  # bool [look, layer, batch, kv head, position]; with history only

    def to_dict(self) -> dict[str, Any]:
        """What is the same whenever the generation is repeated, the maps left out."""
        without = ("computed", "kept", "process_peak_bytes")
        return {name: value for name, value in vars(self).items() if name not in without}


@dataclass(frozen=True)
class Decoded:
    """A finished generation of a batch."""

    tokens: Tensor  # [batch, position]: prompt and answer
    history: Tensor | None  # [steps + 1, batch, position]: the canvas before each denoising forward, and the last
    forwards: int  # all forwards: those that only fill a cache too
    returned: tuple[Tensor, ...] = ()  # per row the answer alone, cut where the authors' code cuts it
    cache: CacheUse | None = None  # None: no cache policy


@dataclass
class DecodeRun:
    """One call of `decode`: collects its canvases (on the CPU) if they are wanted, and hands on its steps."""

    model: Model
    prompt: Tensor  # [batch, position]
    attention_mask: Tensor | None
    settings: Any  # a Decode
    keep: bool
    on_step: OnStep | None = None
    forwards: int = 0
    canvases: list[Tensor] = field(default_factory=list)
    cache: CacheUse | None = None

    def note(self, canvas: Tensor) -> None:
        """Called before every denoising forward, and at the end."""
        if self.keep:
            self.canvases.append(canvas.cpu().clone())

    def tell(self, step: Step) -> None:
        if self.on_step is not None:
            self.on_step(step)

    def cut(self, width: int) -> None:
        """Leave out the columns of the canvas that were never reached."""
        self.canvases = [canvas[:, :width] for canvas in self.canvases]

    def finish(self, tokens: Tensor, returned: Sequence[Tensor]) -> Decoded:
        history = torch.stack(self.canvases) if self.keep else None
        return Decoded(tokens, history, self.forwards, tuple(returned), self.cache)
