"""Do masked and committed queries prefer different keys? In LLaDA's deepest layers they do."""

import torch
from torch import Tensor

from sinkscope.sinks.dynamics import main_key, mean_where
from sinkscope.sinks.rules import Rule


def split(
    rule: Rule, received: tuple[Tensor, Tensor], queries: tuple[Tensor, Tensor], least: int = 4
) -> tuple[Tensor, Tensor]:
    """Share of the comparable steps in which two kinds of query have different largest sinks, and how many compare.

    received: column sums `[step, layer, head, key]` of the two kinds; queries: `[step]` of each. A step compares if
    both kinds have at least `least` queries and a sink. Each kind is scaled up to a whole map first ("as if all queries
    were of this kind"): a sum over eight queries never passes a threshold that is meant for a sum over a hundred.
    Both results are `[layer, head]`.
    """
    steps = ((queries[0] >= least) & (queries[1] >= least)).nonzero().squeeze(-1)
    keys = received[0].shape[-1]  # only bidirectional maps have masked queries, and there every key exists
    found = []
    for columns, count in zip(received, queries, strict=True):
        whole = columns[steps] * (keys / count[steps])[:, None, None, None]
        found.append(main_key(rule.scores(whole, keys), rule.marks(whole, keys)))
    (one, _, one_there), (other, _, other_there) = found
    both = torch.logical_and(one_there, other_there)
    return mean_where((one != other).float(), both), both.sum(0)
