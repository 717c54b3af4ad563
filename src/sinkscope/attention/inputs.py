"""What one attention call was asked for, checked once, in the form that every backend reads."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sinkscope.errors import AttentionError
from sinkscope.fields import LARGEST_FLOAT, maybe, need, number, whole

SCALE = maybe(number(-LARGEST_FLOAT, LARGEST_FLOAT))
COUNT, PLACE = (maybe(whole(least, 1 << 31)) for least in (1, -(1 << 31)))  # groups and blocks; positions
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Result(NamedTuple):
    """What a backend gives back; column sums are in the working precision."""

    out: Tensor  # [batch, head, query, value dim], dtype of q
    received: Tensor  # [batch, head, group, key]
    clean: Tensor | None  # the same without drop_keys; None unless both were asked for


@dataclass(frozen=True)
class Inputs:
    """Tensors that fit together; made by `check` only."""

    q: Tensor  # [batch, head, query, dim]
    k: Tensor  # [batch, kv head, key, dim]
    v: Tensor  # [batch, kv head, key, value dim]
    mask: Tensor | None  # [batch | 1, head | 1, query | 1, key], bool (True = may attend) or additive
    block: int | None  # a query sees its own block of keys and those before it; 1: causal, None: sees all
    offset: int  # position of query 0 among the keys
    scale: float
    labels: Tensor  # [batch | 1, query], −1 = counts nowhere
    group_count: int
    drop_keys: Tensor | None  # [batch | 1, head | 1, key]
    keep_self: bool
    clean: bool

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def share(self) -> int:
        """How many query heads read one key head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def sees_before(self, query: int) -> int:
        """How many of the keys come before the end of this query's block: it sees no later ones."""
        if self.block is None:
            return self.keys
        return max(0, min(self.keys, (self.offset + query + self.block) // self.block * self.block))

    @property
    def work_dtype(self) -> torch.dtype:
        """Half types are worked out in float32; float64 stays, for tests that want an oracle of that precision."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def empty_out(self) -> Tensor:
        """Room for the output, [batch, head, query, value dim], laid out in memory as q is."""
        batch, heads, queries, value_dim = self.batch, self.heads, self.queries, self.v.shape[3]
        if self.q.transpose(1, 2).is_contiguous():  # models make q as [batch, query, head, dim] and want out like that
            return self.q.new_empty(batch, queries, heads, value_dim).transpose(1, 2)
        return self.q.new_empty(batch, heads, queries, value_dim)

    def zero_received(self) -> Tensor:
        """Zeros of [batch, head, group, key] to sum into."""
        shape = (self.batch, self.heads, self.group_count, self.keys)
        return self.q.new_zeros(shape, dtype=self.work_dtype)

    def one_hot(self) -> Tensor:
        """Which queries each group counts, as 0 and 1: [batch | 1, group, query]."""
        groups = torch.arange(self.group_count, device=self.q.device)
        return (self.labels[:, None, :] == groups[None, :, None]).to(self.work_dtype)


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    groups: Tensor | None,
    scale: float | None,
    drop_keys: Tensor | None,
    keep_self: bool,
    clean: bool,
    group_count: int | None,
    block: int | None = None,
    first: int | None = None,
) -> Inputs:
    """Refuse what does not fit together, in one sentence; otherwise hand on what the backends need."""
    tensors: dict[str, object] = {"q": q, "k": k, "v": v, "mask": mask, "groups": groups, "drop_keys": drop_keys}
    for name, one in tensors.items():
        if not isinstance(one, Tensor) and (one is not None or name in ("q", "k", "v")):
            raise AttentionError(f"{name} must be a tensor, but is {type(one).__name__}: convert it with torch.")
    need("scale", scale, SCALE, AttentionError)
    need("block", block, COUNT, AttentionError)
    need("group_count", group_count, COUNT, AttentionError)
    need("first", first, PLACE, AttentionError)
    if causal and block is not None:
        raise AttentionError(f"causal and block = {block} cannot go together: causal is block = 1.")
    _check_states(q, k, v)
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if mask is not None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise AttentionError(f"mask must be bool (True = may attend) or additive floats, but is {mask.dtype}.")
        # A NaN would be added to scores, and every row that meets it would be lost; bool masks, the usual ones, have none.
        # Elsewhere looking would make the device wait at every layer.
        if mask.is_floating_point() and mask.device.type == "cpu" and bool((mask.isnan() | mask.isposinf()).any()):
            raise AttentionError("mask must hold finite numbers or -inf to add to the scores, but has NaN or +inf.")
        _check_fit("mask", mask, (batch, heads, queries, keys), q.device)
    if drop_keys is not None:
        if drop_keys.dtype != torch.bool:
            raise AttentionError(f"drop_keys must be bool (True = nobody may attend), but is {drop_keys.dtype}.")
        _check_fit("drop_keys", drop_keys, (batch, heads, keys), q.device)
    offset = keys - queries if first is None else first  # what a cache already holds stands before query 0
    labels, count = _labels(groups, batch, queries, group_count, q.device)
    return Inputs(
        q, k, v, mask, 1 if causal else block, offset, dim**-0.5 if scale is None else scale, labels, count, drop_keys,
        keep_self, clean,
    )  # fmt: skip


def _check_states(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, one in (("k", k), ("v", v)):
        if one.dtype != q.dtype or one.device != q.device:
            raise AttentionError(
                f"q, k and v must share one dtype and device, but q is {q.dtype} on {q.device} and {name} is "
                f"{one.dtype} on {one.device}: convert one of them."
            )
    if q.dtype not in DTYPES:
        raise AttentionError(f"q, k and v must be float32, bfloat16, float16 or float64, but they are {q.dtype}.")
    fit = q.dim() == k.dim() == v.dim() == 4 and len(q) == len(k) and k.shape[:3] == v.shape[:3]
    if not fit or k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[3] != q.shape[3]:
        raise AttentionError(
            "q must be [batch, head, query, dim], k [batch, kv head, key, dim] and v [batch, kv head, key, value dim], where head "
            f"is a multiple of kv head, but their shapes are {list(q.shape)}, {list(k.shape)} and {list(v.shape)}."
        )


def _check_fit(name: str, tensor: Tensor, sizes: tuple[int, ...], device: torch.device) -> None:
    """Of these sizes, all but the last of which may be 1, and where q is."""
    fits = tensor.dim() == len(sizes) and tensor.shape[-1] == sizes[-1]
    if not fits or any(one not in (1, size) for one, size in zip(tensor.shape[:-1], sizes[:-1], strict=True)):
        expected = "".join(f"{size} or 1, " for size in sizes[:-1])
        raise AttentionError(f"{name} must be [{expected}{sizes[-1]}], but has shape {list(tensor.shape)}.")
    if tensor.device != device:
        raise AttentionError(f"{name} must be on {device} with q, but is on {tensor.device}: move it there.")


def _labels(
    groups: Tensor | None, batch: int, queries: int, group_count: int | None, device: torch.device
) -> tuple[Tensor, int]:
    """Labels as [batch | 1, query], and how many groups there are."""
    if groups is None:
        return torch.zeros(1, queries, dtype=torch.long, device=device), group_count or 1
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise AttentionError(f"groups must be integer labels, one per query, but is {groups.dtype}.")
    labels = groups[None] if groups.dim() == 1 else groups
    if labels.dim() != 2 or labels.shape[0] not in (1, batch) or labels.shape[1] != queries:
        raise AttentionError(f"groups must be [{queries}] or [{batch}, {queries}], but has shape {list(groups.shape)}.")
    labels = labels.to(device=device, dtype=torch.long)
    if group_count is not None and device.type != "cpu":
        return labels, group_count  # looking at the labels would make the device wait at every layer
    low, high = (int(end) for end in labels.aminmax()) if labels.numel() else (0, 0)
    if low < -1:
        raise AttentionError(f"groups must be labels from 0 on, or -1 for queries that count nowhere, but has {low}.")
    if group_count is not None and high >= group_count:
        raise AttentionError(f"groups must be below group_count = {group_count}, but has the label {high}.")
    return labels, group_count or max(high + 1, 1)


def masked_below(dtype: torch.dtype) -> float:
    """An additive mask at or below this bars the key: models write finfo.min where they mean −∞."""
    return torch.finfo(dtype).min / 2
