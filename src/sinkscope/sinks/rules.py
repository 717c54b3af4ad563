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
    """The columns of attention maps, ready for a rule: fp32, and 0 at keys that do not exist."""

    received: Tensor  # [..., key] plain column sums
    queries: Tensor  # [..., 1] how many queries were summed
    alive: Tensor  # [..., key] or [key]: which keys exist
    keys: Tensor  # [..., 1] how many keys exist
    seen: Tensor  # [..., key] or [..., 1]: how many of the queries may look at the key (fewer than all if causal)

    @classmethod
    def of(
        cls, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> "Columns":
        """Bring what a caller has into one form: counts become [..., 1], missing keys become 0."""
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
    """A rule as the explorer computes it, with a slider for one setting.

    The formulas are postfix, in fp32 after every operation as torch does it: numbers, + - * /, and the names `queries` (at
    least 1) and `keys`; in `limit` also `total` (sum of the column sums), `parameter` (the slider's value) and `scale`.
    """

    unit: str  # names the form in the page's address
    label: str
    about: str  # what the unit means
    says: str  # what a sink is, beside the slider
    scale: str  # what a column sum is multiplied by to be a score in this unit
    limit: str  # the column sum above which a key is a sink
    parameter: str = "epsilon"  # the rule's setting that the slider moves
    per_key: bool = False  # column sums are divided by how many queries see the key, before `scale` and `limit`
    usual: float = 3.0  # where the slider stands at first
    most: float = 20.0  # its end
    settings: Mapping[str, Any] = field(default_factory=dict)  # the rule's other settings


@dataclass(frozen=True)
class Rule(ABC):
    """A definition of a sink: which keys draw so much attention that they count."""

    name: ClassVar[str]
    forms: ClassVar[tuple[BrowserForm, ...]] = ()
    group: Group = field(default="all", kw_only=True)  # the kind of query whose attention counts

    @property
    @abstractmethod
    def unit(self) -> str:
        """The unit of the scores, as it stands in every table."""

    @abstractmethod
    def score(self, columns: Columns) -> Tensor:
        """Score of each key in this rule's unit, `[..., key]`."""

    @abstractmethod
    def mark(self, columns: Columns) -> Tensor:
        """Which keys are sinks, `[..., key]` bool; missing keys and empty groups are dealt with by `marks`."""

    def scores(
        self, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Score of each key in this rule's unit, `[..., key]` fp32; 0 at keys that do not exist.

        received: [..., key] column sums of the rule's group. queries: how many queries that was, a number or [...].
        alive: [..., key] which keys exist (default all). seen: [..., key] how many of the queries may look at each key
        (default all of them; an autoregressive prompt has fewer for later keys). Tables may stop early: queries [step]
        and alive [step, key] fit received [step, layer, head, key], and [batch, key] fits [batch, head, key].
        """
        columns = Columns.of(received, queries, alive, seen)
        scores = self.score(columns)
        return scores if alive is None else scores.masked_fill(~columns.alive, 0.0)

    def marks(
        self, received: Tensor, queries: Tensor | float, alive: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Which keys are sinks, `[..., key]` bool; arguments as for `scores`; without queries there is no sink."""
        columns = Columns.of(received, queries, alive, seen)
        marks = self.mark(columns) & (columns.queries > 0)
        return marks if alive is None else marks & columns.alive

    @property
    def definition(self) -> str:
        """The rule in a word: its name and the settings that are its own."""
        words = dataclasses.asdict(self)
        if words["group"] == "all":
            del words["group"]
        return " ".join(
            [self.name, *(f"{value:g}" if isinstance(value, float) else str(value) for value in words.values())]
        )

    def to_dict(self) -> dict[str, Any]:
        """The rule as plain data, for a study file or a trace's header."""
        return {"rule": self.name, **dataclasses.asdict(self)}


RULES: Registry[type[Rule]] = Registry("sink rule", RuleError)
R = TypeVar("R", bound=type[Rule])


@dataclass_transform(frozen_default=True)
def register(rule: R) -> R:
    """Class decorator: a checked dataclass, known by its name to study files and `rule_from_dict`."""
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
    says = "A sink draws more than the other keys’ mean + ε"
    return BrowserForm(unit, label, about, says, scale, limit, settings={"unit": unit})


@register
class Threshold(Rule):
    """A sink draws more than the mean of all *other* keys plus epsilon (Eq. 3 of the paper; strict).

    The paper leaves epsilon's unit open. `sum`: column sums, uniform = 1 where every position is a query. `percent`: of
    the group's attention. `mean`: as printed, where epsilon = 3 can never be reached. `uniform`: multiples of the
    uniform share; equals `sum` for a whole bidirectional map, and stays comparable for a group of few queries or for a
    single row. The mean over the other keys is taken from the scores themselves, not from "they sum to the number of
    queries": scores kept in fp16 sum to that only within 0.05 %.
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
        """The column sum above which a key is a sink, `[..., 1]`.

        Eq. 3 solved for the key itself: x > (T − x) / (n − 1) + ε becomes x > (T + ε (n − 1)) / n, with T the sum over
        the n keys and ε in sums. One number per map instead of one per key; and a key without others is never above it.
        """
        total = columns.received.sum(-1, keepdim=True)
        return (total + self.epsilon / self._scale(columns) * (columns.keys - 1)) / columns.keys.clamp(min=1)

    def mark(self, columns: Columns) -> Tensor:
        return columns.received > self.limit(columns)


@register
class ZScore(Rule):
    """A sink draws more than the mean of all keys plus k standard deviations (population form, strict).

    Among n keys no z can exceed √(n − 1), so a short sequence may have no sink whatever its attention does. Where the
    deviation is below 0.1 % of the mean, which is as fine as fp16 scores resolve, all z are 0.
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
    """A sink receives on average more than epsilon of what each query that sees it has to give (Gu et al.).

    A causal map divides column k by the queries i ≥ k; a bidirectional one by all queries. The last keys of a causal
    prompt are seen by few queries, mostly by themselves: read them with care.
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
