# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Attention and column sums in Triton, for CUDA: checked in Triton's interpreter, not timed on a GPU.

Two passes, neither holds query × key. The first is the usual online softmax: a program has some query rows, walks over
the keys, and keeps each row's maximum and 1 / sum of exp(score − maximum). The second turns that round: a program has
some keys, walks over the queries, and adds up the probabilities a group. Every sum has one owner and one order, so
there are no atomic adds and two runs give the same bits. (Maximum and sum are kept apart: their log-sum-exp would lose
the sum's digits next to a large maximum, as under an additive mask of −1e4.)
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sinkscope.attention.inputs import Inputs, Result, masked_below
from sinkscope.errors import AttentionError

NO_MASK, BOOL_MASK, ADDITIVE_MASK = 0, 1, 2
# tl.dot wants at least 16 on every side.
SMALLEST = 16


@triton.jit
def load_rows(pointer, rows, stride_row, columns, stride_column, row_count, column_count, WIDEN: tl.constexpr):
    """A block [row, column], zeros beyond the edges."""
    inside = (rows[:, None] < row_count) & (columns[None, :] < column_count)
    block = tl.load(pointer + rows[:, None] * stride_row + columns[None, :] * stride_column, mask=inside, other=0.0)
    return block.to(tl.float32) if WIDEN else block


@triton.jit
def masked_scores(
    q, k, scale, rows, keys, row_count, key_count, offset,
    mask, mask_row, mask_key, masked_at,
    MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores [row, key] of one block with −∞ where mask, the order of blocks or the edges bar a key."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    inside = (rows[:, None] < row_count) & (keys[None, :] < key_count)
    allowed = inside
    if BLOCK != 0:  # division truncates: what lies before position 0 ends at 0 or below, and sees nothing
        allowed = allowed & (keys[None, :] < (rows[:, None] + offset + BLOCK) // BLOCK * BLOCK)
    if MASK != 0:
        where = mask + rows[:, None] * mask_row + keys[None, :] * mask_key
        if MASK == 1:
            allowed = allowed & (tl.load(where, mask=inside, other=0) != 0)
        else:
            bias = tl.load(where, mask=inside, other=0.0).to(tl.float32)
            allowed = allowed & (bias > masked_at)
            scores += bias
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def without_dropped(scores, rows, keys, key_count, offset, drop, drop_key, KEEP_SELF: tl.constexpr):
    """The same scores with −∞ at dropped keys."""
    dropped = (tl.load(drop + keys * drop_key, mask=keys < key_count, other=0) != 0)[None, :]
    if KEEP_SELF:
        dropped = dropped & (keys[None, :] != rows[:, None] + offset)
    return tl.where(dropped, float("-inf"), scores)


@triton.jit
def output_kernel(
    q, k, v, out, peaks, shares, clean_peaks, clean_shares, mask, drop,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_key, k_dim, v_batch, v_head, v_key, v_dim,
    out_batch, out_head, out_row, out_dim, mask_batch, mask_head, mask_row, mask_key, drop_batch, drop_head, drop_key,
    heads, share, row_count, key_count, offset, dim_count, value_count, scale, masked_at,
    MASK: tl.constexpr, BLOCK: tl.constexpr, DROP: tl.constexpr, KEEP_SELF: tl.constexpr, CLEAN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Output of some rows of one head, and what makes their scores probabilities, with and without dropped keys."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    dims, values = tl.arange(0, DIM), tl.arange(0, VALUE)
    k += batch * k_batch + head // share * k_head
    v += batch * v_batch + head // share * v_head
    mask += batch * mask_batch + head * mask_head
    drop += batch * drop_batch + head * drop_head
    q_block = load_rows(q + batch * q_batch + head * q_head, rows, q_row, dims, q_dim, row_count, dim_count, WIDEN)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    clean_largest = tl.full([ROWS], float("-inf"), tl.float32)
    clean_total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE], tl.float32)
    stop = key_count
    if BLOCK != 0:  # the end of the last row's block
        stop = tl.maximum(0, tl.minimum(key_count, (offset + first + ROWS - 1 + BLOCK) // BLOCK * BLOCK))
    for start in range(0, stop, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_block = load_rows(k, keys, k_key, dims, k_dim, key_count, dim_count, WIDEN)
        scores = masked_scores(
            q_block, k_block, scale, rows, keys, row_count, key_count, offset,
            mask, mask_row, mask_key, masked_at, MASK, BLOCK,
        )  # fmt: skip
        if CLEAN:
            higher = tl.maximum(clean_largest, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            clean_total = clean_total * tl.exp(clean_largest - base) + tl.sum(tl.exp(scores - base[:, None]), 1)
            clean_largest = higher
        if DROP:
            scores = without_dropped(scores, rows, keys, key_count, offset, drop, drop_key, KEEP_SELF)
        higher = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # −∞ − (−∞) would be NaN
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        v_block = load_rows(v, keys, v_key, values, v_dim, key_count, value_count, WIDEN)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v_block.dtype), v_block, input_precision="ieee")
        largest = higher

    share_of_row = tl.where(total == 0.0, 0.0, 1.0 / total)  # a row with nothing to attend to: zeros
    inside = (rows[:, None] < row_count) & (values[None, :] < value_count)
    out += batch * out_batch + head * out_head
    sums = (sums * share_of_row[:, None]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_row + values[None, :] * out_dim, sums, mask=inside)
    at = (batch * heads + head) * row_count + rows
    tl.store(peaks + at, tl.where(largest == float("-inf"), 0.0, largest), mask=rows < row_count)
    tl.store(shares + at, share_of_row, mask=rows < row_count)
    if CLEAN:
        tl.store(clean_peaks + at, tl.where(clean_largest == float("-inf"), 0.0, clean_largest), mask=rows < row_count)
        tl.store(clean_shares + at, tl.where(clean_total == 0.0, 0.0, 1.0 / clean_total), mask=rows < row_count)


@triton.jit
def received_kernel(
    q, k, peaks, shares, labels, received, mask, drop,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_key, k_dim, labels_batch,
    mask_batch, mask_head, mask_row, mask_key, drop_batch, drop_head, drop_key,
    heads, share, row_count, key_count, offset, dim_count, group_count, scale, masked_at,
    MASK: tl.constexpr, BLOCK: tl.constexpr, DROP: tl.constexpr, KEEP_SELF: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, GROUPS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """What some keys of one head received from each group of queries."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    first = tl.program_id(0) * KEYS
    keys = first + tl.arange(0, KEYS)
    dims, groups = tl.arange(0, DIM), tl.arange(0, GROUPS)
    q += batch * q_batch + head * q_head
    mask += batch * mask_batch + head * mask_head
    drop += batch * drop_batch + head * drop_head
    peaks += (batch * heads + head) * row_count
    shares += (batch * heads + head) * row_count
    labels += batch * labels_batch
    k_block = load_rows(
        k + batch * k_batch + head // share * k_head, keys, k_key, dims, k_dim, key_count, dim_count, WIDEN
    )

    sums = tl.zeros([GROUPS, KEYS], tl.float32)
    begin = 0
    if BLOCK != 0:  # rows before the block of the first key see none of these keys; stay on a multiple of ROWS
        begin = tl.maximum(0, first // BLOCK * BLOCK - offset) // ROWS * ROWS
    for start in range(begin, row_count, ROWS):
        rows = start + tl.arange(0, ROWS)
        q_block = load_rows(q, rows, q_row, dims, q_dim, row_count, dim_count, WIDEN)
        scores = masked_scores(
            q_block, k_block, scale, rows, keys, row_count, key_count, offset,
            mask, mask_row, mask_key, masked_at, MASK, BLOCK,
        )  # fmt: skip
        if DROP:
            scores = without_dropped(scores, rows, keys, key_count, offset, drop, drop_key, KEEP_SELF)
        peak = tl.load(peaks + rows, mask=rows < row_count, other=0.0)
        row_share = tl.load(shares + rows, mask=rows < row_count, other=0.0)
        label = tl.load(labels + rows, mask=rows < row_count, other=-1)
        counted = tl.where(groups[:, None] == label[None, :], row_share[None, :], 0.0)
        sums += tl.dot(counted, tl.exp(scores - peak[:, None]), input_precision="ieee")

    inside = (groups[:, None] < group_count) & (keys[None, :] < key_count)
    at = ((batch * heads + head) * group_count + groups[:, None]) * key_count + keys[None, :]
    tl.store(received + at, sums, mask=inside)


@torch.no_grad()
def triton_attention(call: Inputs, rows: int | None = None, keys: int | None = None) -> Result:
    """Softmax attention, its output, and what every key received."""
    if call.q.device.type != "cuda":  # the interpreter
        return _attention(call, rows, keys)
    with torch.cuda.device(call.q.device):  # Triton launches on the current device
        return _attention(call, rows, keys)


def _attention(call: Inputs, rows: int | None, keys: int | None) -> Result:
    if call.q.dtype == torch.float64:
        raise AttentionError("backend 'triton' takes float32, bfloat16 and float16, but q is float64: use 'tiled'.")
    q, k, v = call.q, call.k, call.v
    out, received = call.empty_out(), call.zero_received()
    both = call.clean and call.drop_keys is not None
    peaks = q.new_empty(call.batch, call.heads, call.queries, dtype=torch.float32)
    shares, clean_peaks, clean_shares = torch.empty_like(peaks), peaks, peaks
    if both:
        clean_peaks, clean_shares = torch.empty_like(peaks), torch.empty_like(peaks)
    mask, mask_strides, kind = mask_arguments(call)
    drop, drop_strides = drop_arguments(call)
    labels = call.labels.to(torch.int32).contiguous()
    labels_batch = labels.stride(0) if len(labels) > 1 else 0
    masked_at = masked_below(call.mask.dtype) if kind == ADDITIVE_MASK and call.mask is not None else 0.0
    launch = launch_options(q.dtype.itemsize, q.shape[3])
    rows = fitting(call.queries, launch.rows if rows is None else rows)
    keys = fitting(call.keys, launch.keys if keys is None else keys)
    dim, value = fitting(q.shape[3]), fitting(v.shape[3])
    sizes = (call.heads, call.share, call.queries, call.keys, call.offset, q.shape[3])
    # Triton's interpreter multiplies the bit patterns of bfloat16, a bug: there, and only there, widen.
    widen = q.dtype == torch.bfloat16 and q.device.type == "cpu"
    blocks: dict[str, Any] = {
        "BLOCK": call.block or 0, "MASK": kind, "ROWS": rows, "KEYS": keys, "DIM": dim, "WIDEN": widen,
        **launch.options,
    }  # fmt: skip

    output_kernel[(triton.cdiv(call.queries, rows), call.batch * call.heads)](
        q, k, v, out, peaks, shares, clean_peaks, clean_shares, mask, drop,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(), *mask_strides, *drop_strides,
        *sizes, v.shape[3], call.scale, masked_at,
        DROP=call.drop_keys is not None, KEEP_SELF=call.keep_self, CLEAN=both, VALUE=value, **blocks,
    )  # fmt: skip

    def column_sums(row_peaks: Tensor, row_shares: Tensor, into: Tensor, with_drop: bool) -> Tensor:
        received_kernel[(triton.cdiv(call.keys, keys), call.batch * call.heads)](
            q, k, row_peaks, row_shares, labels, into, mask, drop,
            *q.stride(), *k.stride(), labels_batch, *mask_strides, *drop_strides,
            *sizes, call.group_count, call.scale, masked_at,
            DROP=with_drop, KEEP_SELF=call.keep_self, GROUPS=fitting(call.group_count), **blocks,
        )  # fmt: skip
        return into

    column_sums(peaks, shares, received, call.drop_keys is not None)
    clean = column_sums(clean_peaks, clean_shares, call.zero_received(), False) if both else None
    return Result(out, received, clean)


class Launch(NamedTuple):
    """How a kernel is launched, here and where it is built ahead of time."""

    rows: int  # sides of a tile of scores
    keys: int
    options: dict[str, int]


def launch_options(itemsize: int, dim: int) -> Launch:
    """Tile and warps for a number type and head size; float32 is multiplied without tensor cores, all in registers."""
    if itemsize > 2:
        return Launch(32, 32, {"num_warps": 8, "num_stages": 1})
    return Launch(64, 64, {"num_warps": 4 if dim <= 64 else 8, "num_stages": 2})


def fitting(size: int, most: int | None = None) -> int:
    """A block side for this size: a power of two, no smaller than tl.dot takes and no larger than `most`."""
    side = max(SMALLEST, 1 << (size - 1).bit_length())
    return side if most is None else min(side, most)


def mask_arguments(call: Inputs) -> tuple[Tensor, tuple[int, ...], int]:
    """The mask as the kernels take it: tensor, strides (0 where it is shared), kind."""
    if call.mask is None:
        return call.q, (0, 0, 0, 0), NO_MASK
    shared = call.mask.expand(call.batch, call.heads, call.queries, call.keys)
    if call.mask.dtype == torch.bool:
        return call.mask.view(torch.uint8), shared.stride(), BOOL_MASK
    return call.mask, shared.stride(), ADDITIVE_MASK


def drop_arguments(call: Inputs) -> tuple[Tensor, tuple[int, ...]]:
    """drop_keys as the kernels take it: tensor and strides (0 where it is shared)."""
    if call.drop_keys is None:
        return call.q, (0, 0, 0)
    return call.drop_keys.view(torch.uint8), call.drop_keys.expand(call.batch, call.heads, call.keys).stride()
