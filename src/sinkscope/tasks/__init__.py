"""Problems with checkable answers: ten built-in tasks with an endless, seeded supply of problems, and benchmarks.

Problems are split into train, validation and test by their content. `sinkscope.extend.register_task` adds a task. GSM8K
and HumanEval are asked through lm-evaluation-harness, by the evaluation protocol of each checkpoint.
"""

from sinkscope.tasks import arithmetic, lookup, programs, reasoning
from sinkscope.tasks.problem import SPLITS, TASKS, Problem, Task, problems, register, split_of

OWN = (arithmetic, programs, reasoning, lookup)  # each registers what it holds

# The suite that all four tiny models learn; needle and errands are for the one with a long context, repeat is what the
# planted models do.
KINDS = ("arithmetic", "programs", "logic", "planning", "composition", "recall")

__all__ = ["KINDS", "SPLITS", "TASKS", "Problem", "Task", "problems", "register", "split_of"]
