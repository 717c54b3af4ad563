"""Plain values become a Study: every field is checked, and the first mistake is told in one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sinkscope.errors import RuleError
from sinkscope.study.conditions import Condition, read_condition
from sinkscope.study.plan import DEFAULT_RULE, LikelihoodPlan, MechanismPlan, Study, TaskPlan, TracePlan
from sinkscope.study.reader import Fields, among, number, text, texts, whole


def read_study(values: Any, lines: Mapping[Any, int], where: str) -> Study:
    """Check every field; the first mistake is told in one sentence."""
    given = Fields(values, where, lines)
    known = [item.name for item in dataclasses.fields(Study)]
    name = given.need("name", text, "a word")
    names = given.need("models", lambda value: value == [] or texts(value), "a list of zoo names, folders or Hub ids")
    models = tuple(names)
    if len(set(models)) < len(models):
        raise given.error("models", "must name each model once")
    plain = {
        "about": given.take("about", "", lambda value: isinstance(value, str), "a sentence"),
        "seed": given.take("seed", 0, whole(0), "a whole number of at least 0"),
        "split": given.take("split", "test", among(("train", "validation", "test")), "train, validation or test"),
        "chunk": given.take("chunk", 25, whole(1), "a whole number of at least 1"),
        "draws": given.take("draws", 2000, whole(100), "a whole number of at least 100"),
        "dtype": given.take("dtype", None, lambda value: value is None or text(value), "a dtype such as bfloat16"),
        "device": given.take("device", None, lambda value: value is None or text(value), "a device such as cuda"),
    }
    study = Study(
        name=name, models=models, tasks=_tasks(given), conditions=_conditions(given), decode=_decode(given),
        rules=_rules(given), trace=_trace(given), mechanism=_mechanism(given), likelihood=_likelihood(given), **plain,
    )  # fmt: skip
    given.done(known)
    if not study.models and not study.likelihood.models:
        raise given.error("models", "must name at least one model")
    traced = set(study.trace.conditions) - {condition.name for condition, _ in study.conditions}
    if study.trace.problems and traced:
        raise given.error("trace", f"names the condition {min(traced)}, which the study does not have")
    return study


def _entries(given: Fields, field: str, expected: str) -> list[Fields]:
    """A list of mappings; a plain word stands for a mapping with that name."""
    values = given.need(field, lambda value: isinstance(value, list) and bool(value), expected)
    entries = [{"name": value} if isinstance(value, str) else value for value in values]
    return [given.inner(field, value, index) for index, value in enumerate(entries)]


def _tasks(given: Fields) -> tuple[TaskPlan, ...]:
    from sinkscope.tasks import registered

    found: list[TaskPlan] = []
    for entry in _entries(given, "tasks", "a list of tasks, each {name: …, problems: …}"):
        name = entry.need("name", among(registered()), f"one of {', '.join(registered())}")
        problems = entry.need("problems", whole(1), "a whole number of at least 1")
        level = entry.take("difficulty", None, among((None, 1, 2, 3)), "1, 2 or 3")
        entry.done(("name", "problems", "difficulty"))
        if any(name == task.name for task in found):
            raise entry.error("name", f"must not stand there twice, {name} does")
        found.append(TaskPlan(name, problems, level))
    return tuple(found)


def _conditions(given: Fields) -> tuple[tuple[Condition, str], ...]:
    expected = "a list of conditions, each a name or {name: …, k: …}"
    found = [pair for entry in _entries(given, "conditions", expected) for pair in read_condition(entry)]
    names = [condition for condition, _ in found]
    if Condition("none") not in names:
        raise given.error("conditions", "must have none among them, since everything is compared with it")
    for condition, models in found:
        same = [other for other in found if other[0] == condition]
        if len(same) > 1 and (models == "all" or sum(other[1] == models for other in same) > 1):
            raise given.error("conditions", f"must not have {condition.label!r} twice")
    order = {"none": 0, "noop": 1}
    return tuple(sorted(found, key=lambda pair: order.get(pair[0].name, 2)))


def _decode(given: Fields) -> dict[str, Any]:
    from sinkscope.decoding.settings import Decode

    words = given.take("decode", {}, lambda value: isinstance(value, dict), "a mapping of decode settings")
    known = {item.name for item in dataclasses.fields(Decode)} | {"algorithm"}
    inner = given.inner("decode", words)
    for name, value in words.items():
        if name not in known:
            raise inner.error(name, f"is no decode setting; known are {', '.join(sorted(known))}")
        if isinstance(value, dict) or value == []:
            raise inner.error(name, f"must be one value, or a list of values to sweep, not {value!r}")
    return dict(words)


def _rules(given: Fields) -> tuple[Mapping[str, Any], ...]:
    from sinkscope.sinks.rules import rule_from_dict

    values = given.take(
        "rules", [DEFAULT_RULE], lambda value: isinstance(value, list) and bool(value), "a list of rules"
    )
    found = []
    for index, value in enumerate(values):
        entry = given.inner("rules", value, index)
        try:
            found.append(rule_from_dict(value).to_dict())
        except (RuleError, TypeError) as error:
            raise entry.error("", f"is no sink rule: {str(error).rstrip('.')}") from None
    return tuple(found)


def _trace(given: Fields) -> TracePlan:
    if "trace" not in given.left:
        return TracePlan()
    entry = given.inner("trace", given.left.pop("trace"))
    names = entry.take("conditions", ["none"], texts, "a list of names of conditions")
    epsilons = entry.take(
        "epsilons",
        [],
        lambda value: isinstance(value, list) and all(map(number(0, 1e9), value)),
        "a list of numbers ≥ 0",
    )
    plan = TracePlan(
        problems=entry.need("problems", whole(0), "a whole number of at least 0"),
        keep=entry.take("keep", 1, whole(0), "a whole number of at least 0"),
        conditions=tuple(names),
        epsilons=tuple(float(value) for value in epsilons),
        norms=entry.take("norms", True, lambda value: isinstance(value, bool), "true or false"),
    )
    entry.done([item.name for item in dataclasses.fields(TracePlan)])
    return plan


def _mechanism(given: Fields) -> MechanismPlan:
    if "mechanism" not in given.left:
        return MechanismPlan()
    entry = given.inner("mechanism", given.left.pop("mechanism"))
    ks = entry.take(
        "k", [1, 5], lambda value: isinstance(value, list) and bool(value) and all(map(whole(1), value)),
        "a list of whole numbers of at least 1",
    )  # fmt: skip
    plan = MechanismPlan(entry.need("problems", whole(0), "a whole number of at least 0"), tuple(ks))
    entry.done(("problems", "k"))
    return plan


def _likelihood(given: Fields) -> LikelihoodPlan:
    if "likelihood" not in given.left:
        return LikelihoodPlan()
    entry = given.inner("likelihood", given.left.pop("likelihood"))
    models = entry.take("models", [], lambda value: value == [] or texts(value), "a list of autoregressive models")
    plan = LikelihoodPlan(
        models=tuple(models),
        texts=entry.take("texts", 8, whole(2), "a whole number of at least 2"),
        read=entry.take("read", 48, whole(2), "a whole number of at least 2"),
        scored=entry.take("scored", 48, whole(1), "a whole number of at least 1"),
        conditions=tuple(
            condition
            for one in (_entries(entry, "conditions", "a list of conditions") if entry.left.get("conditions") else ())
            for condition, _ in read_condition(one)
        ),
    )
    entry.left.pop("conditions", None)
    entry.done([item.name for item in dataclasses.fields(LikelihoodPlan)])
    if plan.models and Condition("none") not in plan.conditions:
        raise entry.error("conditions", "must have none among them, since everything is compared with it")
    return plan
