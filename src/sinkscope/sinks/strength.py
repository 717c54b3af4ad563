"""How much sinks draw, what they carry, and whether layers, or kinds of query, agree on them: tensors in, `[layer, head]` out."""

import torch
from torch import Tensor

from sinkscope.sinks.dynamics import main_key, mean_where
from sinkscope.sinks.rules import Rule


def strength(score: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Score of the largest key `[step, layer, head]`: its mean over the steps that count (`there [step]`), its peak."""
    counts = there[:, None, None].expand_as(score)
    peak = score.masked_fill(~counts, -torch.inf).amax(0)
    return mean_where(score, counts), peak.masked_fill(peak.isinf(), torch.nan)


def absorption(received: Tensor, marks: Tensor, there: Tensor) -> Tensor:
    """Share of all attention that goes to sinks, averaged over the steps that count."""
    share = received.masked_fill(~marks, 0).sum(-1) / received.sum(-1)
    return mean_where(share, there[:, None, None].expand_as(share))


def entropy(received: Tensor, alive: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of received attention over the keys, in nats and as a share of the most possible (1 = even).

    received: [step, layer, head, key]; alive: [step, key]; averaged over the steps that count.
    """
    values = torch.special.entr(received / received.sum(-1, keepdim=True)).sum(-1)
    keys = alive.sum(-1).float()[:, None, None]
    counts = there[:, None, None].expand_as(values)
    # With a single key there is nothing to be uneven about.
    return mean_where(values, counts), mean_where(values / keys.log(), counts & (keys > 1))


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
    if layers == 1:
        return torch.full(main.shape[1:], torch.nan)
    same = main[..., None] == layer_main[:, None, None, :]  # [step, layer, head, other layer]
    others = ~torch.eye(layers, dtype=torch.bool)[:, None, :]
    return mean_where((same & others).sum(-1) / (layers - 1), present)


def split(
    rule: Rule, received: tuple[Tensor, Tensor], queries: tuple[Tensor, Tensor], least: int = 4, support: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Share of the steps in which two kinds of query have sinks of their own, and how many steps could show it.

    In LLaDA's deepest layers masked and committed queries prefer different keys.

    received: column sums `[step, layer, head, key]` of the two kinds; queries: `[step]` of each. A step can show it if
    both kinds have at least `least` queries. It does if each kind's largest sink is none for the other kind, and gets
    at least `support`, as much as two queries have to give: among few queries one alone can make a key look like a sink.
    Each kind is scaled up to a whole map first ("as if all queries were of this kind"): a sum over eight queries never
    passes a threshold that is meant for a sum over a hundred. Both results are `[layer, head]`.
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
    return share, torch.full(share.shape, len(steps))
