# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Attention and column sums in Triton, for CUDA: checked in Triton's interpreter, not timed on a GPU.

Two passes, neither holds query × key. The first is the usual online softmax: a program has some query rows, walks over
the keys, and keeps each row's maximum and 1 / sum of 2^(score − maximum); scores are in base 2. Where nothing is masked, torch's
own flash attention does it, and hands over its log-sum-exp: the output then has the bits of the untraced call. The second
pass turns that round. A program has some keys, walks over the queries of one group, and adds up their probabilities, element by
element. Rows are added together once, at its end. Every sum has one owner and one order, so there are no atomic adds and
two runs give the same bits. (Maximum and sum are kept apart: their log-sum-exp would lose the sum's digits next to a large
maximum, as under an additive mask of −1e4.)

With dropped keys both passes also work out the sums without the drop, at one exponential per score. What is kept is measured
from the largest kept score, what is dropped from the largest of all. So nothing overflows however strong the dropped keys are.
The first pass visits the few tiles with a dropped key a second time, so that its main loop has no branch.
"""

from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend

from sinkscope.attention.forward import running
from sinkscope.attention.reference import Inputs, Result, masked_below
from sinkscope.errors import AttentionError

NO_MASK, BOOL_MASK, ADDITIVE_MASK, KEY_MASK = 0, 1, 2, 3  # KEY_MASK: bool, the same for every query, as padding is
# tl.dot wants at least 16 on every side.
SMALLEST = 16
LOG2E = 1.4426950408889634
# A size that is 1, or a multiple of 16, would compile each kernel once more. Strides and head sizes may tell: loads are wider then.
SIZES = (
    "heads", "share", "row_count", "key_count", "offset", "block", "group_count",
    "order_batch", "mask_batch", "mask_head", "drop_batch", "drop_head",
)  # fmt: skip


@triton.jit
def load_rows(
    pointer, rows, stride_row, columns, stride_column, row_count, column_count, WHOLE: tl.constexpr, WIDEN: tl.constexpr
):
    """A block [row, column]; beyond the last row it again, beyond the columns zeros; WHOLE: there are as many columns."""
    at = pointer + tl.minimum(rows, row_count - 1)[:, None] * stride_row + columns[None, :] * stride_column
    block = tl.load(at) if WHOLE else tl.load(at, mask=columns[None, :] < column_count, other=0.0)
    return block.to(tl.float32) if WIDEN else block


@triton.jit
def seen_keys(keys, key_count, mask, mask_key, MASK: tl.constexpr):
    """bool [key]: which keys there are, and a mask of keys shows."""
    seen = keys < key_count
    if MASK == 3:
        seen = tl.load(mask + keys * mask_key, mask=seen, other=0) != 0
    return seen


@triton.jit
def scores_of(
    q, k, scale2, rows, keys, seen, row_count, key_count, offset, block,
    mask, mask_row, mask_key, masked_at,
    MASK: tl.constexpr, ORDER: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Scores [row, key] of one block in base 2, −∞ where mask, the order of blocks or (EDGE) `seen` bars one."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2
    if EDGE:
        scores = tl.where(seen[None, :], scores, float("-inf"))
    inside = (rows[:, None] < row_count) & (keys[None, :] < key_count)
    where = mask + rows[:, None] * mask_row + keys[None, :] * mask_key
    if MASK == 1:
        scores = tl.where(tl.load(where, mask=inside, other=0) != 0, scores, float("-inf"))
    elif MASK == 2:
        bias = tl.load(where, mask=inside, other=0.0).to(tl.float32)
        scores = tl.where(bias > masked_at, scores + bias * 1.4426950408889634, float("-inf"))
    if ORDER:  # division truncates: what lies before position 0 ends at 0 or below, and sees nothing
        ends = (rows + offset + block) // block * block
        scores = tl.where(keys[None, :] < ends[:, None], scores, float("-inf"))
    return scores


@triton.jit
def dropped_pairs(rows, keys, key_count, offset, drop, drop_key, KEEP_SELF: tl.constexpr):
    """bool [row or 1, key]: what drop_keys bars."""
    dropped = (tl.load(drop + keys * drop_key, mask=keys < key_count, other=0) != 0)[None, :]
    if KEEP_SELF:
        dropped = dropped & (keys[None, :] != rows[:, None] + offset)
    return dropped


@triton.jit
def finite(largest):
    """What a row's scores are measured from; −∞ − (−∞) would be NaN."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit(do_not_specialize=SIZES)
def output_kernel(  # noqa: PLR0915
    q, k, v, out, peaks, shares, clean_peaks, clean_shares, mask, drop,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_key, k_dim, v_batch, v_head, v_key, v_dim,
    out_batch, out_head, out_row, out_dim, mask_batch, mask_head, mask_row, mask_key, drop_batch, drop_head, drop_key,
    heads, share, row_count, key_count, offset, block, dim_count, value_count, scale2, masked_at,
    MASK: tl.constexpr, ORDER: tl.constexpr, DROP: tl.constexpr, KEEP_SELF: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE: tl.constexpr, WIDEN: tl.constexpr,
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
    q_block = load_rows(
        q + batch * q_batch + head * q_head, rows, q_row, dims, q_dim, row_count, dim_count, WHOLE, WIDEN
    )

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    lost_largest = tl.full([ROWS], float("-inf"), tl.float32)  # of the dropped keys
    lost_total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE], tl.float32)
    stop = key_count
    if ORDER:  # the end of the last row's block
        stop = tl.maximum(0, tl.minimum(key_count, (offset + first + ROWS - 1 + block) // block * block))
    for start in range(0, stop, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_block = load_rows(k, keys, k_key, dims, k_dim, key_count, dim_count, WHOLE, WIDEN)
        seen = seen_keys(keys, key_count, mask, mask_key, MASK)
        if DROP and not KEEP_SELF:
            seen = seen & (tl.load(drop + keys * drop_key, mask=keys < key_count, other=0) == 0)
        scores = scores_of(
            q_block, k_block, scale2, rows, keys, seen, row_count, key_count, offset, block,
            mask, mask_row, mask_key, masked_at, MASK, ORDER, True,
        )  # fmt: skip
        if DROP and KEEP_SELF:
            dropped = dropped_pairs(rows, keys, key_count, offset, drop, drop_key, KEEP_SELF)
            scores = tl.where(dropped, float("-inf"), scores)
        higher = tl.maximum(largest, tl.max(scores, 1))
        base = finite(higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        v_block = load_rows(v, keys, v_key, values, v_dim, key_count, value_count, WHOLE, WIDEN)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v_block.dtype), v_block, input_precision="ieee")
        largest = higher

    if DROP:  # once more over the few tiles with a dropped key, for what it would have drawn
        for start in range(0, stop, KEYS):
            keys = start + tl.arange(0, KEYS)
            if tl.max(tl.load(drop + keys * drop_key, mask=keys < key_count, other=0).to(tl.int32), 0) != 0:
                k_block = load_rows(k, keys, k_key, dims, k_dim, key_count, dim_count, WHOLE, WIDEN)
                scores = scores_of(
                    q_block, k_block, scale2, rows, keys, seen_keys(keys, key_count, mask, mask_key, MASK), row_count,
                    key_count, offset, block, mask, mask_row, mask_key, masked_at, MASK, ORDER, True,
                )  # fmt: skip
                dropped = dropped_pairs(rows, keys, key_count, offset, drop, drop_key, KEEP_SELF)
                lost = tl.where(dropped, scores, float("-inf"))
                higher = tl.maximum(lost_largest, tl.max(lost, 1))
                base = finite(higher)
                lost_total = lost_total * tl.exp2(lost_largest - base) + tl.sum(tl.exp2(lost - base[:, None]), 1)
                lost_largest = higher

    share_of_row = tl.where(total == 0.0, 0.0, 1.0 / total)  # a row with nothing to attend to: zeros
    inside = (rows[:, None] < row_count) & (values[None, :] < value_count)
    out += batch * out_batch + head * out_head
    sums = (sums * share_of_row[:, None]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_row + values[None, :] * out_dim, sums, mask=inside)
    at = (batch * heads + head) * row_count + rows
    tl.store(peaks + at, finite(largest), mask=rows < row_count)
    tl.store(shares + at, share_of_row, mask=rows < row_count)
    if DROP:
        clean_largest = tl.maximum(largest, lost_largest)
        base = finite(clean_largest)
        clean_total = total * tl.exp2(largest - base) + lost_total * tl.exp2(lost_largest - base)
        tl.store(clean_peaks + at, base, mask=rows < row_count)
        tl.store(clean_shares + at, tl.where(clean_total == 0.0, 0.0, 1.0 / clean_total), mask=rows < row_count)


@triton.jit(do_not_specialize=SIZES)
def received_kernel(  # noqa: PLR0915
    q, k, peaks, shares, clean_peaks, clean_shares, order, received, clean, mask, drop,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_key, k_dim, order_batch,
    mask_batch, mask_head, mask_row, mask_key, drop_batch, drop_head, drop_key,
    heads, share, row_count, key_count, offset, block, dim_count, group_count, scale2, masked_at,
    MASK: tl.constexpr, ORDER: tl.constexpr, DROP: tl.constexpr, KEEP_SELF: tl.constexpr, LSE: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """What some keys of one head received from one group of queries, with and without dropped keys."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    group = tl.program_id(2)
    first = tl.program_id(0) * KEYS
    keys = first + tl.arange(0, KEYS)
    dims = tl.arange(0, DIM)
    q += batch * q_batch + head * q_head
    mask += batch * mask_batch + head * mask_head
    drop += batch * drop_batch + head * drop_head
    row = (batch * heads + head) * row_count
    order += batch * order_batch
    begin, end = tl.load(order + row_count + group), tl.load(order + row_count + group + 1)
    k_block = load_rows(
        k + batch * k_batch + head // share * k_head, keys, k_key, dims, k_dim, key_count, dim_count, WHOLE, WIDEN
    )

    some = False  # whether any of these keys is dropped: for most programs none is
    if DROP:
        some = tl.max(tl.load(drop + keys * drop_key, mask=keys < key_count, other=0).to(tl.int32), 0) != 0
    if ORDER:  # rows before the block of the first key see none of these keys
        sees = first // block * block - offset
        for start in range(begin, end, 256):
            numbers = start + tl.arange(0, 256)
            begin += tl.sum((tl.load(order + numbers, mask=numbers < end, other=row_count) < sees).to(tl.int32))
    sums = tl.zeros([ROWS, KEYS], tl.float32)
    clean_sums = tl.zeros([ROWS, KEYS], tl.float32)
    for start in range(begin, end, ROWS):
        numbers = start + tl.arange(0, ROWS)
        there = numbers < end
        rows = tl.load(order + tl.minimum(numbers, end - 1))
        q_block = load_rows(q, rows, q_row, dims, q_dim, row_count, dim_count, WHOLE, WIDEN)
        scores = scores_of(
            q_block, k_block, scale2, rows, keys, seen_keys(keys, key_count, mask, mask_key, MASK), row_count, key_count,
            offset, block, mask, mask_row, mask_key, masked_at, MASK, ORDER, MASK == 3,
        )  # fmt: skip
        peak = tl.load(peaks + row + rows, mask=there, other=float("inf"))
        weight = tl.full([ROWS], 1.0, tl.float32)
        if LSE:
            peak = peak * 1.4426950408889634
        else:
            weight = tl.load(shares + row + rows, mask=there, other=0.0)
        if DROP:
            clean_peak = tl.load(clean_peaks + row + rows, mask=there, other=float("inf"))
            clean_share = tl.load(clean_shares + row + rows, mask=there, other=0.0)
            # What kept keys get under the larger total; a row whose every kept key is barred has no peak of its own.
            under = tl.where(weight == 0.0, 0.0, clean_share * tl.exp2(peak - clean_peak))
            if some:
                dropped = dropped_pairs(rows, keys, key_count, offset, drop, drop_key, KEEP_SELF)
                shown = tl.exp2(scores - tl.where(dropped, clean_peak[:, None], peak[:, None]))
                kept = tl.where(dropped, 0.0, shown)
                clean_sums += shown * tl.where(dropped, clean_share[:, None], under[:, None])
            else:
                kept = tl.exp2(scores - peak[:, None])
                clean_sums += kept * under[:, None]
        else:
            kept = tl.exp2(scores - peak[:, None])
        sums += kept * weight[:, None]

    at = ((batch * heads + head) * group_count + group) * key_count + keys
    tl.store(received + at, tl.sum(sums, 0), mask=keys < key_count)
    if DROP:
        tl.store(clean + at, tl.sum(clean_sums, 0), mask=keys < key_count)


@torch.no_grad()
def triton_attention(call: Inputs, rows: int | None = None, keys: int | None = None) -> Result:
    """Softmax attention, its output, and what every key received; rows, keys: at most so many in a tile."""
    if call.q.dtype == torch.float64:
        raise AttentionError("backend 'triton' takes float32, bfloat16 and float16, but q is float64: use 'tiled'.")
    # Triton launches on the current device; on a CPU it is the interpreter.
    with torch.cuda.device(call.q.device) if call.q.device.type == "cuda" else nullcontext():
        found = flash_output(call)
        out, by_row = own_output(call, rows, keys) if found is None else found
        shape = (call.batch, call.heads, call.group_count, call.keys)
        received = call.q.new_empty(shape, dtype=torch.float32)
        clean = torch.empty_like(received) if call.drop_keys is not None else None
        launch_received(call, by_row, received, clean, rows, keys)
    return Result(out, received, clean if call.clean else None)


class Rows(NamedTuple):
    """What makes scores probabilities, row by row: [batch, head, query] each."""

    peaks: Tensor  # base 2, or natural log-sum-exp
    shares: Tensor | None  # None: peaks are log-sum-exp
    clean_peaks: Tensor | None = None
    clean_shares: Tensor | None = None


def flash_output(call: Inputs) -> tuple[Tensor, Rows] | None:
    """torch's own flash attention, where it would be taken for this call anyway and nothing is masked; else None."""
    q, k, v = call.q, call.k, call.v
    whole = call.block is None or (call.block == 1 and call.offset == 0 and call.queries == call.keys)
    if call.mask is not None or call.drop_keys is not None or not whole or q.device.type != "cuda":
        return None
    if q.dtype == torch.float32 or q.shape[3] != v.shape[3] or q.shape[3] % 8 or q.shape[3] > 256:
        return None
    causal = call.block is not None
    chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=call.scale, enable_gqa=call.share > 1)
    if chosen != SDPBackend.FLASH_ATTENTION.value:
        return None
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=call.scale)[:2]
    return out, Rows(sums.contiguous(), None)


def own_output(call: Inputs, rows: int | None, keys: int | None) -> tuple[Tensor, Rows]:
    """Output by the first kernel."""
    q, v, out = call.q, call.v, call.empty_out()
    peaks = q.new_empty(call.batch, call.heads, call.queries, dtype=torch.float32)
    dropped = call.drop_keys is not None
    by_row = Rows(peaks, *(torch.empty_like(peaks) if wanted else None for wanted in (True, dropped, dropped)))
    mapped = call.mask is not None and (call.mask.dtype != torch.bool or call.mask.shape[-2] > 1)
    launch = fitted(launches("output", q.dtype.itemsize, fitting(q.shape[3]), dropped, mapped), call, rows, keys)
    (mask, drop), strides, words = common(call, launch)
    output_kernel[(triton.cdiv(call.queries, launch.rows), call.batch * call.heads)](
        q, call.k, v, out, *(peaks if one is None else one for one in by_row), mask, drop,
        *q.stride(), *call.k.stride(), *v.stride(), *out.stride(), *strides,
        *sizes(call), v.shape[3], call.scale * LOG2E, masked_at(call),
        VALUE=fitting(v.shape[3]), **words,
    )  # fmt: skip
    return out, by_row


def launch_received(
    call: Inputs, by_row: Rows, received: Tensor, clean: Tensor | None, rows: int | None, keys: int | None
) -> None:
    """Sums of every group of queries by the second kernel."""
    q, order = call.q, rows_by_group(call.labels, call.group_count)
    launch = fitted(launches("received", q.dtype.itemsize, fitting(q.shape[3]), clean is not None), call, rows, keys)
    (mask, drop), strides, words = common(call, launch)
    received_kernel[(triton.cdiv(call.keys, launch.keys), call.batch * call.heads, call.group_count)](
        q, call.k, *(by_row.peaks if one is None else one for one in by_row),
        order, received, received if clean is None else clean, mask, drop,
        *q.stride(), *call.k.stride(), order.stride(0) if len(order) > 1 else 0, *strides,
        *sizes(call), call.group_count, call.scale * LOG2E, masked_at(call), LSE=by_row.shares is None, **words,
    )  # fmt: skip


def rows_by_group(labels: Tensor, groups: int) -> Tensor:
    """[batch | 1, query + group + 1]: rows in the order of their groups, and where each group begins and the last one ends.

    Every layer of a forward has the same labels: they are sorted once.
    """

    def sort_rows() -> Tensor:
        by_group, order = labels.sort(dim=-1, stable=True)
        edges = torch.arange(groups + 1, device=labels.device).expand(len(labels), -1).contiguous()
        return torch.cat([order, torch.searchsorted(by_group, edges)], 1).int()

    forward = running()
    if forward is None or labels is not forward.made.get(("labels", labels.device), forward.labels):
        return sort_rows()
    return forward.once(("rows", groups), labels.device, sort_rows)


def common(call: Inputs, launch: "Launch") -> tuple[tuple[Tensor, Tensor], tuple[int, ...], dict[str, Any]]:
    """What both kernels take: mask and drop, their strides, and the constants."""
    mask_strides: tuple[int, ...]
    drop_strides: tuple[int, ...]
    mask, mask_strides, kind = call.q, (0, 0, 0, 0), NO_MASK  # strides are 0 where a tensor is shared
    if call.mask is not None:
        mask, mask_strides = call.mask, call.mask.expand(call.batch, call.heads, call.queries, call.keys).stride()
        kind = ADDITIVE_MASK
        if mask.dtype == torch.bool:
            mask, kind = mask.view(torch.uint8), KEY_MASK if mask_strides[2] == 0 else BOOL_MASK
    drop, drop_strides = call.q, (0, 0, 0)
    if call.drop_keys is not None:
        drop = call.drop_keys.view(torch.uint8)
        drop_strides = call.drop_keys.expand(call.batch, call.heads, call.keys).stride()
    # Triton's interpreter multiplies the bit patterns of bfloat16, a bug: there, and only there, widen.
    widen = call.q.dtype == torch.bfloat16 and call.q.device.type == "cpu"
    constants: dict[str, Any] = {
        "ORDER": call.block is not None, "MASK": kind, "ROWS": launch.rows, "KEYS": launch.keys,
        "DROP": call.drop_keys is not None, "KEEP_SELF": call.drop_keys is not None and call.keep_self,
        "DIM": fitting(call.q.shape[3]), "WHOLE": all(fitting(one.shape[3]) == one.shape[3] for one in (call.q, call.v)),
        "WIDEN": widen, "num_warps": launch.warps, "num_stages": launch.stages,
    }  # fmt: skip
    return (mask, drop), (*mask_strides, *drop_strides), constants


def sizes(call: Inputs) -> tuple[int, ...]:
    return call.heads, call.share, call.queries, call.keys, call.offset, call.block or 1, call.q.shape[3]


def masked_at(call: Inputs) -> float:
    return 0.0 if call.mask is None or call.mask.dtype == torch.bool else masked_below(call.mask.dtype)


class Launch(NamedTuple):
    """How a kernel is launched, here and where it is built ahead of time."""

    rows: int  # sides of a tile of scores
    keys: int
    warps: int
    stages: int
    shared: int  # bytes of shared memory that no build exceeds


KB = 1024


def launches(kernel: str, itemsize: int, dim: int, dropped: bool, mapped: bool = False) -> tuple[Launch, ...]:
    """Tiles and warps for a kernel, number type and padded head size; the first that a GPU has shared memory for is taken.

    float32 is multiplied without tensor cores, all in registers. mapped: the mask has a value for every pair of query and key;
    beside a tile of 128 rows it would not fit into the registers.
    """
    if itemsize > 2:
        return (Launch(32, 32, 8, 1, 96 * KB),)
    small = Launch(32, 32, 4, 1, 64 * KB)
    if kernel == "received" and dim > 128:
        return Launch(64, 64, 4, 2, 112 * KB), Launch(64, 32, 4, 2, 96 * KB), small
    if kernel == "received":
        return Launch(64, 64, 4, 3, 96 * KB) if dropped else Launch(64, 128, 4, 2, 96 * KB), small
    if dim > 128:
        return Launch(64, 64, 8, 2, 176 * KB), Launch(64, 32, 8, 2, 96 * KB), small
    return Launch(64 if mapped else 128, 64, 8, 2, 99 * KB), small


def fitted(choices: tuple[Launch, ...], call: Inputs, rows: int | None, keys: int | None) -> Launch:
    """The first launch that fits the GPU, in tiles no larger than the call."""
    most = shared_memory(call.q.device.index or 0) if call.q.device.type == "cuda" else None
    chosen = next((one for one in choices if most is None or one.shared <= most), choices[-1])
    return chosen._replace(
        rows=fitting(call.queries, rows or chosen.rows), keys=fitting(call.keys, keys or chosen.keys)
    )


@cache
def shared_memory(device: int) -> int | None:
    """Bytes of shared memory that a program may take."""
    if not torch.cuda.is_available():
        return None
    found: Any = torch.cuda.get_device_properties(device)
    return int(found.shared_memory_per_block_optin)


def fitting(size: int, most: int | None = None) -> int:
    """A block side for this size: a power of two, no smaller than tl.dot takes and no larger than `most`."""
    side = max(SMALLEST, 1 << (size - 1).bit_length())
    return side if most is None else min(side, most)
