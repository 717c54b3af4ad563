"""Problems with checkable answers: a seeded, endless supply of ten kinds, split by content; and benchmarks.

A kind of ours is a file that ends in `register(Task(…))`, and is named in the list here. GSM8K and HumanEval are in
`benchmarks.py`, how each checkpoint is asked them in `protocol.py`.
"""

from sinkscope.tasks import arithmetic, lookup, programs, reasoning
from sinkscope.tasks.problem import SPLITS, TASKS, Problem, Task, problems, register, split_of

OWN = (arithmetic, programs, reasoning, lookup)  # each registers what it holds

# The suite that all four tiny models learn; needle and errands are for the one with a long context, repeat is what the
# planted models do.
KINDS = ("arithmetic", "programs", "logic", "planning", "composition", "recall")

__all__ = ["KINDS", "SPLITS", "TASKS", "Problem", "Task", "problems", "register", "split_of"]
