"""What a test adds to the registries is taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sinkscope.conditions  # noqa: F401 - its conditions are there before anything is put back
from sinkscope.decoding.caches import CACHE_POLICIES
from sinkscope.decoding.choose import COMMIT_RULES
from sinkscope.decoding.settings import SAMPLERS
from sinkscope.interventions import INTERVENTIONS
from sinkscope.models.family import FAMILIES
from sinkscope.registry import Registry
from sinkscope.sinks.rules import RULES
from sinkscope.tasks.problem import TASKS
from sinkscope.tasks.protocol import PROTOCOLS

REGISTRIES: tuple[Registry, ...] = (
    CACHE_POLICIES,
    COMMIT_RULES,
    SAMPLERS,
    INTERVENTIONS,
    FAMILIES,
    RULES,
    TASKS,
    PROTOCOLS,
)


@contextmanager
def restored() -> Iterator[None]:
    things = [dict(registry._things) for registry in REGISTRIES]
    try:
        yield
    finally:
        for registry, before in zip(REGISTRIES, things, strict=True):
            registry._things = before
