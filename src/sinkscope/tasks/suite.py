"""The kinds that come with the package: a new one is one file beside this, and one line here."""

from sinkscope.tasks import arithmetic, composition, logic, pictures, planning, programs, recall, repeat
from sinkscope.tasks.problem import register

register(arithmetic.TASK)
register(programs.TASK)
register(logic.TASK)
register(planning.TASK)
register(composition.TASK)
register(recall.TASK)
register(pictures.TASK)
register(repeat.TASK)  # what the planted models do

# The suite that all four tiny models learn; pictures are for the one with a second modality.
KINDS = ("arithmetic", "programs", "logic", "planning", "composition", "recall")
