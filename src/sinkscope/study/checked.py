"""Plain values become a Study: every field is checked, and the first mistake is told in one sentence."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sinkscope.errors import RuleError
from sinkscope.study.conditions import Condition, read_condition
from sinkscope.study.plan import DEFAULT_RULE, LEAST_STEPS, LikelihoodPlan, MechanismPlan, Study, TaskPlan, TracePlan
from sinkscope.study.reader import Fields, among, file_name, number, optional, text, texts, whole

# Decode settings that a study does not choose, and what does.
DECIDED = {
    "family": "the model's family decides how it decodes",
    "noise": "a study always draws noise per_row, so that an answer does not depend on its chunk",
}


def read_study(values: Any, lines: Mapping[Any, int], where: str) -> Study:
    """Check every field; the first mistake is told in one sentence."""
    given = Fields(values, where, lines)
    known = [item.name for item in dataclasses.fields(Study)]
    name = given.need("name", file_name, "a plain file name without slashes and '..'")
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
        "dtype": given.take("dtype", None, optional(text), "a dtype such as bfloat16"),
        "device": given.take("device", None, optional(_device), "cpu, cuda, mps, another device of torch, or auto"),
    }
    study = Study(
        name=name, models=models, tasks=_tasks(given), conditions=_conditions(given), decode=_decode(given),
        rules=_rules(given), trace=_trace(given), mechanism=_mechanism(given), likelihood=_likelihood(given), **plain,
    )  # fmt: skip
    given.done(known)
    _check_models(study, given)
    _check_steps(study, given)
    traced = set(study.trace.conditions) - {condition.name for condition, _ in study.conditions}
    if study.trace.problems and traced:
        raise given.error("trace", f"names the condition {min(traced)}, which the study does not have")
    return study


def _check_models(study: Study, given: Fields) -> None:
    """At least one, and each measured in one way."""
    if not study.models and not study.likelihood.models:
        raise given.error("models", "must name at least one model")
    for name in study.likelihood.models:
        if name in study.models:
            raise given.error(
                "likelihood",
                f"must not name {name}, which models names too; it is measured by likelihood or by answers, "
                "so take it out of one of them",
            )


def _check_steps(study: Study, given: Fields) -> None:
    """The mechanism takes the first point of a sweep; where steps are not given, there are as many as tokens."""
    first = study.settings()[0][1]
    for field in ("steps", "length"):
        if study.mechanism.problems and first.get(field) is not None and first[field] < LEAST_STEPS:
            raise given.error(
                "mechanism",
                f"needs at least {LEAST_STEPS} steps, and decode.{field} is {first[field]}; "
                "make it larger, or leave the mechanism out",
            )


def _device(value: Any) -> bool:
    import torch

    from sinkscope.models.load import SPREAD

    if not text(value) or value in SPREAD:
        return text(value)
    try:
        torch.device(value)
    except RuntimeError:
        return False
    return True


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
    words = given.take("decode", {}, lambda value: isinstance(value, dict), "a mapping of decode settings")
    checks = _decode_checks()
    inner = given.inner("decode", words)
    for name, value in words.items():
        if name in DECIDED:
            raise inner.error(name, f"must not be given: {DECIDED[name]}")
        if name not in checks:
            raise inner.error(name, f"is no decode setting; known are {', '.join(sorted(checks))}")
        if isinstance(value, dict) or value == []:
            raise inner.error(name, f"must be one value, or a list of values to sweep, not {value!r}")
        check, expected = checks[name]
        for one in value if isinstance(value, list) else [value]:
            if not check(one):
                raise inner.error(name, f"must be {expected}, not {one!r}")
    return dict(words)


def _decode_checks() -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Setting → check, and what is expected; null only where a setting may be left open."""
    from sinkscope.settings.decode import Decode
    from sinkscope.settings.words import CHOICES, DREAM_ALGORITHMS, FLAGS, ID_LISTS, IDS, RANGES, WHOLE

    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        **{name: (whole(least), f"a whole number of at least {least}") for name, least in WHOLE.items()},
        **{name: (whole(0), "a whole number of at least 0") for name in (*IDS, "seed")},
        **{name: (lambda value: isinstance(value, bool), "true or false") for name in FLAGS},
        "algorithm": (among(DREAM_ALGORITHMS), f"one of {', '.join(DREAM_ALGORITHMS)}"),
    }
    for name, low, high in RANGES:
        words = f"a number of at least {low}" if high is None else f"a number from {low} to {high}"
        checks[name] = number(low, sys.float_info.max if high is None else high), words
    for item in dataclasses.fields(Decode):
        if item.name in CHOICES:
            choices = [choice for choice in CHOICES[item.name] if choice is not None]
            checks[item.name] = among(choices), f"one of {', '.join(choices)}"
        if item.default is None:
            check, words = checks[item.name]
            checks[item.name] = optional(check), f"{words}, or null"
    return {name: check for name, check in checks.items() if name not in (*DECIDED, *ID_LISTS)}


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
    if len(set(plan.models)) < len(plan.models):
        raise entry.error("models", "must name each model once")
    if plan.models and Condition("none") not in plan.conditions:
        raise entry.error("conditions", "must have none among them, since everything is compared with it")
    return plan
