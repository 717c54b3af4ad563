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
# A head with at least so many queries and keys, and so many scores, is worth matrix products of its own; below,
# heads go together, up to so many scores for each thread.
WHOLE_HEAD, WHOLE_SCORES = 192, 1 << 18
CHUNK_SCORES = 1 << 19
TINY_SCORES = 1 << 15  # below, fresh memory costs less than finding what was kept
# Where a row's dropped keys leave less than this of its attention, the rest is computed again from scores without them.
LEAST_LEFT = 1e-15
NOTHING = {
    dtype: torch.zeros((), dtype=dtype) for dtype in (torch.float32, torch.float64)
}  # what a product is added to


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


def tiled(call: Inputs) -> Result:
    """Softmax attention, its output, and what every key received."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            return tiled(call)
    if fits_one_tile(call):
        return attend_whole(call)
    out, sums = call.empty_out(), zero_sums(call)
    rows = tile_rows(call)
    workspace = Workspace(rows, list(tiles(call, rows)), attention_bias(call), call.one_hot())
    if head_at_a_time(call):
        heads = [(item, head) for item in range(call.batch) for head in range(call.heads)]
        threads = min(torch.get_num_threads(), len(heads)) if call.q.device.type == "cpu" else 1
        run_parallel(lambda place: attend_head(call, workspace, *place, out, sums), heads, threads)
    else:
        attend_chunks(call, workspace, out, sums)
    return result_of(call, out, sums)


def zero_sums(call: Inputs) -> Tensor:
    """Zeros of [batch, head, group, key] to sum into; where clean sums are wanted too, theirs are as many groups more."""
    groups = call.group_count * (2 if wants_clean(call) else 1)
    return call.q.new_zeros((call.batch, call.heads, groups, call.keys), dtype=call.work_dtype)


def wants_clean(call: Inputs) -> bool:
    """Whether the sums without drop_keys are others than those with them, and wanted."""
    return call.clean and call.drop_keys is not None


def result_of(call: Inputs, out: Tensor, sums: Tensor) -> Result:
    if call.drop_keys is None or not call.clean:
        return Result(out, sums, None)
    received, clean = sums.split(call.group_count, dim=2)
    if not call.keep_self:  # what sums of rows that were weighed afterwards still have there
        received.masked_fill_(call.drop_keys[:, :, None], 0.0)
    return Result(out, received, clean)


def head_at_a_time(call: Inputs) -> bool:
    """Whether heads are worked off one by one; else query heads that read the same key head are stacked as rows."""
    large = call.queries >= WHOLE_HEAD and call.keys >= WHOLE_HEAD and call.queries * call.keys >= WHOLE_SCORES
    return large and call.q.device.type == "cpu"


def tile_rows(call: Inputs) -> int:
    """How many queries of a head one tile has."""
    most = MOST_ROWS
    if call.block is not None:
        most = FEW_CAUSAL_ROWS if call.keys <= FEW_KEYS else MOST_CAUSAL_ROWS
    rows = min(most, max(LEAST_ROWS, TILE_SCORES // call.keys))
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


def add_sums(
    scores: Tensor,
    compute: Callable[[], object],
    hot: Tensor,
    sums: Tensor,
    call: Inputs,
    tile: Tile,
    bias: AttentionBias,
) -> Tensor | None:
    """Make probabilities of a tile of scores [..., row, key], in place, and add their column sums to `sums`.

    Where clean sums are wanted too, these are the probabilities of all keys, without a second softmax: what is returned,
    [..., row, 1], makes those of the keys that are left out of them. None: they are final. compute: makes the scores again,
    for rows whose dropped keys have drawn next to everything, so that what is left was rounded away.
    hot: [..., group, row]; sums: [..., group or twice as many, key].
    """
    sums, drop = sums[..., : tile.visible], None if bias.drop is None else bias.drop[..., : tile.visible]
    make_probabilities(scores, call, tile, bias, None if call.clean else drop)
    if drop is None or not call.clean:
        sums.add_(hot @ scores)
        return None
    groups = call.group_count
    left = None if call.keep_self or scores.device.type != "cpu" else scores @ (~drop).to(scores.dtype).mT
    if left is not None and bool(left.amin() >= LEAST_LEFT):
        weight = left.reciprocal_()
        sums[..., :groups, :].add_((hot * weight.mT) @ scores)  # one product with twice the rows would take longer
        sums[..., groups:, :].add_(hot @ scores)
        return weight
    sums[..., groups:, :].add_(hot @ scores)
    compute()
    make_probabilities(scores, call, tile, bias, drop)
    sums[..., :groups, :].add_(hot @ scores)
    return None


def make_probabilities(
    scores: Tensor, call: Inputs, tile: Tile, bias: AttentionBias, drop: Tensor | None = None
) -> None:
    """Scores of a tile [..., row, key] become probabilities, in place; drop: bool, keys that are taken out beside the mask."""
    if call.cap is not None:
        scores.div_(call.cap).tanh_().mul_(call.cap)
    hide(scores, call, tile)
    add_bias(scores, bias, tile.start, tile.stop)
    if drop is not None:
        drop_from(scores, drop, call.offset + tile.start if call.keep_self else None)
    softmax(scores, drop is not None or tile.seen <= bias.first_kept)


def softmax(scores: Tensor, rows_may_die: bool) -> None:
    """Softmax over the last axis, in place; rows of nothing but −∞ become zeros, NaN stays NaN."""
    dead = scores.amax(-1, keepdim=True) == -torch.inf if rows_may_die else None
    torch.softmax(scores, -1, out=scores)
    if dead is not None and (scores.device.type != "cpu" or bool(dead.any())):
        scores.masked_fill_(dead, 0.0)


# ---- large calls: a head at a time ----


def attend_head(call: Inputs, workspace: Workspace, item: int, head: int, out: Tensor, sums: Tensor) -> None:
    """Work one head off, tile after tile, into its part of the output and the sums."""
    space = scratch_buffer(call.q, workspace.rows * call.keys, call.work_dtype)
    q = call.q[item, head].to(space.dtype)  # [query, dim]
    k = call.k[item, head // call.share].to(space.dtype).T  # [dim, key]
    v = call.v[item, head // call.share].to(space.dtype)  # [key, value dim]
    out, sums = out[item, head], sums[item, head]
    bias, one_hot = workspace.bias.of(item, head), workspace.one_hot[item if len(workspace.one_hot) > 1 else 0]
    kept_v = v if bias.drop is None else v.masked_fill(bias.drop.mT, 0.0)
    for tile in workspace.tiles:
        rows = slice(tile.start, tile.stop)
        if tile.visible == 0:  # more queries than keys: the first ones sit before the first key
            out[rows] = 0
            continue
        shape = (tile.stop - tile.start, tile.visible)
        scores = space[: shape[0] * shape[1]].view(shape)

        def compute(scores: Tensor = scores, rows: slice = rows, visible: int = tile.visible) -> None:
            torch.addmm(scores, q[rows], k[:, :visible], beta=0, alpha=call.scale, out=scores)

        compute()
        weight = add_sums(scores, compute, one_hot[:, rows], sums, call, tile, bias)
        values = (v if weight is None else kept_v)[: tile.visible]
        if out.dtype == v.dtype:
            torch.mm(scores, values, out=out[rows])
            if weight is not None:
                out[rows] *= weight
        else:
            made = scores @ values
            out[rows] = made if weight is None else made.mul_(weight)


# ---- calls of one tile ----


def fits_one_tile(call: Inputs) -> bool:
    """Whether the whole call is one chunk, and its last row sees all keys."""
    batch, heads, queries, _ = call.q.shape
    scores = batch * heads * queries * call.k.shape[2]
    if scores > CHUNK_SCORES or call.q.device.type != "cpu" or (scores >= WHOLE_SCORES and head_at_a_time(call)):
        return False
    return call.block is None or (queries <= tile_rows(call) and call.sees_before(queries - 1) == call.keys)


def attend_whole(call: Inputs) -> Result:
    """The operations of a chunk on all of it: cutting tiny calls into views would take longer than computing them."""
    batch, heads, queries, dim = call.q.shape
    keys, streams, dtype = call.keys, batch * call.kv_heads, call.work_dtype
    shape = (batch, heads, queries, keys)
    q, k, v = call.q.reshape(streams, -1, dim), call.k.flatten(0, 1), call.v.flatten(0, 1)
    if q.dtype != dtype:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    hot = call.one_hot()[:, None]  # [batch | 1, 1, group, query]
    weight = None
    if call.mask is None and call.block is None and call.drop_keys is None and call.cap is None:
        probabilities = whole_rows(q, k, call)
        sums = hot * probabilities.view(shape) if queries == 1 else hot @ probabilities.view(shape)
    else:
        probabilities = scratch_buffer(q, batch * heads * queries * keys, dtype).view(streams, -1, keys)

        def compute() -> None:
            torch.baddbmm(probabilities, q, k.mT, beta=0, alpha=call.scale, out=probabilities)

        compute()
        bias, sums = attention_bias(call), zero_sums(call)
        weight = add_sums(probabilities.view(shape), compute, hot, sums, call, next(tiles(call, queries)), bias)
        if weight is not None and bias.drop is not None:
            probabilities.view(shape).mul_(~bias.drop)
    out = torch.bmm(probabilities, v).view(batch, heads, queries, -1)
    if weight is not None:
        out *= weight
    if out.dtype != call.q.dtype:
        out = out.to(call.q.dtype)
    if queries > 1 and call.q.transpose(1, 2).is_contiguous():  # as empty_out lays it
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    return result_of(call, out, sums)


def single_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention of one query a row, [batch, head, 1, value dim], worked out in float32; mask: bool [batch | 1, head | 1, 1, key].

    Query heads that read the same key head are the rows of one product. In half precision torch's SDPA on a CPU works off
    one head after another, which takes five times as long.
    """
    batch, heads, _, dim = q.shape
    keys, streams = k.shape[2], batch * k.shape[1]
    rows = q.reshape(streams, -1, dim).float() * (dim**-0.5 if scale is None else scale)
    scores = torch.bmm(rows, k.flatten(0, 1).float().mT)
    if mask is not None:
        scores.view(batch, heads, 1, keys).masked_fill_(~mask, -torch.inf)
    out = torch.bmm(scores.softmax(-1), v.flatten(0, 1).float())
    return out.view(batch, heads, 1, -1).to(q.dtype)


def whole_rows(q: Tensor, k: Tensor, call: Inputs) -> Tensor:
    """Probabilities [stream, row, key] where every row sees every key."""
    if q.shape[0] * q.shape[1] * k.shape[1] <= TINY_SCORES:
        return torch.softmax(torch.baddbmm(NOTHING[q.dtype], q, k.mT, beta=0, alpha=call.scale), -1)
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


def attend_chunks(call: Inputs, workspace: Workspace, out: Tensor, sums: Tensor) -> None:
    """Work off all chunks in one buffer."""
    pieces = list(chunks(call, workspace.rows))
    scores = max(piece.size for piece in pieces) * call.share * workspace.rows * call.keys
    space = scratch_buffer(call.q, scores, call.work_dtype)
    for chunk in pieces:
        attend_chunk(call, chunk, workspace, space, out, sums)


def attend_chunk(call: Inputs, chunk: Chunk, workspace: Workspace, space: Tensor, out: Tensor, sums: Tensor) -> None:
    """Work one chunk off, tile after tile, into its part of the output and the sums."""
    k = call.k[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)  # [stream, key, dim]
    v = call.v[chunk.batch, chunk.kv_heads].flatten(0, 1).to(call.work_dtype)
    q, out, sums = (tensor[chunk.batch, chunk.heads] for tensor in (call.q, out, sums))
    items, heads = q.shape[:2]
    bias = workspace.bias.of(chunk.batch, chunk.heads)
    one_hot = workspace.one_hot[chunk.batch if len(workspace.one_hot) > 1 else slice(None), None]
    for tile in workspace.tiles:
        start, stop, visible = tile.start, tile.stop, tile.visible
        if visible == 0:
            out[:, :, start:stop] = 0
            continue
        shape = (items, heads, stop - start, visible)
        scores = space[: items * heads * (stop - start) * visible].view(shape)
        # Query heads that read the same key head are stacked as rows: k is never repeated.
        stacked = scores.view(len(k), -1, visible)
        tile_q = q[:, :, start:stop].reshape(len(k), -1, q.shape[3]).to(k.dtype)

        def compute(stacked: Tensor = stacked, tile_q: Tensor = tile_q, visible: int = visible) -> None:
            torch.baddbmm(stacked, tile_q, k[:, :visible].mT, beta=0, alpha=call.scale, out=stacked)

        compute()
        weight = add_sums(scores, compute, one_hot[..., start:stop], sums, call, tile, bias)
        if weight is not None and bias.drop is not None:
            scores.mul_(~bias.drop[..., :visible])
        write_out(stacked, v[:, :visible], out[:, :, start:stop], weight)


def write_out(probabilities: Tensor, v: Tensor, out: Tensor, weight: Tensor | None) -> None:
    """out [batch, head, row, dim] = probabilities [stream, head of the stream × row, key] × v [stream, key, dim] × weight."""
    one_stream_a_head = out.shape[0] * out.shape[1] == len(v)
    if weight is None and out.dtype == v.dtype and one_stream_a_head and (len(out) == 1 or out.is_contiguous()):
        torch.bmm(probabilities, v, out=out.flatten(0, 1))
        return
    made = (probabilities @ v).view(out.shape)
    out.copy_(made if weight is None else made.mul_(weight))


# ---- what keeps keys from queries beside their order: sorted once a call, put into one tile at a time

# A mask is compared with its first row in pieces of so many rows, so that no copy is as large as the mask.
PIECE = 128


@dataclass(frozen=True)
class AttentionBias:
    """What is added to the scores: a part that holds for all rows alike, and a part that differs from row to row."""

    all_rows: Tensor | None  # [batch | 1, head | 1, 1, key], additive
    row_by_row: Tensor | None  # [batch | 1, head | 1, query, key], bool (True = may attend) or additive
    drop: Tensor | None  # bool [batch | 1, head | 1, 1, key]; apart only where scores without it are needed
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
    all_rows = as_bias(mask, call.work_dtype) if mask is not None and mask.shape[2] == 1 else None
    row_by_row = mask if mask is not None and mask.shape[2] > 1 else None
    drop = None if call.drop_keys is None else call.drop_keys[:, :, None]
    if drop is not None and not call.clean and not call.keep_self:
        barred = as_bias(~drop, call.work_dtype)
        all_rows, drop = barred if all_rows is None else all_rows + barred, None
    return AttentionBias(all_rows, row_by_row, drop, first_kept(call, all_rows, row_by_row))


def first_kept(call: Inputs, all_rows: Tensor | None, row_by_row: Tensor | None) -> int:
    """The first key that no head bars for all rows; the number of keys where some head bars all, or rows differ."""
    if row_by_row is not None:
        return call.keys
    if all_rows is None:
        return 0
    kept = all_rows != -torch.inf  # [batch | 1, head | 1, 1, key]
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
    own = None if keep_self_at is None else scores.diagonal(keep_self_at, -2, -1)
    kept = None if own is None else own.clone()
    scores.masked_fill_(drop, -torch.inf)
    if own is not None and kept is not None:
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
