"""All that a package of your own needs: `from sinkscope.extend import Intervention, register_intervention, …`.

A class or function here is what a new kind is made of, `register_…` makes it known by its name. A module that the
entry-point group `sinkscope.plugins` names is imported in every process that meets a name it does not know.

| kind | made of | made known by |
|---|---|---|
| intervention | `Intervention`, `Selector` | `@register_intervention(name, setting, …)` |
| condition that changes decode settings | `Registered` | `register_condition(Registered(…))` |
| task | `Task`, `Problem` | `register_task(Task(…))` |
| family of models | `Family` | `register_family(MyFamily())` |
| sink rule | `Rule`, `Columns` | `@register_rule` |
| commit rule | `CommitRule`, `Picks` | `@register_commit_rule(name)` |
| protocol of a benchmark | a YAML file | `register_protocol(path)` |
"""

from sinkscope.attention.calls import Call, Change
from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit import CommitRule, most_confident
from sinkscope.decoding.commit import register as register_commit_rule
from sinkscope.decoding.settings import Decode
from sinkscope.errors import InterventionError, RuleError, TaskError
from sinkscope.fields import TRUTH, among, maybe, number, whole
from sinkscope.interventions import Condition, Intervention, Selector, Setting
from sinkscope.interventions import register as register_intervention
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.settings import REQUIRED, K, Registered, of_random
from sinkscope.interventions.settings import add as register_condition
from sinkscope.models import Family, Model
from sinkscope.models import register as register_family
from sinkscope.sinks import Columns, Rule
from sinkscope.sinks import register as register_rule
from sinkscope.sinks.rules import BrowserForm
from sinkscope.tasks import Problem, Task
from sinkscope.tasks import register as register_task
from sinkscope.tasks.problem import Source, same_final
from sinkscope.tasks.protocol import Protocol
from sinkscope.tasks.protocol import register as register_protocol

__all__ = [
    "REQUIRED", "TRUTH", "Block", "BrowserForm", "Call", "Change", "Columns", "CommitRule", "Condition", "Decode",
    "Family", "Intervention", "InterventionError", "K", "Map", "Memory", "Model", "Picks", "Problem", "Protocol",
    "Registered", "Rule", "RuleError", "Selector", "Setting", "Source", "Task", "TaskError", "among", "maybe",
    "most_confident", "number", "of_random", "register_commit_rule", "register_condition", "register_family",
    "register_intervention", "register_protocol", "register_rule", "register_task", "same_final", "whole",
]  # fmt: skip
