"""What the findings need of a trace: columns of attention a group and a few layers at a time, and which keys exist."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.sinks.rules import Rule, Threshold

# The group axis of `Trace.received`, in this order.
QUERY_KINDS = ("masked", "committed", "prompt")
# Values of one group worked on at once: 2 MB in fp32, which a core's cache holds; larger chunks are slower.
CHUNK = 1 << 19


class TraceLike(Protocol):
    """The part of a Trace that is read here."""

    @property
    def received(self) -> Tensor | None: ...  # [step, layer, head, group, key] column sums, or None in summary form
    @property
    def queries(self) -> Tensor: ...  # [step, group]
    @property
    def canvas(self) -> Tensor: ...  # [step + 1, position]
    @property
    def committed_at(self) -> Tensor: ...  # [position], −1 for the prompt
    @property
    def blocks(self) -> Tensor: ...  # [step, 2] start and stop of the active block
    @property
    def vocabulary(self) -> dict[int, tuple[str, str]]: ...
    @property
    def value_norms(self) -> Tensor | None: ...  # [step, layer, kv head, key]
    @property
    def prompt_length(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def settings(self) -> Any: ...  # a Decode
    @property
    def causal(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads_count(self) -> int: ...
    @property
    def positions(self) -> int: ...
    def scores(self, group: str = "all", unit: str = "sum") -> Tensor: ...  # [step, layer, head, key]
    def select(self, steps: slice | None = None, layers: slice | None = None) -> "TraceLike": ...


class CumulativeColumns:
    """An autoregressive trace seen as a whole map grows: at each step the columns of all rows so far.

    One step of an ARM is one row, one step of a diffusion model is a whole map. Rows alone would call any key that one row
    looks at a flash. Early keys are seen by more rows, so each column is the mean over the rows that see its key. Keys that
    fewer than `least` rows have seen are not judged yet.
    """

    def __init__(self, trace: TraceLike, least: int = 4) -> None:
        seen = seen_by(trace, "all")
        if seen is None:
            raise TraceError(
                "Columns so far are of an autoregressive trace; a diffusion model has a whole map per step."
            )
        rows, scores = query_count(trace, "all"), trace.scores("all", "sum")  # [step], [step, layer, head, key]
        if not trace.settings.recompute:  # else a step has all rows so far, not one
            rows, seen, scores = rows.cumsum(0), seen.cumsum(0), scores.cumsum(0)
        mean = scores / seen.clamp(min=1)[:, None, None]
        whole = torch.zeros(*mean.shape[:3], len(QUERY_KINDS), mean.shape[3])
        whole[..., 1, :] = mean * rows[:, None, None, None]
        self.trace = trace
        self.judged = seen >= least  # [step, key]
        self.received: Tensor | None = whole
        self.queries = torch.stack([torch.zeros_like(rows), rows, torch.zeros_like(rows)], -1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trace, name)


P = ParamSpec("P")
T = TypeVar("T")


def on_one_core(function: Callable[P, T]) -> Callable[P, T]:
    """Let torch use a single thread while a table is made, and as many as before when it is done.

    The chunks are small. On two idle cores a second thread gains little; on busy ones the threads wait for each other
    at every operation, and the same tables took 18 times as long.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return run


def default_rule(trace: TraceLike) -> Rule:
    """The paper's epsilon = 3: column sums, or multiples of the uniform share where a step has one row (causal) or block."""
    one_block = trace.settings.block_causal and trace.settings.cache == "exact"
    return Threshold(3.0, unit="uniform" if trace.causal or one_block else "sum")


def alive_keys(trace: TraceLike) -> Tensor:
    """Which keys exist at each step, `[step, key]` bool: all of them, or a growing prefix if the model is causal.

    There, a token becomes a key at the step after its commit. Commits tell it also in a trace cut to some of its steps.
    """
    if isinstance(trace, CumulativeColumns):
        return trace.judged
    if trace.settings.block_causal:  # block by block: what lies right of the active block is not there yet
        return torch.arange(trace.positions) < trace.blocks[:, 1:]
    if not trace.causal:
        return torch.ones(trace.steps, trace.positions, dtype=torch.bool)
    return trace.committed_at < torch.arange(trace.steps)[:, None]


def missing_keys(trace: TraceLike) -> Tensor | None:
    """`alive_keys` for the rules, which are faster when told (by None) that every key exists."""
    return alive_keys(trace) if trace.causal or trace.settings.block_causal else None


def query_count(trace: TraceLike, group: str) -> Tensor:
    """How many queries of a group each step had, `[step]`."""
    if group == "all":
        return trace.queries.sum(-1)
    return trace.queries[:, QUERY_KINDS.index(group)]


def seen_by(trace: TraceLike, group: str) -> Tensor | None:
    """How many queries of a group may look at each key, `[step, key]`; None where all of them may.

    The prompt of an autoregressive trace has rows that see less than others: key k is seen by the rows from k on. Under
    block-causal attention without a cache it is seen by the rows from its block's start on.
    """
    if isinstance(trace, CumulativeColumns) or not (trace.causal or trace.settings.block_causal):
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


def _seen_in_blocks(trace: TraceLike, group: str) -> Tensor:
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


def columns_by_layer(trace: TraceLike, groups: Sequence[str]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Column sums `[step, layer, head, key]` fp32 of the groups asked for, a few layers at a time."""
    if trace.steps == 0 or trace.positions == 0:
        raise TraceError(
            f"A trace with at least one step was expected, this one has {trace.steps} steps over {trace.positions} "
            "positions: generate at least one token."
        )
    step = max(1, CHUNK // max(1, trace.steps * trace.heads_count * trace.positions))
    for start in range(0, trace.layers, step):
        layers = slice(start, min(start + step, trace.layers))
        if trace.received is not None:
            kinds = trace.received[:, layers].unbind(3)  # [step, layer, head, key] each
            # Added one by one: twice as fast as `.float().sum(axis)`.
            columns = [
                kinds[0].float() + kinds[1] + kinds[2] if g == "all" else kinds[QUERY_KINDS.index(g)].float()
                for g in groups
            ]
        else:  # summary form: written out for these layers only
            part = trace.select(layers=layers)
            columns = [part.scores(group, "sum") for group in groups]
        for group, values in zip(groups, columns, strict=True):
            # The sum is NaN or infinite if one value is, and needs no copy of the scores.
            if not bool(torch.isfinite(values.sum())):
                raise TraceError(
                    f"Received attention must be finite, but layer {start} or one just above has NaN or infinite scores "
                    f"(group {group}): record the trace again in fp32."
                )
        yield layers, columns


def marks_by_layer(trace: TraceLike, rule: Rule, *others: str) -> Iterator[tuple[slice, Tensor, Tensor, list[Tensor]]]:
    """Layers, scores in the rule's unit and sinks, and column sums of its group and others, `[step, layer, head, key]` each."""
    queries, alive, seen = query_count(trace, rule.group), missing_keys(trace), seen_by(trace, rule.group)
    for layers, sums in columns_by_layer(trace, [rule.group, *others]):
        scores = rule.scores(sums[0], queries, alive, seen)
        yield layers, scores, rule.marks(sums[0], queries, alive, seen), sums
