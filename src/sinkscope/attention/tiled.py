"""Attention and column sums in one pass over tiles that stay in the cache; never holds query × key.

A tile is some query rows × all the keys that they may see, so its softmax is the plain one and its probabilities are
final when they are summed. The sums are a small matrix product, one-hot [group, row] × tile [row, key]: that costs less
than a pass over the tile. Large calls go a head at a time, whole heads to each thread. Small ones put several heads, or
several whole batch items, into one tile, so that every operation is worth its call. Where that tile is the whole call,
nothing is cut at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from sinkscope.attention.reference import Inputs, Result, as_bias

# A tile has at most so many scores (4 MB in fp32); beyond it, the last level of the cache no longer holds it all.
TILE_SCORES = 1 << 20
# Rows of a tile per head. Many make the matrix products faster, because k is packed again for every tile.
MOST_ROWS, LEAST_ROWS = 512, 128
# A causal tile also works out the scores that it then hides: fewer rows hide less, which counts where there are few keys.
MOST_CAUSAL_ROWS, FEW_CAUSAL_ROWS, FEW_KEYS = 256, 128, 1024
# A head with at least so many queries and keys, and more scores than these, is worth matrix products of its own; below,
# heads go together, up to so many scores for each thread.
WHOLE_HEAD, WHOLE_SCORES = 192, 1 << 18
CHUNK_SCORES = 1 << 19
TINY_SCORES = 1 << 15  # below, fresh memory costs less than finding what was kept


@dataclass(frozen=True)
class Tile:
    """Some query rows, and the keys that any of them sees."""

    start: int
    stop: int
    visible: int  # keys before the end of the last row's block
    seen: int  # … of the first row's block: what all rows see
    # Of the other keys, which a row does not see: bool [row, visible − seen], or for causal calls a bias of −∞.
    hidden: Tensor | None


@dataclass(frozen=True)
class Workspace:
    """What all heads use, made once a call."""

    rows: int
    tiles: list[Tile]
    bias: AttentionBias
    one_hot: Tensor  # [batch | 1, group, query]


@torch.no_grad()
def tiled(call: Inputs) -> Result:
    """Softmax attention, its output, and what every key received."""
    if fits_one_tile(call):
        return attend_whole(call)
    result = Result(
        call.empty_out(),
        call.zero_received(),
        call.zero_received() if call.clean and call.drop_keys is not None else None,
    )
    rows = tile_rows(call)
    workspace = Workspace(rows, list(tiles(call, rows)), attention_bias(call), call.one_hot())
    if head_at_a_time(call):
        heads = [(item, head) for item in range(call.batch) for head in range(call.heads)]
        threads = min(torch.get_num_threads(), len(heads)) if call.q.device.type == "cpu" else 1
        run_parallel(lambda place: attend_head(call, workspace, *place, result), heads, threads)
    else:
        attend_chunks(call, workspace, result)
    return result


def head_at_a_time(call: Inputs) -> bool:
    """Whether heads are worked off one by one; else query heads that read the same key head are stacked as rows."""
    large = call.queries >= WHOLE_HEAD and call.keys >= WHOLE_HEAD and call.queries * call.keys > WHOLE_SCORES
    return large and call.q.device.type == "cpu"


def tile_rows(call: Inputs) -> int:
    """How many queries of a head one tile has."""
    most = MOST_ROWS
    if call.block is not None:
        most = FEW_CAUSAL_ROWS if call.keys <= FEW_KEYS else MOST_CAUSAL_ROWS
    scores = TILE_SCORES // (2 if call.clean and call.drop_keys is not None else 1)  # clean sums take a second tile
    rows = min(most, max(LEAST_ROWS, scores // call.keys))
    return min(call.queries, rows if head_at_a_time(call) else max(1, rows // call.share))


def tiles(call: Inputs, rows: int) -> Iterator[Tile]:
    """Cut the queries into tiles; what they hide is row × (row + block) pairs at most, and the same in most tiles."""
    made: dict[tuple[int, int, int], Tensor] = {}
    for start in range(0, call.queries, rows):
        stop = min(start + rows, call.queries)
        visible, seen = call.sees_before(stop - 1), call.sees_before(start)
        shape = (stop - start, visible - seen, call.offset + start - seen)
        if call.block is not None and seen < visible and shape not in made:
            made[shape] = hidden_pairs(call, call.block, *shape)
        yield Tile(start, stop, visible, seen, made.get(shape))


def hidden_pairs(call: Inputs, block: int, rows: int, columns: int, position: int) -> Tensor:
    """The pairs [row, column] that are hidden, where row 0 stands `position` after column 0, which begins a block."""
    positions = torch.arange(position, position + rows, device=call.q.device)[:, None]
    hidden = torch.arange(columns, device=call.q.device) // block > positions // block
    if block > 1:
        return hidden
    return torch.zeros(hidden.shape, dtype=call.work_dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def hide(scores: Tensor, call: Inputs, tile: Tile) -> None:
    """Take the keys after its block from every row of a tile [..., row, key], in place."""
    if tile.hidden is None:
        return
    columns = scores[..., tile.seen :]
    if tile.hidden.dtype == torch.bool:
        columns.masked_fill_(tile.hidden, -torch.inf)
    else:  # a third of the time of masked_fill_; tril_ comes first, because NaN − ∞ is NaN
        columns.tril_(call.offset + tile.start - tile.seen).add_(tile.hidden)


def probabilities_of(
    scores: Tensor, spare: Tensor | None, call: Inputs, tile: Tile, bias: AttentionBias
) -> Tensor | None:
    """Make probabilities of a tile of scores [..., row, key], in place; those without drop_keys go into `spare`."""
    if call.cap is not None:
        scores.div_(call.cap).tanh_().mul_(call.cap)
    hide(scores, call, tile)
    add_bias(scores, bias, tile.start, tile.stop)
    rows_may_die = tile.seen <= bias.first_kept
    if spare is not None:
        softmax(scores, spare, rows_may_die)
    if bias.drop is not None:
        own = call.offset + tile.start if call.keep_self else None
        drop_from(scores, bias.drop[..., : tile.visible], own)
    softmax(scores, scores, rows_may_die)
    return spare


def softmax(scores: Tensor, out: Tensor, rows_may_die: bool) -> None:
    """Softmax over the last axis into `out`; rows of nothing but −∞ become zeros, NaN stays NaN."""
    dead = scores.amax(-1, keepdim=True) == -torch.inf if rows_may_die else None
    torch.softmax(scores, -1, out=out)
    if dead is not None and (scores.device.type != "cpu" or bool(dead.any())):
        out.masked_fill_(dead, 0.0)


def buffer_for(call: Inputs, scores: int) -> Tensor:
    """[1 or 2, score]: a tile of scores, and one more where clean sums are wanted."""
    count = 2 if call.clean and call.drop_keys is not None else 1
    return scratch_buffer(call.q, count * scores, call.work_dtype).view(count, scores)


# ---- large calls: a head at a time ----


def attend_head(call: Inputs, workspace: Workspace, item: int, head: int, result: Result) -> None:
    """Work one head off, tile after tile, into its part of the result."""
    space = buffer_for(call, workspace.rows * call.keys)
    q = call.q[item, head].to(space.dtype)  # [query, dim]
    k = call.k[item, head // call.share].to(space.dtype).T  # [dim, key]
    v = call.v[item, head // call.share].to(space.dtype)  # [key, value dim]
    out, received = result.out[item, head], result.received[item, head]
    bias, one_hot = workspace.bias.of(item, head), workspace.one_hot[item if len(workspace.one_hot) > 1 else 0]
    for tile in workspace.tiles:
        rows = slice(tile.start, tile.stop)
        if tile.visible == 0:  # more queries than keys: the first ones sit before the first key
            out[rows] = 0
            continue
        shape = (tile.stop - tile.start, tile.visible)
        scores = space[0, : shape[0] * shape[1]].view(shape)
        spare = None if result.clean is None else space[1, : scores.numel()].view(shape)
        torch.addmm(scores, q[rows], k[:, : tile.visible], beta=0, alpha=call.scale, out=scores)
        clean = probabilities_of(scores, spare, call, tile, bias)
        received[:, : tile.visible].addmm_(one_hot[:, rows], scores)
        if clean is not None and result.clean is not None:
            result.clean[item, head][:, : tile.visible].addmm_(one_hot[:, rows], clean)
        if out.dtype == v.dtype:
            torch.mm(scores, v[: tile.visible], out=out[rows])
        else:
            out[rows] = scores @ v[: tile.visible]


# ---- calls of one tile ----


def fits_one_tile(call: Inputs) -> bool:
    """Whether the whole call is one chunk, and its last row sees all keys."""
    scores = call.batch * call.heads * call.queries * call.keys
    one = scores <= CHUNK_SCORES and call.queries <= tile_rows(call) and call.q.device.type == "cpu"
    return one and not head_at_a_time(call) and call.sees_before(call.queries - 1) == call.keys


def attend_whole(call: Inputs) -> Result:
    """The operations of a chunk on all of it: cutting tiny calls into views would take longer than computing them."""
    streams, shape = call.batch * call.kv_heads, (call.batch, call.heads, call.queries, call.keys)
    q = call.q.reshape(streams, -1, call.q.shape[3]).to(call.work_dtype)
    k, v = (tensor.flatten(0, 1).to(call.work_dtype) for tensor in (call.k, call.v))
    clean: Tensor | None = None
    if call.mask is None and call.block is None and call.drop_keys is None and call.cap is None:
        probabilities = whole_rows(q, k, call)
    else:
        space = buffer_for(call, call.batch * call.heads * call.queries * call.keys)
        probabilities = space[0].view(streams, -1, call.keys)
        torch.baddbmm(probabilities, q, k.mT, beta=0, alpha=call.scale, out=probabilities)
        spare = space[1].view(shape) if len(space) > 1 else None
        tile = next(tiles(call, call.queries))
        clean = probabilities_of(probabilities.view(shape), spare, call, tile, attention_bias(call))
    one_hot = call.one_hot()[:, None]  # [batch | 1, 1, group, query]
    out = torch.bmm(probabilities, v).view(*shape[:3], -1).to(call.q.dtype)
    if call.q.transpose(1, 2).is_contiguous():  # as empty_out lays it
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    received = one_hot @ probabilities.view(shape)
    return Result(out, received, None if clean is None else one_hot @ clean)


def whole_rows(q: Tensor, k: Tensor, call: Inputs) -> Tensor:
    """Probabilities [stream, row, key] where every row sees every key."""
    if call.queries * call.keys * len(k) <= TINY_SCORES:
        return torch.softmax(torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=call.scale), -1)
    scores = scratch_buffer(q, q.shape[0] * q.shape[1] * call.keys, q.dtype).view(*q.shape[:2], call.keys)
    torch.baddbmm(scores, q, k.mT, beta=0, alpha=call.scale, out=scores)
    return torch.softmax(scores, -1, out=scores)


# ---- small calls: heads together ----


@dataclass(frozen=True)
class Chunk:
    """Some key heads of one batch item, or all the heads of several items, and the query heads that read them."""

    batch: slice
    heads: slice
    kv_heads: slice

    @property
    def size(self) -> int:
        return int((self.batch.stop - self.batch.start) * (self.kv_heads.stop - self.kv_heads.start))


def chunks(call: Inputs, rows: int) -> Iterator[Chunk]:
    """Cut batch × key heads into pieces: a head for every thread, or more where that makes small tiles."""
    threads = torch.get_num_threads()
    streams = max(threads, threads * CHUNK_SCORES // (call.share * rows * call.keys))
    items, kv_heads = max(1, streams // call.kv_heads), min(streams, call.kv_heads)
    for item in range(0, call.batch, items):
        for head in range(0, call.kv_heads, kv_heads):
            last = min(head + kv_heads, call.kv_heads)
            yield Chunk(
                slice(item, min(item + items, call.batch)),
                slice(head * call.share, last * call.share),
                slice(head, last),
            )


def attend_chunks(call: Inputs, workspace: Workspace, result: Result) -> None:
    """Work off all chunks in one buffer."""
    pieces = list(chunks(call, workspace.rows))
    scores = max(piece.size for piece in pieces) * call.share * workspace.rows * call.keys
    space = buffer_for(call, scores)
    for chunk in pieces:
        attend_chunk(call, chunk, workspace, space, result)


def attend_chunk(call: Inputs, chunk: Chunk, workspace: Workspace, space: Tensor, result: Result) -> None:
    """Work one chunk off, tile after tile, into its part of the result."""
    k = call.k[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)  # [stream, key, dim]
    v = call.v[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)
    q, out = call.q[chunk.batch, chunk.heads], result.out[chunk.batch, chunk.heads]
    # [head, group, key], a view: heads of a chunk are neighbours
    received = result.received[chunk.batch, chunk.heads].flatten(0, 1)
    items, heads = q.shape[:2]
    bias = workspace.bias.of(chunk.batch, chunk.heads)
    one_hot = workspace.one_hot[chunk.batch if len(workspace.one_hot) > 1 else slice(None), None]
    one_hot = one_hot.expand(items, heads, -1, -1).flatten(0, 1)  # [head, group, query]
    for tile in workspace.tiles:
        start, stop, visible = tile.start, tile.stop, tile.visible
        if visible == 0:
            out[:, :, start:stop] = 0
            continue
        shape = (items, heads, stop - start, visible)
        scores = space[0, : items * heads * (stop - start) * visible].view(shape)
        spare = None if result.clean is None else space[1, : scores.numel()].view(shape)
        # Query heads that read the same key head are stacked as rows: k is never repeated.
        stacked = scores.view(len(k), -1, visible)
        tile_q = q[:, :, start:stop].reshape(len(k), -1, q.shape[3]).to(k.dtype)
        torch.baddbmm(stacked, tile_q, k[:, :visible].mT, beta=0, alpha=call.scale, out=stacked)
        clean, hot = probabilities_of(scores, spare, call, tile, bias), one_hot[:, :, start:stop]
        received[:, :, :visible].baddbmm_(hot, scores.flatten(0, 1))
        if clean is not None and result.clean is not None:
            result.clean[chunk.batch, chunk.heads].flatten(0, 1)[:, :, :visible].baddbmm_(hot, clean.flatten(0, 1))
        write_out(stacked, v[:, :visible], out[:, :, start:stop])


def write_out(probabilities: Tensor, v: Tensor, out: Tensor) -> None:
    """out [batch, head, row, dim] = probabilities [stream, head of the stream × row, key] × v [stream, key, dim]."""
    one_stream_a_head = out.shape[0] * out.shape[1] == len(v)
    if out.dtype == v.dtype and one_stream_a_head and (len(out) == 1 or out.is_contiguous()):
        torch.bmm(probabilities, v, out=out.flatten(0, 1))
    else:
        out.copy_((probabilities @ v).view(out.shape))


# ---- what keeps keys from queries beside their order: sorted once a call, put into one tile at a time

# A mask is compared with its first row in pieces of so many rows, so that no copy is as large as the mask.
PIECE = 128


@dataclass(frozen=True)
class AttentionBias:
    """What is added to the scores: a part that holds for all rows alike, and a part that differs from row to row."""

    all_rows: Tensor | None  # [batch | 1, head | 1, 1, key], additive
    row_by_row: Tensor | None  # [batch | 1, head | 1, query, key], bool (True = may attend) or additive
    drop: Tensor | None  # [batch | 1, head | 1, 1, key], additive; apart only where scores without it are needed
    first_kept: int  # a row that sees more keys than this, counted from key 0, has something to attend to

    def of(self, batch: slice | int, heads: slice | int) -> AttentionBias:
        """The part of some heads, or of one."""
        all_rows, row_by_row, drop = (part(one, batch, heads) for one in (self.all_rows, self.row_by_row, self.drop))
        return AttentionBias(all_rows, row_by_row, drop, self.first_kept)


def part(tensor: Tensor | None, batch: slice | int, heads: slice | int) -> Tensor | None:
    """Some heads of a tensor [batch | 1, head | 1, …] that may hold one for all."""
    if tensor is None:
        return None
    shared: slice | int = 0 if isinstance(batch, int) else slice(None)
    return tensor[shared if tensor.shape[0] == 1 else batch, shared if tensor.shape[1] == 1 else heads]


def attention_bias(call: Inputs) -> AttentionBias:
    """Sort mask and drop_keys into what holds for all rows and what does not."""
    mask = None if call.mask is None else same_rows_once(call.mask)
    drop = None if call.drop_keys is None else as_bias(~call.drop_keys[:, :, None], call.work_dtype)
    all_rows = as_bias(mask, call.work_dtype) if mask is not None and mask.shape[2] == 1 else None
    row_by_row = mask if mask is not None and mask.shape[2] > 1 else None
    if drop is not None and not call.clean and not call.keep_self:
        all_rows, drop = drop if all_rows is None else all_rows + drop, None
    return AttentionBias(all_rows, row_by_row, drop, first_kept(call, all_rows, row_by_row, drop))


def first_kept(call: Inputs, all_rows: Tensor | None, row_by_row: Tensor | None, drop: Tensor | None) -> int:
    """The first key that no head bars for all rows; the number of keys where some head bars all, or rows differ."""
    fixed = [bias for bias in (all_rows, drop) if bias is not None]
    if row_by_row is not None:
        return call.keys
    if not fixed:
        return 0
    kept = sum(fixed[1:], fixed[0]) != -torch.inf  # [batch | 1, head | 1, 1, key]
    first = torch.where(kept.any(-1), kept.to(torch.uint8).argmax(-1), call.keys)
    return int(first.max())


def same_rows_once(mask: Tensor) -> Tensor:
    """A padding mask written out for every query says the same thing in each row: one row of it will do."""
    if mask.shape[2] == 1 or mask.stride(2) == 0:
        return mask[:, :, :1]
    first = mask[:, :, :1]
    for piece in mask.split(PIECE, dim=2):
        if not torch.equal(piece, first.expand_as(piece)):
            return mask
    return first


def add_bias(scores: Tensor, bias: AttentionBias, start: int, stop: int) -> None:
    """Put the mask into a tile of scores [..., row, key], in place."""
    visible = scores.shape[-1]
    if bias.all_rows is not None:
        scores.add_(bias.all_rows[..., :visible])
    if bias.row_by_row is not None:
        tile = bias.row_by_row[..., start:stop, :visible]
        if tile.dtype == torch.bool:
            scores.masked_fill_(~tile, -torch.inf)
        else:
            scores.add_(as_bias(tile, scores.dtype))


def drop_from(scores: Tensor, drop: Tensor, keep_self_at: int | None) -> None:
    """Take dropped keys out of a tile; with keep_self_at, the position of its first row, a row keeps its own key."""
    if keep_self_at is None:
        scores.add_(drop)
        return
    own = scores.diagonal(keep_self_at, -2, -1)
    kept = own.clone()
    scores.add_(drop)
    own.copy_(kept)


# ---- threads that share out independent jobs
#
# torch splits every single operation over its threads and waits for the slowest each time; a busy core then holds up all of
# them, five times for every tile. Here a thread takes the next whole job as soon as it is free.

Job = TypeVar("Job")
_teams: dict[int, ThreadPoolExecutor] = {}
_making = threading.Lock()
_local = threading.local()
# A thread keeps a buffer of up to so many bytes from call to call: the system clears fresh memory page by page, which
# takes longer than a pass over it.
KEPT = 1 << 23


def run_parallel(work: Callable[[Job], None], jobs: Iterable[Job], threads: int) -> None:
    """Run `work` on every job, each on the thread that is free first."""
    if threads == 1:
        for job in jobs:
            work(job)
        return
    inference = torch.is_inference_mode_enabled()  # such modes belong to a thread

    def one_job(job: Job) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(job)

    for _ in _team(threads).map(one_job, jobs):
        pass  # raises what a job raised


def scratch_buffer(like: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Memory to work in, [size], of this thread alone; holds anything."""
    if like.device.type != "cpu" or size * dtype.itemsize > KEPT:
        return like.new_empty(size, dtype=dtype)
    buffers: dict[torch.dtype, Tensor] = _local.__dict__.setdefault("buffers", {})
    if dtype not in buffers or buffers[dtype].numel() < size:
        with torch.inference_mode(False):  # made inside that mode, it could not be written to outside
            buffers[dtype] = torch.empty(size, dtype=dtype)
    return buffers[dtype][:size]


def _team(threads: int) -> ThreadPoolExecutor:
    """The threads, made once: each is told to use one core."""
    with _making:
        if threads not in _teams:
            before, all_there = torch.get_num_threads(), threading.Barrier(threads)

            def settle() -> None:
                torch.set_num_threads(1)  # counts for this thread, and for threads that are started later …
                all_there.wait()

            team = ThreadPoolExecutor(threads, thread_name_prefix="attend", initializer=settle)
            for ready in [team.submit(int) for _ in range(threads)]:
                ready.result()
            torch.set_num_threads(before)  # … so this is needed
            _teams[threads] = team
        return _teams[threads]


def _after_fork() -> None:
    """A forked process has none of the threads."""
    _teams.clear()
    _making.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_after_fork)
