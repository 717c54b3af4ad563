"""The kinds that come with the package: a new one is one file beside this, and one line here."""

from sinkscope.tasks import arithmetic, composition, distant, logic, pictures, planning, programs, recall, repeat
from sinkscope.tasks.problem import register

register(arithmetic.TASK)
register(programs.TASK)
register(logic.TASK)
register(planning.TASK)
register(composition.TASK)
register(recall.TASK)
register(pictures.TASK)
register(repeat.TASK)  # what the planted models do
register(distant.NEEDLE)
register(distant.ERRANDS)

# The suite that all four tiny models learn; pictures are for the one with a second modality, needle and errands for
# the one with a long context.
KINDS = ("arithmetic", "programs", "logic", "planning", "composition", "recall")
