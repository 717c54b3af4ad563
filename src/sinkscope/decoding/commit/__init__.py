"""Commit rules: which candidates become tokens at a step; every file here is imported automatically."""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.decoding.commit.rule import COMMIT_RULES, CommitRule, register

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

__all__ = ["COMMIT_RULES", "CommitRule", "register"]
