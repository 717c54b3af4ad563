"""What counts as a sink: each definition is one frozen dataclass with its unit, for traces and for live maps alike.

A rule looks at columns of attention maps: `received [..., key]`, the plain column sums over the queries that count, and
`queries [...]`, how many those were. It does not care where the columns came from, so that the same object marks the
sinks of a stored trace ([step, layer, head, key]) and chooses keys inside a running model ([batch, head, key]).

To add a rule: write a class under `Rule` with its settings as fields, `score` and `mark`, and put `@register` above it. The
report's explorer offers it from then on: live if it gives `forms`, which the browser computes, else by name alone.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

import torch
from pydantic import AfterValidator
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.registry import Registry
from sinkscope.validation import NonNegative, settings, show_value

QUERY_GROUPS = ("masked", "committed", "prompt")  # kinds of query, in the order of the group axis of `received`
GROUPS = ("all", *QUERY_GROUPS)
UNITS = ("sum", "percent", "mean", "uniform")


def _one_of(choices: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}, got {show_value(value)}")
        return value

    return AfterValidator(check)


Group = Annotated[str, _one_of(GROUPS)]
Unit = Annotated[str, _one_of(UNITS)]


@dataclass(frozen=True)
class Columns:
    """Received attention as a sink rule gets it, in float32, with 0 at keys that do not exist.

    Args:
        received: Column sums [..., key].
        queries: Number of summed queries [..., 1].
        alive: Keys that exist, bool [..., key] or [key].
        keys: Number of keys that exist [..., 1].
        seen: Number of queries that may attend to each key, [..., key] or [..., 1]; fewer than all in causal models.
    """

    received: Tensor
    queries: Tensor
    alive: Tensor
    keys: Tensor
    seen: Tensor

    @classmethod
    def of(
        cls, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> "Columns":
        """Bring received attention and counts into this form.

        Args:
            received: Column sums [..., key].
            queries: Number of summed queries, a number or [...].
            alive: Keys that exist; the default is all.
            seen: Number of queries that may attend to each key; the default is all queries.
        """
        received = received.float()
        count = torch.as_tensor(queries, dtype=torch.float32, device=received.device)
        count = count.reshape(count.shape + (1,) * (received.ndim - count.ndim))
        if alive is None:
            alive = torch.ones(received.shape[-1:], dtype=torch.bool, device=received.device)
        else:
            alive = _spread(alive.to(device=received.device, dtype=torch.bool), received.ndim)
            received = received.masked_fill(~alive, 0.0)
        keys = alive.sum(-1, keepdim=True).float()
        seen = count if seen is None else _spread(seen.to(device=received.device, dtype=torch.float32), received.ndim)
        return cls(received, count, alive, keys, seen)


def _spread(table: Tensor, ndim: int) -> Tensor:
    """[step, key] beside [step, layer, head, key]: leading dimensions belong together, and so do the keys."""
    lead = table.shape[:-1]
    return table.reshape(lead + (1,) * (ndim - table.ndim) + table.shape[-1:]) if lead else table


@dataclass(frozen=True)
class BrowserForm:
    """Form of a sink rule that the explorer computes, with a slider for one setting.

    The formulas are in postfix notation and computed in float32 after every operation: numbers, + - * /, and the names
    `queries` (at least 1) and `keys`; in `limit` also `total` (sum of the column sums), `parameter` (value of the
    slider) and `scale`.

    Args:
        unit: Name of the form in the page's address.
        label: Name of the form on the page.
        about: Meaning of the unit.
        says: Definition of a sink, next to the slider.
        scale: Formula of the factor from a column sum to a score in this unit.
        limit: Formula of the column sum above which a key is a sink.
        parameter: Setting of the rule that the slider changes.
        per_key: Whether column sums are divided by the number of queries that may attend to the key, before `scale` and
            `limit`.
        usual: Initial value of the slider.
        most: Largest value of the slider.
        settings: Other settings of the rule.
    """

    unit: str
    label: str
    about: str
    says: str
    scale: str
    limit: str
    parameter: str = "epsilon"
    per_key: bool = False
    usual: float = 3.0
    most: float = 20.0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule(ABC):
    """Sink rule: a definition of which keys are attention sinks.

    Args:
        group: Group of queries whose attention counts: "all", "masked", "committed" or "prompt".
    """

    name: ClassVar[str]
    forms: ClassVar[tuple[BrowserForm, ...]] = ()
    group: Group = field(default="all", kw_only=True)

    @property
    @abstractmethod
    def unit(self) -> str:
        """Unit of the scores, as tables show it."""

    @abstractmethod
    def score(self, columns: Columns) -> Tensor:
        """Compute the score of each key in the rule's unit, [..., key].

        Args:
            columns: Received attention.
        """

    @abstractmethod
    def mark(self, columns: Columns) -> Tensor:
        """Decide which keys are sinks, bool [..., key]. `marks` handles missing keys and empty groups.

        Args:
            columns: Received attention.
        """

    def scores(
        self, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Compute the score of each key in the rule's unit, float32 [..., key], with 0 at keys that do not exist.

        Counts may have fewer dimensions: `queries` [step] and `alive` [step, key] fit `received` [step, layer, head,
        key].

        Args:
            received: Column sums of the rule's group [..., key].
            queries: Number of summed queries, a number or [...].
            alive: Keys that exist, bool [..., key]; the default is all.
            seen: Number of queries that may attend to each key [..., key]; the default is all queries. Later keys of an
                autoregressive prompt have fewer.
        """
        columns = Columns.of(received, queries, alive, seen)
        scores = self.score(columns)
        return scores if alive is None else scores.masked_fill(~columns.alive, 0.0)

    def marks(
        self, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Decide which keys are sinks, bool [..., key]; without queries there is no sink.

        Args:
            received: Column sums, as in `scores`.
            queries: Number of summed queries, as in `scores`.
            alive: Keys that exist, as in `scores`.
            seen: Number of queries that may attend to each key, as in `scores`.
        """
        columns = Columns.of(received, queries, alive, seen)
        marks = self.mark(columns) & (columns.queries > 0)
        return marks if alive is None else marks & columns.alive

    @property
    def definition(self) -> str:
        """Name of the rule with its own settings, in a few words."""
        words = dataclasses.asdict(self)
        if words["group"] == "all":
            del words["group"]
        return " ".join(
            [self.name, *(f"{value:g}" if isinstance(value, float) else str(value) for value in words.values())]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain data, for a study file or a trace."""
        return {"rule": self.name, **dataclasses.asdict(self)}


RULES: Registry[type[Rule]] = Registry("sink rule", RuleError)
R = TypeVar("R", bound=type[Rule])


@dataclass_transform(frozen_default=True)
def register(rule: R) -> R:
    """Register a sink rule by its name, for study files and traces; a class decorator that makes the class a checked
    dataclass.

    Args:
        rule: Subclass of `Rule` with a `name`.
    """
    if not getattr(rule, "name", ""):
        raise RuleError(f"A rule needs a class attribute `name`, and {rule.__name__} has none: add one.")
    checked = cast(R, settings(RuleError)(rule))
    RULES.add(rule.name, checked)
    return checked


def rule_from_dict(data: Mapping[str, Any]) -> Rule:
    """The rule that `to_dict` wrote, or a study file names: {"rule": "threshold", "epsilon": 3, "unit": "sum"}."""
    words = dict(data)
    return RULES[words.pop("rule", None)](**words)


def rule_of_form(unit: str, value: float, group: str = "all") -> Rule:
    """The rule that the explorer shows as this form, with its slider at `value`."""
    for rule in RULES.values():
        for form in rule.forms:
            if form.unit == unit:
                return rule(**{form.parameter: value, "group": group, **form.settings})
    raise RuleError(f"The explorer computes no rule in the unit {unit[:20]!r}.")


def _threshold_form(unit: str, label: str, about: str, scale: str) -> BrowserForm:
    epsilon = "parameter" if unit == "sum" else "1 scale / parameter *"  # in sums
    limit = f"total {epsilon} keys 1 - * + keys /"
    says = "A sink receives more than the other keys’ mean + ε"
    return BrowserForm(unit, label, about, says, scale, limit, settings={"unit": unit})


@register
class Threshold(Rule):
    """Sink rule of the paper (Eq. 3): a sink receives more than the mean of all *other* keys plus epsilon.

    The paper leaves the unit of epsilon open. The mean over the other keys is computed from the scores themselves,
    because scores in float16 sum to the number of queries only within 0.05 %.

    Args:
        epsilon: Threshold above the mean, in `unit`.
        unit: Unit of epsilon: "sum" for column sums, where uniform attention is 1 if every position is a query;
            "percent" of the group's attention; "mean" attention, as the paper prints it, in which 3 can never be
            reached; "uniform" for multiples of uniform attention, which equals "sum" for a whole bidirectional map and
            stays comparable for small groups or a single query.
    """

    name: ClassVar[str] = "threshold"
    forms: ClassVar[tuple[BrowserForm, ...]] = (
        _threshold_form("sum", "sum", "column sums; uniform attention of all queries gives 1", "1"),
        _threshold_form("percent", "percent", "percent of the attention that these queries give", "1 queries / 100 *"),
        _threshold_form("uniform", "× uniform", "multiples of an even share", "keys queries /"),
    )
    epsilon: NonNegative = 3.0
    unit: Unit = "sum"

    def _scale(self, columns: Columns) -> Tensor | float:
        queries = columns.queries.clamp(min=1)
        if self.unit == "sum":
            return 1.0
        whole: dict[str, Tensor | float] = {"mean": 1, "percent": 100, "uniform": columns.keys}
        return whole[self.unit] / queries

    def score(self, columns: Columns) -> Tensor:
        return columns.received if self.unit == "sum" else columns.received * self._scale(columns)

    def limit(self, columns: Columns) -> Tensor:
        """Compute the column sum above which a key is a sink, [..., 1].

        Eq. 3 is solved for the key itself: x > (T - x) / (n - 1) + ε becomes x > (T + ε (n - 1)) / n, with T the sum
        over the n keys and ε in column sums. This gives one number per map instead of one per key; a single key is
        never above it.

        Args:
            columns: Received attention.
        """
        total = columns.received.sum(-1, keepdim=True)
        return (total + self.epsilon / self._scale(columns) * (columns.keys - 1)) / columns.keys.clamp(min=1)

    def mark(self, columns: Columns) -> Tensor:
        return columns.received > self.limit(columns)


@register
class ZScore(Rule):
    """Sink rule by z-score: a sink receives more than the mean of all keys plus k standard deviations (population
    form).

    Among n keys no z-score can exceed sqrt(n - 1), so a short sequence may have no sink. If the deviation is below 0.1
    % of the mean, the resolution of float16 scores, all z-scores are 0.

    Args:
        k: Number of standard deviations.
    """

    name: ClassVar[str] = "zscore"
    unit: ClassVar[str] = "z"
    k: NonNegative = 3.0

    def score(self, columns: Columns) -> Tensor:
        keys = columns.keys.clamp(min=1)
        mean = columns.received.sum(-1, keepdim=True) / keys
        off = (columns.received - mean).masked_fill(~columns.alive, 0.0)
        deviation = (off.square().sum(-1, keepdim=True) / keys).sqrt()
        flat = deviation <= 1e-3 * mean
        return off / deviation.masked_fill(flat, torch.inf)

    def mark(self, columns: Columns) -> Tensor:
        return self.score(columns) > self.k


@register
class HeadShare(Rule):
    """Sink rule of Gu et al.: a sink receives more than epsilon of a query's attention, on average over the queries
    that may attend to it.

    The last keys of a causal prompt have few such queries, mostly themselves; read their scores with care.

    Args:
        epsilon: Threshold on the mean attention (0 to 1).
    """

    name: ClassVar[str] = "head_share"
    forms: ClassVar[tuple[BrowserForm, ...]] = (
        BrowserForm("share", "share of a head", "mean attention over the queries that see the key; 1 is all of it",
                    "A sink receives on average more than ε", "1", "parameter", per_key=True, usual=0.3, most=1.0),
    )  # fmt: skip
    unit: ClassVar[str] = "share"
    epsilon: NonNegative = 0.3

    def score(self, columns: Columns) -> Tensor:
        return columns.received / columns.seen.clamp(min=1)

    def mark(self, columns: Columns) -> Tensor:
        return self.score(columns) > self.epsilon
