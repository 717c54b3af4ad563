"""Problems with checkable answers: a seeded, endless supply of six kinds, split by content."""

from sinkscope.tasks.problem import Problem, Task, register, registered
from sinkscope.tasks.suite import KINDS
from sinkscope.tasks.supply import SPLITS, problems, split_of

__all__ = ["KINDS", "SPLITS", "Problem", "Task", "problems", "register", "registered", "split_of"]
