"""Attention and column sums in one pass over tiles that stay in the cache; never holds query × key.

A tile is a few heads × some query rows × all the keys that they may see, so its softmax is the plain one and its
probabilities are final when they are summed. The sums are a small matrix product, one-hot [group, row] × tile
[row, key]: that costs less than a pass over the tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.inputs import Inputs, Result, masked_below

# A tile has about so many scores (2 MB in fp32): more would outgrow the cache. Small calls take several heads, or several
# whole batch items, into one tile, so that every operation is worth its call.
TILE_SCORES = 1 << 19
# Rows of a tile a head. Many make the matrix products faster, because k is packed anew for every tile.
MOST_ROWS, LEAST_ROWS = 512, 128
# A causal tile also works out the scores that it then hides: fewer rows hide less.
MOST_CAUSAL_ROWS = 256


@dataclass(frozen=True)
class Chunk:
    """Some key heads of one batch item, or all the heads of several items, and the query heads that read them."""

    batch: slice
    heads: slice
    kv_heads: slice

    @property
    def size(self) -> int:
        return int((self.batch.stop - self.batch.start) * (self.kv_heads.stop - self.kv_heads.start))

    def of(self, tensor: Tensor) -> Tensor:
        """This chunk's part of a tensor [batch | 1, head | 1, …]."""
        return tensor[
            slice(None) if tensor.shape[0] == 1 else self.batch, slice(None) if tensor.shape[1] == 1 else self.heads
        ]


@dataclass(frozen=True)
class Tile:
    """Some query rows, and the keys that any of them sees."""

    start: int
    stop: int
    visible: int  # keys before the end of the last row's block
    seen: int  # … of the first row's block: what all rows see
    hidden: Tensor | None  # bool [row, visible − seen]: the keys that a row does not see; None where all see the same


@dataclass(frozen=True)
class Bars:
    """What is added to the scores: a part that holds for all rows alike, and a part that differs from row to row."""

    all_rows: Tensor | None  # [batch | 1, head | 1, 1, key], additive
    row_by_row: Tensor | None  # [batch | 1, head | 1, query, key], bool (True = may attend) or additive
    drop: Tensor | None  # [batch | 1, head | 1, 1, key], additive; apart only where scores without it are needed
    rows_may_die: bool  # whether a row may have nothing left to attend to


@dataclass(frozen=True)
class Desk:
    """What all chunks use: made once a call, because fresh memory costs as much as a pass over a tile."""

    tiles: list[Tile]
    room: Tensor  # [1 or 2, score]: a tile of scores, and one more where clean sums are wanted
    bars: Bars
    one_hot: Tensor  # [batch | 1, 1, group, query]


@torch.no_grad()
def tiled(call: Inputs) -> Result:
    """Softmax attention, its output, and what every key received."""
    result = Result(
        call.empty_out(),
        call.zero_received(),
        call.zero_received() if call.clean and call.drop_keys is not None else None,
    )
    bars, one_hot = collect_bars(call), call.one_hot()[:, None]
    rows = tile_rows(call)
    pieces = list(chunks(call, rows))
    scores = max(piece.size for piece in pieces) * call.share * rows * call.keys
    room = call.q.new_empty(1 if result.clean is None else 2, scores, dtype=call.work_dtype)
    desk = Desk(list(tiles(call, rows)), room, bars, one_hot)
    for chunk in pieces:
        attend_chunk(call, chunk, desk, result)
    return result


def tile_rows(call: Inputs) -> int:
    """How many queries of a head one tile has."""
    most = MOST_ROWS if call.block is None else MOST_CAUSAL_ROWS
    rows = min(most, max(LEAST_ROWS, TILE_SCORES // call.keys))
    return min(call.queries, max(1, rows // call.share))


def tiles(call: Inputs, rows: int) -> Iterator[Tile]:
    """Cut the queries into tiles. Together they hide fewer than 2 × key × row pairs, however large the blocks are."""
    for start in range(0, call.queries, rows):
        stop = min(start + rows, call.queries)
        visible, seen, hidden = call.sees_before(stop - 1), call.sees_before(start), None
        if call.block is not None and seen < visible:
            positions = torch.arange(start, stop, device=call.q.device)[:, None] + call.offset
            keys = torch.arange(seen, visible, device=call.q.device)
            hidden = keys // call.block > positions // call.block
        yield Tile(start, stop, visible, seen, hidden)


def chunks(call: Inputs, rows: int) -> Iterator[Chunk]:
    """Cut batch × key heads into pieces: a head for every thread, or more where that makes small tiles."""
    streams = max(torch.get_num_threads(), TILE_SCORES // (call.share * rows * call.keys))
    items, kv_heads = max(1, streams // call.kv_heads), min(streams, call.kv_heads)
    for item in range(0, call.batch, items):
        for head in range(0, call.kv_heads, kv_heads):
            last = min(head + kv_heads, call.kv_heads)
            yield Chunk(
                slice(item, min(item + items, call.batch)),
                slice(head * call.share, last * call.share),
                slice(head, last),
            )


def attend_chunk(call: Inputs, chunk: Chunk, desk: Desk, result: Result) -> None:
    """Work one chunk off, tile after tile, into its part of the result."""
    k = call.k[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)  # [stream, key, dim]
    v = call.v[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)
    q, out = chunk.of(call.q), chunk.of(result.out)
    received = chunk.of(result.received).flatten(0, 1)  # [head, group, key], a view: heads of a chunk are neighbours
    clean = None if result.clean is None else chunk.of(result.clean).flatten(0, 1)
    items, heads = q.shape[:2]
    bars = desk.bars
    one_hot = desk.one_hot[chunk.batch if len(desk.one_hot) > 1 else slice(None)]
    one_hot = one_hot.expand(items, heads, -1, -1).flatten(0, 1)  # [head, group, query]

    for tile in desk.tiles:
        start, stop, visible = tile.start, tile.stop, tile.visible
        if visible == 0:  # more queries than keys: the first ones sit before the first key
            out[:, :, start:stop] = 0
            continue
        shape = (items, heads, stop - start, visible)
        scores = desk.room[0, : items * heads * (stop - start) * visible].view(shape)
        # Query heads that read the same key head are stacked as rows: k is never repeated.
        stacked = scores.view(len(k), -1, visible)
        tile_q = q[:, :, start:stop].reshape(len(k), -1, q.shape[3]).to(k.dtype)
        torch.baddbmm(stacked, tile_q, k[:, :visible].mT, beta=0, alpha=call.scale, out=stacked)

        if tile.hidden is not None:
            scores[..., tile.seen :].masked_fill_(tile.hidden, -torch.inf)
        bar(scores, bars, chunk, start, stop)
        hot = one_hot[:, :, start:stop]
        if clean is not None:
            probabilities = softmax(scores, desk.room[1, : scores.numel()].view(shape), bars.rows_may_die)
            clean[:, :, :visible].baddbmm_(hot, probabilities.flatten(0, 1))
        if bars.drop is not None:
            drop_from(scores, chunk.of(bars.drop)[..., :visible], call.offset + start if call.keep_self else None)
        softmax(scores, scores, bars.rows_may_die)
        received[:, :, :visible].baddbmm_(hot, scores.flatten(0, 1))
        write_out(stacked, v[:, :visible], out[:, :, start:stop])


def write_out(probabilities: Tensor, v: Tensor, out: Tensor) -> None:
    """out [batch, head, row, dim] = probabilities [stream, head of the stream × row, key] × v [stream, key, dim]."""
    if out.dtype == v.dtype and len(out) == 1 and out.shape[1] == len(v):
        torch.bmm(probabilities, v, out=out[0])
    else:
        out.copy_((probabilities @ v).view(out.shape))


def softmax(scores: Tensor, out: Tensor, rows_may_die: bool) -> Tensor:
    """Softmax over the last axis into `out`; rows of nothing but −∞ become zeros, NaN stays NaN."""
    dead = scores.amax(-1, keepdim=True) == -torch.inf if rows_may_die else None
    torch.softmax(scores, -1, out=out)
    if dead is not None and (scores.device.type != "cpu" or bool(dead.any())):
        out.masked_fill_(dead, 0.0)
    return out


def collect_bars(call: Inputs) -> Bars:
    """Sort mask and drop_keys into what holds for all rows and what does not."""
    mask = None if call.mask is None else same_rows_once(call.mask)
    drop = None if call.drop_keys is None else as_bias(~call.drop_keys[:, :, None], call.work_dtype)
    all_rows = as_bias(mask, call.work_dtype) if mask is not None and mask.shape[2] == 1 else None
    row_by_row = mask if mask is not None and mask.shape[2] > 1 else None
    if drop is not None and not call.clean and not call.keep_self:
        all_rows, drop = drop if all_rows is None else all_rows + drop, None
    fixed = [part for part in (all_rows, drop) if part is not None]
    rows_may_die = row_by_row is not None or (call.block is not None and (bool(fixed) or call.offset < 0))
    if fixed and not rows_may_die:
        rows_may_die = bool((sum(fixed[1:], fixed[0]) == -torch.inf).all(-1).any())
    return Bars(all_rows, row_by_row, drop, rows_may_die)


def same_rows_once(mask: Tensor) -> Tensor:
    """A padding mask written out for every query says the same thing in each row: one row of it will do."""
    if mask.shape[2] == 1 or mask.stride(2) == 0:
        return mask[:, :, :1]
    first = mask[:, :, :1]
    for piece in mask.split(LEAST_ROWS, dim=2):  # so that no copy is as large as the mask
        if not torch.equal(piece, first.expand_as(piece)):
            return mask
    return first


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as something to add: 0 or the mask's own number where a key may be attended to, −∞ elsewhere."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask.to(dtype).masked_fill(mask <= masked_below(mask.dtype), -torch.inf)


def bar(scores: Tensor, bars: Bars, chunk: Chunk, start: int, stop: int) -> None:
    """Put the mask into a tile of scores [batch, head, row, key], in place."""
    visible = scores.shape[3]
    if bars.all_rows is not None:
        scores.add_(chunk.of(bars.all_rows)[..., :visible])
    if bars.row_by_row is not None:
        tile = chunk.of(bars.row_by_row)[:, :, start:stop, :visible]
        if tile.dtype == torch.bool:
            scores.masked_fill_(~tile, -torch.inf)
        else:
            scores.add_(as_bias(tile, scores.dtype))


def drop_from(scores: Tensor, drop: Tensor, keep_self_at: int | None) -> None:
    """Take dropped keys out of a tile; with keep_self_at, the position of its first row, a row keeps its own key."""
    if keep_self_at is None:
        scores.add_(drop)
        return
    own = scores.diagonal(keep_self_at, 2, 3)
    kept = own.clone()
    scores.add_(drop)
    own.copy_(kept)
