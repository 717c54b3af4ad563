"""All that a package of your own needs: `from sinkscope.extend import Intervention, register_task, …`.

A class or function here is what a new kind is made of. A class with a `name` registers itself; `register_…` does it for the
rest. A module that the entry-point group `sinkscope.plugins` names is imported in every process that meets a name it does
not know.

| kind | made of | made known by |
|---|---|---|
| intervention | `Intervention`, `Selector`, `settings` | its `name` |
| condition that changes decode settings | `DecodeChange`, `settings` | its `name` |
| task | `Task`, `Problem` | `register_task(Task(…))` |
| family of models | `Family` | `register_family(MyFamily())` |
| sink rule | `Rule`, `Columns` | `@register_rule` |
| commit rule | `CommitRule`, `Picks` | `@register_commit_rule(name)` |
| cache policy | `CachePolicy`, `Evicting`, `settings` | its `name` |
| protocol of a benchmark | a YAML file | `register_protocol(path)` |
"""

from sinkscope.attention.call import Call, Change
from sinkscope.conditions import Condition, DecodeChange
from sinkscope.decoding.caches import CachePolicy, CacheStep
from sinkscope.decoding.caches.evicting import Evicting, by_kv_head
from sinkscope.decoding.canvas import Block, Canvas, Picks
from sinkscope.decoding.choose import CommitRule, most_confident
from sinkscope.decoding.choose import register as register_commit_rule
from sinkscope.decoding.settings import Decode
from sinkscope.errors import DecodeError, InterventionError, RuleError, StudyError, TaskError
from sinkscope.interventions import Intervention, Selector
from sinkscope.interventions.base import Label
from sinkscope.interventions.memory import Map, Memory
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
from sinkscope.validation import Count, FromZero, NonNegative, Positive, Share, Truth, settings

__all__ = [
    "Block", "BrowserForm", "CachePolicy", "CacheStep", "Call", "Canvas", "Change", "Columns", "CommitRule", "Condition",
    "Count", "Decode", "DecodeChange", "DecodeError", "Evicting", "Family", "FromZero", "Intervention", "InterventionError",
    "Label", "Map", "Memory", "Model", "NonNegative", "Picks", "Positive", "Problem", "Protocol", "Rule", "RuleError",
    "Selector", "Share", "Source", "StudyError", "Task", "TaskError", "Truth", "by_kv_head", "most_confident",
    "register_commit_rule", "register_family", "register_protocol", "register_rule", "register_task", "same_final",
    "settings",
]  # fmt: skip
