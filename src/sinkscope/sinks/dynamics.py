"""How sinks behave from step to step: lives, turnover, paths, drift, centroids. Tensors in, tensors out.

`marks [step, layer, head, key]` says which keys are sinks; `main [step, layer, head]` is the largest sink's key and
`present [step, layer, head]` says whether there is a sink at all. Results are `[layer, head]`; NaN means that there is
nothing to measure (no sink, no second step), never zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class Lives:
    """Each unbroken run of steps in which a key is a sink of a head; five vectors of equal length."""

    layer: Tensor
    head: Tensor
    key: Tensor
    first: Tensor  # first step of the run
    last: Tensor  # last step of the run

    @property
    def length(self) -> Tensor:
        """Lifetime in steps; a run that the generation's start or end cuts counts with the steps that it had."""
        return self.last - self.first + 1


def lives(marks: Tensor) -> Lives:
    """All lives, ordered by layer, head, key and step."""
    runs = marks.permute(1, 2, 3, 0).contiguous()  # [layer, head, key, step]
    edge = torch.zeros_like(runs[..., :1])
    starts = runs & ~torch.cat([edge, runs[..., :-1]], -1)
    ends = runs & ~torch.cat([runs[..., 1:], edge], -1)
    # Starts and ends alternate along a row, so the n-th start belongs to the n-th end.
    layer, head, key, first = starts.nonzero().unbind(-1)
    return Lives(layer, head, key, first, ends.nonzero()[:, 3])


def turnover(marks: Tensor) -> tuple[Tensor, Tensor]:
    """Births and deaths: keys that become sinks after the first step, and that stop being sinks before the last."""
    before, after = marks[:-1], marks[1:]
    return (after & ~before).sum((0, 3)), (before & ~after).sum((0, 3))


def jaccard(marks: Tensor) -> Tensor:
    """Step-to-step overlap of the set of sinks, averaged over the pairs of steps in which there is a sink."""
    before, after = marks[:-1], marks[1:]
    both = (before & after).sum(-1).float()
    either = (before | after).sum(-1).float()
    return mean_where(both / either.clamp(min=1), either > 0)


def one_step(marks: Tensor, main: Tensor, present: Tensor) -> Tensor:
    """Share of the steps with a sink whose largest sink lives for that one step only; 0 if there is but one step."""
    if marks.shape[0] == 1:
        return torch.where(present.any(0), 0.0, torch.nan)
    at = main[None, ..., None]  # the same key at the step before, at the step, and at the step after
    edge = torch.zeros_like(marks[:1])
    around = torch.stack([torch.cat([edge, marks[:-1]]), torch.cat([marks[1:], edge])])
    neighbours = around.gather(-1, at.expand(2, *main.shape, 1)).squeeze(-1).any(0)
    return mean_where((~neighbours).float(), present)


@dataclass(frozen=True)
class Walk:
    """Where the largest sink goes, `[layer, head]` each."""

    displacement: Tensor  # mean |change of position| between neighbouring steps, in positions per step
    drift: Tensor  # slope of the position over the steps, in positions per step; > 0 is to the right
    trend: Tensor  # correlation of position and step, −1 … 1; NaN if the sink never moves
    moves: Tensor  # how often the position changed between neighbouring steps


def walk(main: Tensor, present: Tensor) -> Walk:
    """Displacement, signed drift and trend of the largest sink, over the steps that have a sink."""
    jump = (main[1:] - main[:-1]).float()
    linked = present[1:] & present[:-1]
    position = main.double()
    step = torch.arange(len(main), dtype=torch.float64)[:, None, None].expand_as(position)
    step_off = (step - mean_where(step, present)).masked_fill(~present, 0)
    place_off = (position - mean_where(position, present)).masked_fill(~present, 0)
    product = (step_off * place_off).sum(0)
    step_square, place_square = step_off.square().sum(0), place_off.square().sum(0)
    return Walk(
        displacement=mean_where(jump.abs(), linked),
        drift=(product / step_square).float(),
        trend=(product / (step_square * place_square).sqrt()).clamp(-1, 1).float(),
        moves=((jump != 0) & linked).sum(0),
    )


@dataclass(frozen=True)
class Stay:
    """Where the largest sink stands, `[layer, head]` each."""

    home: Tensor  # the key that is the largest sink most often
    home_share: Tensor  # share of *all* steps in which it is a sink
    main_keys: Tensor  # how many different keys were the largest sink
    standing: Tensor  # the largest share of all steps in which one key, home or not, is a sink


def stay(marks: Tensor, main: Tensor, present: Tensor) -> Stay:
    """The home of the largest sink, and whether it has others."""
    counts = _counts(main, present, marks.shape[-1])
    home = torch.from_numpy(counts.numpy().argmax(-1))
    held = marks.float().mean(0)  # [layer, head, key]
    share = held.gather(-1, home[..., None]).squeeze(-1)
    return Stay(home, share, (counts > 0).sum(-1), held.amax(-1))


def _counts(main: Tensor, where: Tensor, keys: int) -> Tensor:
    """How often each key is the largest sink, `[layer, head, key]`."""
    counts = torch.zeros(*main.shape[1:], keys, dtype=torch.int32)
    return counts.scatter_add_(-1, main.permute(1, 2, 0), where.permute(1, 2, 0).to(torch.int32))


def homes(main: Tensor, present: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """The key that is the largest sink most often in the first and in the second half of the steps that have a sink."""
    rank, total = present.cumsum(0), present.sum(0)
    found = []
    for half in (present & (2 * rank <= total), present & (2 * rank > total)):
        key = torch.from_numpy(_counts(main, half, keys).numpy().argmax(-1))
        found.append(torch.where(half.any(0), key.float(), torch.nan))
    return found[0], found[1]


def distance(main: Tensor, present: Tensor, landmark: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance of the largest sink to a landmark `[step]` and its standard deviation; negative is left of it."""
    counts = present & ~landmark.isnan()[:, None, None]
    off = main - landmark.nan_to_num()[:, None, None]
    return spread_where(off, counts)


def block_distance(main: Tensor, present: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance of the largest sink to the active block `[step, 2]`, 0 inside it, and its standard deviation."""
    start, stop = blocks[:, 0, None, None], blocks[:, 1, None, None]
    off = (main - start).clamp(max=0) + (main - stop + 1).clamp(min=0)
    return spread_where(off.float(), present & (stop > start))


def centroids(scores: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
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
    return mean_where(around, there), spread_where(centre, there)[1].square()


def mean_where(values: Tensor, where: Tensor) -> Tensor:
    """Mean over steps of the values that count; NaN where none does."""
    return values.masked_fill(~where, 0).sum(0) / where.sum(0)


def spread_where(values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (population) standard deviation over the steps that count."""
    mean = mean_where(values, where)
    return mean, mean_where((values - mean).square(), where).sqrt()


def rightmost_mask(canvas: Tensor, mask_id: int | None) -> Tensor:
    """Position of the last masked token before each forward, `[step]`; NaN where nothing is masked."""
    return _extreme_mask(canvas, mask_id, last=True)


def frontier(canvas: Tensor, mask_id: int | None) -> Tensor:
    """Where the unbroken run of known tokens ends: the position of the first masked token before each forward."""
    return _extreme_mask(canvas, mask_id, last=False)


def _extreme_mask(canvas: Tensor, mask_id: int | None, last: bool) -> Tensor:
    masked = canvas[:-1] == (-1 if mask_id is None else mask_id)
    place = torch.arange(canvas.shape[-1], dtype=torch.float32)
    best = torch.where(masked, place, -torch.inf).amax(-1) if last else torch.where(masked, place, torch.inf).amin(-1)
    return best.masked_fill(best.isinf(), torch.nan)
