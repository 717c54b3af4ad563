"""Do masked and committed queries prefer different keys? In LLaDA's deepest layers they do."""

import torch
from torch import Tensor

from sinkscope.sinks.dynamics import main_key, mean_where
from sinkscope.sinks.rules import Rule


def split(
    rule: Rule,
    received: tuple[Tensor, Tensor],
    queries: tuple[Tensor, Tensor],
    least: int = 4,
    support: float = 2.0,
) -> tuple[Tensor, Tensor]:
    """Share of the steps in which two kinds of query have sinks of their own, and how many steps could show it.

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
