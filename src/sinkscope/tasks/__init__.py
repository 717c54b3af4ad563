"""Problems with checkable answers: a seeded, endless supply of six kinds and more, split by content.

A kind is a file here that ends in `register(Task(…))`; it is imported automatically.
"""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.tasks.problem import SPLITS, Problem, Task, problems, register, registered, split_of

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

# The suite that all four tiny models learn; needle and errands are for the one with a long context, repeat is what the
# planted models do.
KINDS = ("arithmetic", "programs", "logic", "planning", "composition", "recall")

__all__ = ["KINDS", "SPLITS", "Problem", "Task", "problems", "register", "registered", "split_of"]
