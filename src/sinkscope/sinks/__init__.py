"""What counts as a sink, on any columns of attention: rules, and kinds of token."""

from sinkscope.sinks.kinds import describe
from sinkscope.sinks.rules import RULES, Columns, HeadShare, Rule, Threshold, ZScore, register, rule_from_dict

__all__ = ["RULES", "Columns", "HeadShare", "Rule", "Threshold", "ZScore", "describe", "register", "rule_from_dict"]
