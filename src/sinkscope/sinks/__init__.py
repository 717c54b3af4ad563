"""From received attention to findings: which keys are sinks, how they move, which tokens they are, what heads do."""

from sinkscope.sinks.columns import TraceColumns, default_rule
from sinkscope.sinks.heads import Classes, by_layer, head_dynamics, notable
from sinkscope.sinks.rules import RULES, Columns, HeadShare, Rule, Threshold, ZScore, register, rule_from_dict
from sinkscope.sinks.tables import find, histogram, sweep, token_shares
from sinkscope.sinks.tokens import describe

__all__ = [
    "RULES", "Classes", "Columns", "HeadShare", "Rule", "Threshold", "TraceColumns", "ZScore", "by_layer", "default_rule",
    "describe", "find", "head_dynamics", "histogram", "notable", "register", "rule_from_dict", "sweep", "token_shares",
]  # fmt: skip
