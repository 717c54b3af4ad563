"""How the sinks of each head behave from step to step, how much they draw, what they carry, and who agrees on them.

`marks [step, layer, head, key]` says which keys are sinks; `main [step, layer, head]` is the largest sink's key and
`present [step, layer, head]` says whether there is a sink at all. `there [step, 1, 1]`: the steps that count. Results are
`[layer, head]`, by the names that they have in the table of heads; NaN means that there is nothing to measure (no sink, no
second step), never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.sinks.rules import Rule

if TYPE_CHECKING:
    from sinkscope.tracing.trace import Trace

Measures = dict[str, Tensor]  # name → [layer, head]


def main_key(scores: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest sink of each step: its key, its score, and whether it is a sink; each `[step, layer, head]`.

    Where there is no sink it is the largest key of all. Of equals the leftmost counts.
    """
    # numpy promises the first of equals, torch does not; and it is several times faster at both here.
    present = torch.from_numpy(marks.numpy().any(-1))
    key = torch.from_numpy(scores.numpy().argmax(-1))
    if not torch.equal(marks.gather(-1, key[..., None]).squeeze(-1), present):
        # A rule from outside need not mark the largest score: sinks come before all others.
        ranked = scores.masked_fill(~marks & present[..., None], -torch.inf)
        key = torch.from_numpy(ranked.numpy().argmax(-1))
    return key, scores.gather(-1, key[..., None]).squeeze(-1), present


def lifetimes(marks: Tensor) -> Measures:
    """Births after the first step, deaths before the last; number, mean and longest of the lives, and how many are flashes.

    A life is an unbroken run of steps in which a key is a sink; one that the generation's start or end cuts counts with the
    steps that it had.
    """
    before, after = marks[:-1], marks[1:]
    _, layers, heads, _ = marks.shape
    runs = marks.permute(1, 2, 3, 0).contiguous()  # [layer, head, key, step]
    edge = torch.zeros_like(runs[..., :1])
    # Starts and ends alternate along a row, so the n-th start belongs to the n-th end.
    starts = (runs & ~torch.cat([edge, runs[..., :-1]], -1)).nonzero()
    ends = (runs & ~torch.cat([runs[..., 1:], edge], -1)).nonzero()
    place, length = starts[:, 0] * heads + starts[:, 1], ends[:, 3] - starts[:, 3] + 1
    count = torch.bincount(place, minlength=layers * heads)
    total = torch.bincount(place, length.double(), minlength=layers * heads)
    flashes = torch.bincount(place[length == 1], minlength=layers * heads)
    longest = torch.zeros(layers * heads, dtype=length.dtype).scatter_reduce_(0, place, length, "amax")
    shape = (layers, heads)
    return {
        "births": (after & ~before).sum((0, 3)),
        "deaths": (before & ~after).sum((0, 3)),
        "lives": count.reshape(shape),
        "lifetime": (total / count).float().reshape(shape),
        "longest": torch.where(count > 0, longest.float(), torch.nan).reshape(shape),
        "flashes": flashes.reshape(shape),
    }


def one_step(marks: Tensor, main: Tensor, present: Tensor) -> Tensor:
    """Share of the steps with a sink whose largest sink lives for that one step only; 0 if there is but one step."""
    if marks.shape[0] == 1:
        return torch.where(present.any(0), 0.0, torch.nan)
    at = main[None, ..., None]  # the same key at the step before, at the step, and at the step after
    edge = torch.zeros_like(marks[:1])
    around = torch.stack([torch.cat([edge, marks[:-1]]), torch.cat([marks[1:], edge])])
    neighbours = around.gather(-1, at.expand(2, *main.shape, 1)).squeeze(-1).any(0)
    return mean_where((~neighbours).float(), present)


def jaccard(marks: Tensor) -> Tensor:
    """Step-to-step overlap of the set of sinks, averaged over the pairs of steps in which there is a sink."""
    before, after = marks[:-1], marks[1:]
    both = (before & after).sum(-1).float()
    either = (before | after).sum(-1).float()
    return mean_where(both / either.clamp(min=1), either > 0)


def walk(main: Tensor, present: Tensor) -> Measures:
    """Where the largest sink goes, over the steps that have a sink: positions per step, drift > 0 to the right.

    trend is the correlation of position and step, −1 … 1; NaN if the sink never moves.
    """
    jump = (main[1:] - main[:-1]).float()
    linked = present[1:] & present[:-1]
    position = main.double()
    step = torch.arange(len(main), dtype=torch.float64)[:, None, None].expand_as(position)
    step_off = (step - mean_where(step, present)).masked_fill(~present, 0)
    place_off = (position - mean_where(position, present)).masked_fill(~present, 0)
    product = (step_off * place_off).sum(0)
    step_square, place_square = step_off.square().sum(0), place_off.square().sum(0)
    return {
        "displacement": mean_where(jump.abs(), linked),
        "moves": ((jump != 0) & linked).sum(0),
        "drift": (product / step_square).float(),
        "trend": (product / (step_square * place_square).sqrt()).clamp(-1, 1).float(),
    }


def stay(marks: Tensor, main: Tensor, present: Tensor) -> Measures:
    """Where the largest sink stands: its home is the key that is it most often, home_share in which share of *all* steps.

    home_early, home_late: the home in the first and the second half of the steps that have a sink. main_keys: how many
    different keys were the largest sink. standing: the largest share of all steps in which one key, home or not, is a sink.
    """
    keys, held = marks.shape[-1], marks.float().mean(0)  # [layer, head, key]
    counts = _counts(main, present, keys)
    home = torch.from_numpy(counts.numpy().argmax(-1))
    rank, total = present.cumsum(0), present.sum(0)
    early, late = (
        torch.where(half.any(0), torch.from_numpy(_counts(main, half, keys).numpy().argmax(-1)).float(), torch.nan)
        for half in (present & (2 * rank <= total), present & (2 * rank > total))
    )
    return {
        "home": torch.where(present.any(0), home.float(), torch.nan),
        "home_share": held.gather(-1, home[..., None]).squeeze(-1),
        "home_early": early,
        "home_late": late,
        "main_keys": (counts > 0).sum(-1),
        "standing": held.amax(-1),
    }


def _counts(main: Tensor, where: Tensor, keys: int) -> Tensor:
    """How often each key is the largest sink, `[layer, head, key]`."""
    counts = torch.zeros(*main.shape[1:], keys, dtype=torch.int32)
    return counts.scatter_add_(-1, main.permute(1, 2, 0), where.permute(1, 2, 0).to(torch.int32))


def centroids(scores: Tensor, marks: Tensor) -> Measures:
    """Spatial and temporal variance of the sinks, in positions².

    Spatial: how far the sinks of one step lie from their common centre, averaged over steps. Temporal: how far that
    centre wanders over the steps. Sinks weigh in with their scores.
    """
    weight = scores.masked_fill(~marks, 0)
    total = weight.sum(-1)
    place = torch.arange(scores.shape[-1], dtype=torch.float32)
    centre = (weight @ place) / total
    # Around the centre rather than E[x²] − E[x]², which loses all digits for a single far sink.
    around = (place - centre[..., None]).square_().mul_(weight).sum(-1) / total
    there = marks.any(-1)
    return {
        "spatial_variance": mean_where(around, there),
        "temporal_variance": spread_where(centre, there)[1].square(),
    }


def places(main: Tensor, present: Tensor, blocks: Tensor, front: Tensor, right: Tensor) -> Measures:
    """Signed distance of the largest sink to the active block (0 inside it), to the rightmost mask and to the frontier.

    Negative is left of it; each with its standard deviation. blocks: [step, 2]; front, right: [step], NaN where there is none.
    """
    start, stop = blocks[:, 0, None, None], blocks[:, 1, None, None]
    off = (main - start).clamp(max=0) + (main - stop + 1).clamp(min=0)
    found = {"to_block": spread_where(off.float(), present & (stop > start))}
    for name, landmark in (("to_rightmost_mask", right), ("to_frontier", front)):
        counts = present & ~landmark.isnan()[:, None, None]
        found[name] = spread_where(main - landmark.nan_to_num()[:, None, None], counts)
    means = {name: mean for name, (mean, _) in found.items()}
    return means | {f"{name}_deviation": deviation for name, (_, deviation) in found.items()}


def mask_ends(canvas: Tensor, mask_id: int | None) -> tuple[Tensor, Tensor]:
    """Position of the first and the last masked token before each forward, `[step]`; NaN where nothing is masked.

    The first is where the unbroken run of known tokens ends.
    """
    masked = canvas[:-1] == (-1 if mask_id is None else mask_id)
    place = torch.arange(canvas.shape[-1], dtype=torch.float32)
    first, last = torch.where(masked, place, torch.inf).amin(-1), torch.where(masked, place, -torch.inf).amax(-1)
    return first.masked_fill(first.isinf(), torch.nan), last.masked_fill(last.isinf(), torch.nan)


def strength(received: Tensor, marks: Tensor, score: Tensor, there: Tensor, alive: Tensor) -> Measures:
    """How many sinks; the largest key's score, mean and peak; the share of all attention that goes to sinks; its entropy.

    Entropy of received attention over the keys is in nats, and relative to the most possible (1 = even).
    score: [step, layer, head]; alive: [step, key].
    """
    peak = score.masked_fill(~there, -torch.inf).amax(0)
    total = received.sum(-1)
    entropy = torch.special.entr(received / total[..., None]).sum(-1)
    keys = alive.sum(-1).float()[:, None, None]
    return {
        "sinks": mean_where(marks.sum(-1).float(), there),
        "strength": mean_where(score, there),
        "strength_peak": peak.masked_fill(peak.isinf(), torch.nan),
        "absorption": mean_where(received.masked_fill(~marks, 0).sum(-1) / total, there),
        "entropy": mean_where(entropy, there),
        # With a single key there is nothing to be uneven about.
        "entropy_relative": mean_where(entropy / keys.log(), there & (keys > 1)),
    }


def value_ratio(norms: Tensor, marks: Tensor, alive: Tensor) -> Tensor:
    """Mean ‖v‖ of the sinks over mean ‖v‖ of the other keys, over the steps that have both; below 1 they are drains.

    norms: [step, layer, kv head, key]; query heads share kv heads in the order of grouped-query attention.
    """
    norms = norms.float().repeat_interleave(marks.shape[2] // norms.shape[2], dim=2)
    others = alive[:, None, None, :] & ~marks
    at_sinks = norms.masked_fill(~marks, 0).sum(-1) / marks.sum(-1)
    elsewhere = norms.masked_fill(~others, 0).sum(-1) / others.sum(-1)
    return mean_where(at_sinks / elsewhere, marks.any(-1) & others.any(-1))


def agreement(main: Tensor, present: Tensor, layer_main: Tensor) -> Tensor:
    """Share of the *other* layers whose most attended key is this head's largest sink, over the steps with a sink.

    main, present: [step, layer, head]; layer_main: [step, layer], the largest key of the layer's mean over heads.
    """
    layers = main.shape[1]
    same = main[..., None] == layer_main[:, None, None, :]  # [step, layer, head, other layer]
    others = ~torch.eye(layers, dtype=torch.bool)[:, None, :]
    return mean_where((same & others).sum(-1) / (layers - 1), present)  # of a single layer NaN


def split(
    rule: Rule, received: tuple[Tensor, Tensor], queries: tuple[Tensor, Tensor], least: int = 4, support: float = 2.0
) -> Measures:
    """Share of the steps in which two kinds of query have sinks of their own, and how many steps could show it.

    In LLaDA's deepest layers masked and committed queries prefer different keys.

    received: column sums `[step, layer, head, key]` of the two kinds; queries: `[step]` of each. A step can show it if
    both kinds have at least `least` queries. It does if each kind's largest sink is none for the other kind, and gets
    at least `support`, as much as two queries have to give. Among few queries one alone can make a key look like a sink.
    Each kind is scaled up to a whole map first ("as if all queries were of this kind"): a sum over eight queries never
    passes a threshold that is meant for a sum over a hundred.
    """
    steps = ((queries[0] >= least) & (queries[1] >= least)).nonzero().squeeze(-1)
    keys = received[0].shape[-1]  # only bidirectional maps have masked queries, and there every key exists
    columns = [part[steps] for part in received]
    whole = [part * (keys / count[steps])[:, None, None, None] for part, count in zip(columns, queries, strict=True)]
    marks = [rule.marks(part, keys) for part in whole]
    own = torch.ones(columns[0].shape[:-1], dtype=torch.bool)
    for this, other in ((0, 1), (1, 0)):
        key, _, present = main_key(rule.scores(whole[this], keys), marks[this])
        at = key[..., None]
        drawn, shared = columns[this].gather(-1, at).squeeze(-1), marks[other].gather(-1, at).squeeze(-1)
        own &= present & ~shared & (drawn >= support)
    share = mean_where(own.float(), torch.ones_like(own))
    return {"split_share": share, "split_steps": torch.full(share.shape, len(steps))}


def mean_where(values: Tensor, where: Tensor) -> Tensor:
    """Mean over steps of the values that count, all of a step or each by itself; NaN where none does."""
    return values.masked_fill(~where, 0).sum(0) / where.sum(0)


def spread_where(values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (population) standard deviation over the steps that count."""
    mean = mean_where(values, where)
    return mean, mean_where((values - mean).square(), where).sqrt()


# ---- in which order a generation was decoded, and where its main sink stood while commits went on ----


@dataclass(frozen=True)
class DecodingOrder:
    """Order of one generation; None where nothing can be said: no choice, or a sink or a frontier that never moves."""

    commits: int
    leftmost: float | None  # share of commits among the leftmost open positions: 1 is left to right
    ties: float | None  # share of the choices that were made between equal confidences
    sink_to_leftmost: float | None  # mean of main sink − leftmost open position, in positions
    sink_to_rightmost: float | None  # … − rightmost open position
    follows_leftmost: float | None  # correlation over steps of the main sink's position and the leftmost open one
    follows_rightmost: float | None


def decoding_order(trace: Trace) -> DecodingOrder:
    """Ties, autoregressiveness and the main sink's distance from the frontier of commits.

    The main sink is the key that received most in a step, over all layers and heads of the trace
    (`trace.select(layers=…)` for some). Confidences are compared as the trace keeps them, in float32.
    """
    steps, width = trace.steps, trace.positions
    columns = torch.arange(width)
    committed = trace.committed_at.long()[None] == torch.arange(steps)[:, None]  # bool [step, position]
    still_open = trace.committed_at.long()[None] >= torch.arange(steps)[:, None]
    in_block = (columns >= trace.blocks[:, :1].long()) & (columns < trace.blocks[:, 1:].long())
    choices = still_open & in_block | committed
    left, tied = 0, []
    for now, options, sure in zip(committed, choices, trace.confidence, strict=True):
        picked = now.nonzero().squeeze(-1)
        first = options.nonzero().squeeze(-1)[: len(picked)]
        left += int(torch.isin(picked, first).sum())
        rest = sure[options & ~now]
        if len(picked) and len(rest):
            tied.append(bool(torch.isin(sure[picked], rest).any()))
    total = int(committed.sum())
    there = still_open.any(1)
    sink = trace.scores("all", "mean").mean((1, 2)).argmax(-1).double()[there]  # [step]
    leftmost = _first(still_open[there])
    rightmost = width - 1 - _first(still_open[there].flip(1))
    away = [float((sink - end).mean()) if len(sink) else None for end in (leftmost, rightmost)]
    return DecodingOrder(
        total,
        left / total if total else None,
        sum(tied) / len(tied) if tied else None,
        away[0],
        away[1],
        _correlation(sink, leftmost),
        _correlation(sink, rightmost),
    )


def _first(marks: Tensor) -> Tensor:
    """[step]: the first marked position."""
    return marks.to(torch.int8).argmax(1).double()


def _correlation(a: Tensor, b: Tensor) -> float | None:
    if len(a) < 3 or bool(a.std() == 0) or bool(b.std() == 0):
        return None
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
