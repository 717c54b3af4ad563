"""What the findings need of a trace: columns of attention a group and a few layers at a time, and which keys exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.sinks.rules import Rule, Threshold

# The group axis of `Trace.received`, in this order.
QUERY_KINDS = ("masked", "committed", "prompt")
# Values of one group worked on at once: 2 MB in fp32, which a core's cache holds; larger chunks are slower.
CHUNK = 1 << 19
ALL = slice(None)


@dataclass(frozen=True, eq=False, kw_only=True)
class TraceColumns:
    """The part of a Trace that is read here; a tensor's annotation has its dimensions, and its dtype if it is whole numbers."""

    received: Annotated[Tensor | None, "step layer head group key"]  # plain column sums; None in summary form
    top_keys: Annotated[Tensor | None, "step layer head group top", torch.int32] = None  # summary form
    top_scores: Annotated[Tensor | None, "step layer head group top"] = None
    queries: Annotated[Tensor, "step group", torch.int32]  # how many queries each group had
    canvas: Annotated[Tensor, "step+1 key", torch.int64]  # tokens before each forward, and the last
    committed_at: Annotated[Tensor, "key", torch.int32]  # step of the last commit or edit, −1 for the prompt
    blocks: Annotated[Tensor, "step 2", torch.int32]  # first column of the active block, and the one after its last
    # How many queries of each group might look at each key; None: all of them, at every key.
    seen: Annotated[Tensor | None, "step group key", torch.int32] = None
    value_norms: Annotated[Tensor | None, "step layer kv_head key"] = None  # on request
    prompt_length: int
    settings: Any  # a Decode
    vocabulary: dict[int, tuple[str, str]]  # id → text shown, kind
    mask_id: int | None
    causal: bool

    @property
    def steps(self) -> int:
        return self.queries.shape[0]

    @property
    def layers(self) -> int:
        return self._scored.shape[1]

    @property
    def heads_count(self) -> int:
        return self._scored.shape[2]

    @property
    def positions(self) -> int:
        return self.canvas.shape[1]

    @property
    def _scored(self) -> Tensor:
        scored = self.top_scores if self.received is None else self.received
        if scored is None:
            raise TraceError("Expected a trace with received attention, full or in summary form, got one without.")
        return scored

    def query_count(self, group: str = "all") -> Tensor:
        """How many queries of a group each step had, `[step]`."""
        return self.queries.sum(-1) if group == "all" else self.queries[:, QUERY_KINDS.index(group)]

    def seen_by(self, group: str = "all") -> Tensor:
        """How many queries of a group might look at each key, `[step, key]`."""
        if self.seen is None:
            return self.query_count(group)[:, None].expand(-1, self.positions)
        return self.seen.sum(1) if group == "all" else self.seen[:, QUERY_KINDS.index(group)]

    def alive(self) -> Tensor:
        """Which keys exist at each step, `[step, key]` bool: those that some query might look at."""
        if self.seen is None:
            return torch.ones(self.steps, self.positions, dtype=torch.bool)
        return self.seen.any(1)

    def scores(self, group: str = "all", unit: str = "sum") -> Tensor:
        """What each key received from a group of queries, [step, layer, head, key] fp32.

        unit: "sum" column sums; "mean" divided by the number of queries; "percent" 100 × that. In summary form the top
        keys are exact and what is left of the attention is spread evenly over the others.
        """
        if group not in ("all", *QUERY_KINDS):
            raise TraceError(f"Expected a group of queries among all, {', '.join(QUERY_KINDS)}, got {group!r}.")
        if unit not in ("sum", "mean", "percent"):
            raise TraceError(f"Expected the unit sum, mean or percent, got {unit!r}.")
        sums = self.sums(group)
        if unit == "sum":
            return sums
        return sums / self.query_count(group).clamp(min=1)[:, None, None, None] * (100 if unit == "percent" else 1)

    def sums(self, group: str, layers: slice = ALL) -> Tensor:
        """Column sums of these layers, [step, layer, head, key] fp32."""
        first, *others = range(len(QUERY_KINDS)) if group == "all" else [QUERY_KINDS.index(group)]
        # Added one by one: twice as fast as `.float().sum(axis)`.
        sums = self._group(first, layers).to(torch.float32, copy=True)
        for other in others:
            sums += self._group(other, layers)
        return sums

    def _group(self, group: int, layers: slice) -> Tensor:
        if self.received is not None:
            return self.received[:, layers, :, group]
        assert self.top_keys is not None and self.top_scores is not None
        keys, top = self.top_keys[:, layers, :, group].long(), self.top_scores[:, layers, :, group].float()
        alive = self.alive()  # [step, key]
        total = self.queries[:, group].float()[:, None, None]
        rest = (total - top.sum(-1)).clamp(min=0) / (alive.sum(1) - top.shape[-1]).clamp(min=1)[:, None, None]
        return (rest.unsqueeze(-1) * alive[:, None, None]).scatter(-1, keys, top)


Columns = TypeVar("Columns", bound=TraceColumns)


def cumulative_columns(trace: Columns, least: int = 4) -> Columns:
    """An autoregressive trace seen as a whole map grows: at each step the columns of all rows so far.

    One step of an ARM is one row, one step of a diffusion model is a whole map. Rows alone would call any key that one row
    looks at a flash. Early keys are seen by more rows, so each column is the mean over the rows that see its key. Keys that
    fewer than `least` rows have seen are not judged yet.
    """
    if not trace.causal:
        raise TraceError("Columns so far are of an autoregressive trace; a diffusion model has a whole map per step.")
    rows, seen, scores = trace.query_count(), trace.seen_by(), trace.sums("all")  # [step], [step, key], [step, layer, …]
    if bool((rows < trace.alive().sum(1)).any()):  # else a step has all rows so far, not one
        rows, seen, scores = rows.cumsum(0), seen.cumsum(0), scores.cumsum(0)
    whole = torch.zeros(*scores.shape[:3], len(QUERY_KINDS), scores.shape[3])
    whole[..., 1, :] = scores / seen.clamp(min=1)[:, None, None] * rows[:, None, None, None]
    nothing = torch.zeros_like(rows)
    queries = torch.stack([nothing, rows, nothing], -1)
    return replace(trace, received=whole, queries=queries, seen=queries[..., None] * (seen >= least)[:, None])


@contextmanager
def _one_core() -> Iterator[None]:
    """Let torch use a single thread while a table is made, and as many as before when it is done.

    The chunks are small. On two idle cores a second thread gains little; on busy ones the threads wait for each other
    at every operation, and the same tables took 18 times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


on_one_core = _one_core()  # a decorator


def default_rule(trace: TraceColumns) -> Rule:
    """The paper's epsilon = 3: column sums, or multiples of the uniform share where a step has one row (causal) or block."""
    one_block = trace.seen is not None and bool((trace.queries.sum(-1) < trace.alive().sum(-1)).any())
    return Threshold(3.0, unit="uniform" if trace.causal or one_block else "sum")


def visible_columns(trace: TraceColumns, group: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """For the rules: queries [step], keys that exist [step, key], and how many queries might look at each [step, key].

    Rules are faster where they are told (by None) that every key exists and every query sees it.
    """
    if trace.seen is None:
        return trace.query_count(group), None, None
    return trace.query_count(group), trace.alive(), trace.seen_by(group)


def columns_by_layer(trace: TraceColumns, groups: Sequence[str]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Column sums `[step, layer, head, key]` fp32 of the groups asked for, a few layers at a time."""
    if trace.steps == 0 or trace.positions == 0:
        raise TraceError(
            f"A trace with at least one step was expected, this one has {trace.steps} steps over {trace.positions} "
            "positions: generate at least one token."
        )
    step = max(1, CHUNK // max(1, trace.steps * trace.heads_count * trace.positions))
    for start in range(0, trace.layers, step):
        layers = slice(start, min(start + step, trace.layers))
        columns = [trace.sums(group, layers) for group in groups]
        for group, values in zip(groups, columns, strict=True):
            # The sum is NaN or infinite if one value is, and needs no copy of the scores.
            if not bool(torch.isfinite(values.sum())):
                raise TraceError(
                    f"Received attention must be finite, but layer {start} or one just above has NaN or infinite scores "
                    f"(group {group}): record the trace again in fp32."
                )
        yield layers, columns


def marks_by_layer(
    trace: TraceColumns, rule: Rule, *others: str
) -> Iterator[tuple[slice, Tensor, Tensor, list[Tensor]]]:
    """Layers, scores in the rule's unit and sinks, and column sums of its group and others, `[step, layer, head, key]` each."""
    queries, alive, seen = visible_columns(trace, rule.group)
    for layers, sums in columns_by_layer(trace, [rule.group, *others]):
        scores = rule.scores(sums[0], queries, alive, seen)
        yield layers, scores, rule.marks(sums[0], queries, alive, seen), sums
