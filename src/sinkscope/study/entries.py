"""Lists of a study file whose entries are read by other rooms: conditions, sink rules, names of tasks and devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from sinkscope.errors import RuleError
from sinkscope.study.conditions import Condition, read_condition
from sinkscope.study.mistakes import refuse, shown
from sinkscope.study.reader import Fields, Path

CONDITIONS = "a list of conditions, each a name or {name: …, k: …}"
NEEDS_NONE = "must have none among them, since everything is compared with it"
Pairs = tuple[tuple[Condition, str], ...]  # with the kind of models that a condition is for


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each model once")
    return names


def known_task(name: str) -> str:
    from sinkscope.tasks import registered

    if name not in registered():
        raise ValueError(f"must be one of {', '.join(registered())}, not {shown(name)}")
    return name


def task_names(names: list[str], info: ValidationInfo) -> None:
    """Each task once."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise refuse(info, ("tasks", place, "name"), f"must not stand there twice, {name} does")


def known_device(name: str | None) -> str | None:
    import torch

    from sinkscope.models.load import SPREAD

    if name is not None and name not in SPREAD:
        try:
            torch.device(name)
        except RuntimeError:
            raise ValueError from None
    return name


def conditions(value: Any, info: ValidationInfo, path: Path, most: int) -> Pairs:
    """Every condition that the entries name, with the kind of models it is for; a list in an entry is a sweep."""
    if isinstance(value, tuple) and all(
        isinstance(one, tuple | Condition) for one in value
    ):  # of a Study, not of a file
        return tuple((one, "all") if isinstance(one, Condition) else one for one in value)
    if value == [] and path[0] != "conditions":
        return ()
    if not isinstance(value, list) or not value:
        raise refuse(info, path, f"must be {CONDITIONS}, not {shown(value)}")
    context = info.context or {"where": "the study", "lines": {}}
    found: list[tuple[Condition, str]] = []
    count = 0
    for index, one in enumerate(value):
        entry = {"name": one} if isinstance(one, str) else one
        count += _points(entry)
        if count > most:
            raise refuse(info, (*path, index), f"makes more than {most:,} conditions; leave some out")
        found += read_condition(Fields(entry, context["where"], context["lines"], (*path, index)))
    return tuple(found)


def _points(entry: Any) -> int:
    """How many conditions an entry makes: every list in it is a sweep (or no longer than one)."""
    if not isinstance(entry, Mapping):
        return 1
    return math.prod(max(len(value), 1) for value in entry.values() if isinstance(value, list))


def compared(found: Pairs, info: ValidationInfo) -> Pairs:
    """None is there, nothing is there twice; what everything is compared with comes first."""
    if Condition("none") not in [condition for condition, _ in found]:
        raise refuse(info, ("conditions",), NEEDS_NONE)
    seen: dict[Condition, list[str]] = {}
    for condition, models in found:
        before = seen.setdefault(condition, [])
        if before and ("all" in (models, *before) or models in before):
            raise refuse(info, ("conditions",), f"must not have {condition.label!r} twice")
        before.append(models)
    order = {"none": 0, "noop": 1}
    return tuple(sorted(found, key=lambda pair: order.get(pair[0].name, 2)))


def rules(value: Any, info: ValidationInfo, most: int) -> tuple[Mapping[str, Any], ...]:
    """Sink rules with every default filled in."""
    from sinkscope.sinks.rules import rule_from_dict

    if not isinstance(value, list | tuple) or not 0 < len(value) <= most:
        raise refuse(info, ("rules",), f"must be a list of rules, not {shown(value)}")
    found = []
    for index, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise refuse(info, ("rules", index), f"must be a mapping of fields, not {shown(one)}")
        try:
            found.append(rule_from_dict(one).to_dict())
        except (RuleError, TypeError) as error:
            raise refuse(info, ("rules", index), f"is no sink rule: {str(error).rstrip('.')}") from None
    return tuple(found)
