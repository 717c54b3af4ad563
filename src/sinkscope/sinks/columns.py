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
    value_norms: Annotated[Tensor | None, "step layer kv_head key"] = None  # on request
    prompt_length: int
    settings: Any  # a Decode
    vocabulary: dict[int, tuple[str, str]]  # id → text shown, kind
    mask_id: int | None
    causal: bool
    judged: Tensor | None = None  # bool [step, key]: see `cumulative_columns`

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
        return sums / query_count(self, group).clamp(min=1)[:, None, None, None] * (100 if unit == "percent" else 1)

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
        alive = alive_keys(self)  # [step, key]
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
    seen = seen_by(trace, "all")
    if seen is None:
        raise TraceError("Columns so far are of an autoregressive trace; a diffusion model has a whole map per step.")
    rows, scores = query_count(trace, "all"), trace.sums("all")  # [step], [step, layer, head, key]
    if not trace.settings.recompute:  # else a step has all rows so far, not one
        rows, seen, scores = rows.cumsum(0), seen.cumsum(0), scores.cumsum(0)
    whole = torch.zeros(*scores.shape[:3], len(QUERY_KINDS), scores.shape[3])
    whole[..., 1, :] = scores / seen.clamp(min=1)[:, None, None] * rows[:, None, None, None]
    queries = torch.stack([torch.zeros_like(rows), rows, torch.zeros_like(rows)], -1)
    return replace(trace, received=whole, queries=queries, judged=seen >= least)


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
    one_block = trace.settings.block_causal and trace.settings.cache == "exact"
    return Threshold(3.0, unit="uniform" if trace.causal or one_block else "sum")


def alive_keys(trace: TraceColumns) -> Tensor:
    """Which keys exist at each step, `[step, key]` bool: all of them, or a growing prefix if the model is causal.

    There, a token becomes a key at the step after its commit. Commits tell it also in a trace cut to some of its steps.
    """
    if trace.judged is not None:
        return trace.judged
    if trace.settings.block_causal:  # block by block: what lies right of the active block is not there yet
        return torch.arange(trace.positions) < trace.blocks[:, 1:]
    if not trace.causal:
        return torch.ones(trace.steps, trace.positions, dtype=torch.bool)
    return trace.committed_at < torch.arange(trace.steps)[:, None]


def missing_keys(trace: TraceColumns) -> Tensor | None:
    """`alive_keys` for the rules, which are faster when told (by None) that every key exists."""
    return alive_keys(trace) if trace.causal or trace.settings.block_causal else None


def query_count(trace: TraceColumns, group: str) -> Tensor:
    """How many queries of a group each step had, `[step]`."""
    if group == "all":
        return trace.queries.sum(-1)
    return trace.queries[:, QUERY_KINDS.index(group)]


def seen_by(trace: TraceColumns, group: str) -> Tensor | None:
    """How many queries of a group may look at each key, `[step, key]`; None where all of them may.

    The prompt of an autoregressive trace has rows that see less than others: key k is seen by the rows from k on. Under
    block-causal attention without a cache it is seen by the rows from its block's start on.
    """
    if trace.judged is not None or not (trace.causal or trace.settings.block_causal):
        return None
    if trace.settings.block_causal:
        return _seen_in_blocks(trace, group)
    rest = trace.prompt_length - torch.arange(trace.positions)  # rows of the prompt from the key's own on
    by_prompt = torch.minimum(query_count(trace, "prompt")[:, None], rest.clamp(min=0))
    if group == "prompt":
        return by_prompt
    later = query_count(trace, "committed" if group == "all" else group)[:, None] * alive_keys(trace)
    if trace.settings.recompute:  # the rows of the answer so far, of which key k is seen by those from its own on
        later = (later - (torch.arange(trace.positions) - trace.prompt_length).clamp(min=0)).clamp(min=0)
    return by_prompt + later if group == "all" else later


def _seen_in_blocks(trace: TraceColumns, group: str) -> Tensor:
    alive = alive_keys(trace)
    if trace.settings.cache == "exact":  # queries are the active block
        return query_count(trace, group)[:, None] * alive
    columns = torch.arange(trace.positions)
    masked: Tensor = trace.canvas[:-1].eq(-1 if trace.mask_id is None else trace.mask_id)
    given = columns < trace.prompt_length
    kinds = {"masked": masked, "prompt": given & ~masked, "committed": ~given & ~masked, "all": torch.ones_like(masked)}
    queries = (kinds[group] & alive).long()
    later = queries.flip(1).cumsum(1).flip(1)  # [step, key]: queries from this column on
    if trace.settings.family == "wedlm":  # known tokens are read first, then masks, causally in that order
        by_known, by_masks = ((queries * part).flip(1).cumsum(1).flip(1) for part in (~masked, masked))
        reads_all = (queries * masked).sum(1, keepdim=True)
        return torch.where(masked, by_masks, by_known + reads_all) * alive
    if trace.settings.family == "nemotron":  # the text is causal, the block at work sees all that is there
        begins = torch.where(columns < trace.blocks[:, :1], columns, trace.blocks[:, :1].long())
        return later.gather(1, begins) * alive
    size, phase = trace.settings.block, int(trace.blocks[0, 0]) % trace.settings.block
    starts = ((columns - phase).div(size, rounding_mode="floor") * size + phase).clamp(min=0)
    return later[:, starts] * alive


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
    queries, alive, seen = query_count(trace, rule.group), missing_keys(trace), seen_by(trace, rule.group)
    for layers, sums in columns_by_layer(trace, [rule.group, *others]):
        scores = rule.scores(sums[0], queries, alive, seen)
        yield layers, scores, rule.marks(sums[0], queries, alive, seen), sums
