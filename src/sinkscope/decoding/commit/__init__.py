"""Commit rules: which candidates become tokens at a step; every file here is imported automatically."""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.decoding.commit.rule import RULES, CommitRule, register, rule_named, rules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

__all__ = ["RULES", "CommitRule", "register", "rule_named", "rules"]
