"""Which unit a free worker takes: one of the model that it has loaded, the longest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

# Passes over the canvas for each problem, by kind of unit; a traced problem is run alone, which wastes a batch's economy.
PASSES = {"answers": 1.0, "trace": 2.0, "mechanism": 3.0, "likelihood": 1.0, "facts": 1.0}


class Piece(Protocol):
    """What the queue must know of a piece of work; a `Unit` of a study is one, and so is a batch of a benchmark."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def decode(self) -> Mapping[str, Any]: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...


P = TypeVar("P", bound=Piece)


def cost(unit: Piece, parameters: Mapping[str, int]) -> float:
    """How long a unit takes, in no unit: only which of two takes longer is asked.

    parameters: of each model that is known already.
    """
    settings: Mapping[str, Any] = unit.decode
    forwards = int(settings.get("steps") or settings.get("length") or 1)
    guided = 2 if settings.get("guidance") else 1
    problems = max(unit.last - unit.first, 1)
    return PASSES.get(unit.kind, 1.0) * problems * forwards * guided * max(parameters.get(unit.model, 1), 1)


def parameters_of(unit: Piece, result: Mapping[str, Any]) -> dict[str, int]:
    """What the result of a unit of facts tells about the size of its model; nothing of any other."""
    identity = result.get("identity") if unit.kind == "facts" else None
    return {unit.model: int(identity["parameters"])} if identity else {}


class Waiting(Generic[P]):
    """Units that nobody has begun, by model, the longest last in each list; taking one costs no search."""

    def __init__(self, units: Iterable[P], parameters: Mapping[str, int]) -> None:
        self.parameters = parameters
        self.by_model: dict[str, list[P]] = {}
        self.left: dict[str, float] = {}  # cost of what waits, by model
        for unit in reversed(list(units)):  # the sort is stable: what costs the same is taken in the plan's order
            self.by_model.setdefault(unit.model, []).append(unit)
        for model, mine in self.by_model.items():
            mine.sort(key=self._cost)
            self.left[model] = sum(map(self._cost, mine))

    def __len__(self) -> int:
        return sum(map(len, self.by_model.values()))

    def take(self, loaded: str | None, at: Counter[str], without: Collection[str] = ()) -> P | None:
        """The next unit of the loaded model; else of the model with most left for each worker that is at it.

        at: workers by the model that they have loaded. without: models that this worker cannot have.
        """
        fit = [model for model, mine in self.by_model.items() if mine and model not in without]
        if not fit:
            return None
        chosen = loaded if loaded in fit else max(fit, key=lambda model: self.left[model] / (at[model] + 1))
        unit = self.by_model[chosen].pop()
        self.left[chosen] -= self._cost(unit)
        return unit

    def put_back(self, unit: P) -> None:
        """A unit whose worker was lost is the next of its model: others may have waited for it long enough."""
        self.by_model.setdefault(unit.model, []).append(unit)
        self.left[unit.model] = self.left.get(unit.model, 0.0) + self._cost(unit)

    def drop(self, model: str) -> list[P]:
        """Take out all units of a model that nobody can have."""
        self.left[model] = 0.0
        return self.by_model.pop(model, [])

    def _cost(self, unit: P) -> float:
        return cost(unit, self.parameters)
