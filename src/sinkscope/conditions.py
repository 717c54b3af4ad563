"""What is changed while a model answers: an intervention, or decode settings; as study files, results and people name it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, TypeAdapter

from sinkscope.decoding.caches import CACHE_POLICIES
from sinkscope.decoding.caches.evicting import By, SparseCache
from sinkscope.decoding.caches.policy import Per
from sinkscope.decoding.settings import CACHES
from sinkscope.errors import InterventionError, StudyError
from sinkscope.files import parse_yaml
from sinkscope.interventions.base import INTERVENTIONS, Aim, Entry, Intervention, Label, Match
from sinkscope.interventions.positions import Positions
from sinkscope.interventions.ranked import MaskSinks, SinkRule
from sinkscope.validation import (
    Count,
    FieldError,
    FromZero,
    Number,
    Seed,
    Share,
    as_field,
    settings,
    show_value,
    suggest,
)

Models = Literal["all", "causal", "diffusion"]
MODELS: tuple[Models, ...] = ("all", "causal", "diffusion")
ALWAYS = ("k", "rank", "rows")  # fields that every condition has in results, whether or not its intervention takes them
STRENGTHS = ("k", "radius", "keep", "to", "by")  # how much is done; what differs in nothing else is one series
MOST = 1_000  # conditions that one entry may make


@dataclass(frozen=True)
class Condition:
    """Condition of a study: what is changed while problems are answered.

    A condition changes nothing ("none"), attention ("noop" and interventions), or decode settings.

    Args:
        name: Name of the condition, as in study files.
        change: Intervention or change of decode settings; None for "none".
        models: Model types that the condition is for. Conditions that differ in it alone are equal.
    """

    name: str
    change: Entry | None = None
    models: Models = field(default="all", compare=False)

    @classmethod
    def of(cls, change: Entry) -> Condition:
        """Build the condition of an intervention, or of a change of decode settings.

        Args:
            change: Intervention or change of decode settings.
        """
        return cls(change.name, change)

    @classmethod
    def read(cls, entry: Mapping[str, Any] | str) -> list[Condition]:
        """Build the conditions of one entry of a study file, in which every list is a sweep.

        Args:
            entry: Name of a condition, or a mapping with `name` and settings.

        Raises:
            FieldError: If a field is wrong.
        """
        words = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = words.pop("name", "")
        with as_field("for"):
            models: Models = TypeAdapter(Models).validate_python(words.pop("for", MODELS[0]))
        kind = NothingToSet if name in tuple(PLAIN) else INTERVENTIONS.get(name)
        if kind is None:
            raise FieldError(f"must be a condition, got {show_value(name)}: {suggest(name, names())}", "name")
        points = sweep_points(words, kind.takes_list)
        with as_field():
            return [cls(name, PLAIN.get(name, kind.from_entry(point)), models) for point in points]

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Build a condition from text such as `mask_sinks:k=5,rank=as_run`.

        Args:
            text: Name and settings. Values are written in YAML's flow style, so that commas inside brackets, braces and
                quotes belong to the value, as in `mask_positions:positions=[0,1]`.

        Raises:
            InterventionError: If the text is not one condition.
        """
        name, _, rest = text.partition(":")
        # What stands behind the name is YAML's flow style with = in place of the colon.
        flow, count = re.subn(r"(^|,)\s*(\w+)\s*=", r"\1 \2: ", rest)
        words = parse_yaml(f"{{{flow}}}", f"--condition {name}", InterventionError)[0]
        found, why = list[Condition](), "NAME:setting=value,setting=value"
        if isinstance(words, dict) and "name" not in words and len(words) == count:
            try:
                found = cls.read({"name": name.strip(), **words})
                why = f"one, not a sweep of {len(found)}; repeat --condition"
            except FieldError as error:
                why = f"another: {'.'.join(map(str, error.path)) or 'it'} {str(error).rstrip('.')}"
        if len(found) != 1:
            raise InterventionError(f"Expected a condition, got {text!r:.80}; it must be {why}.")
        return found[0]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Condition:
        """Build a condition from the output of `to_dict`; if its intervention is not installed, it can still be shown.

        Args:
            values: Mapping with `name` and settings.
        """
        name = values["name"]
        words = {word: value for word, value in values.items() if word != "name" and value is not None}
        if name in PLAIN:
            return cls(name, PLAIN[name])
        kind = INTERVENTIONS.get(name)
        if kind is None:
            return cls(name, NotInstalled(name, json.dumps(words)))
        words = {word: value for word, value in words.items() if word in kind.hints()}
        try:
            with as_field(name):
                return cls(name, kind.from_entry(words))
        except FieldError as error:
            raise StudyError(f"The condition {'.'.join(map(str, error.path))} cannot be read: it {error}.") from None

    def to_dict(self) -> dict[str, Any]:
        """Return name, k, rank and rows in any case, and the other settings that are not at their defaults."""
        always = {"name": self.name, "k": self.get("k", 0), "rank": self.get("rank"), "rows": self.get("rows")}
        return {**always, **{name: value for name, value in self.words.items() if name not in ALWAYS}}

    def entry(self) -> dict[str, Any]:
        """Return the condition as an entry of a study file."""
        models = {} if self.models == MODELS[0] else {"for": self.models}
        return {"name": self.name, **self.words, **models}

    @cached_property
    def words(self) -> dict[str, Any]:
        """Settings of the condition, as a study file has them."""
        return {} if self.name in PLAIN or self.change is None else self.change.to_entry()

    def get(self, setting: str, default: Any = None) -> Any:
        """Return one setting.

        Args:
            setting: Name of the setting.
            default: Value that is returned if the condition does not have the setting.
        """
        return self.words.get(setting, default)

    @property
    def k(self) -> int:
        """Number of masked keys per head; 0 for conditions without it."""
        return int(self.get("k", 0))

    @cached_property
    def label(self) -> str:
        """Name and settings in a few words."""
        label = "" if self.name in PLAIN or self.change is None else self.change.label()
        return f"{self.name.replace('_', ' ')} {label}".strip()

    @cached_property
    def key(self) -> str:
        """Name for files: the condition's name and a digest of its settings."""
        digest = hashlib.blake2b(json.dumps(self.words, sort_keys=True).encode(), digest_size=4).hexdigest()
        return f"{self.name}-{digest}" if self.words else self.name

    def series(self) -> str:
        """Return name and settings without the strength; tests that differ in the strength alone are corrected
        together.
        """
        words = {name: value for name, value in self.words.items() if name not in STRENGTHS or isinstance(value, str)}
        return json.dumps([self.name, words], sort_keys=True)

    @property
    def intervention(self) -> Intervention | None:
        """Intervention of the condition; None if it changes no attention."""
        return self.change if isinstance(self.change, Intervention) else None

    def seeded(self, seed: int) -> Intervention | None:
        """Return the intervention with the seed of a study.

        Args:
            seed: Seed of the study.

        Raises:
            InterventionError: If the intervention is not installed.
        """
        if isinstance(self.change, NotInstalled):
            raise InterventionError(
                f"The condition {self.name} is not installed here; install the package that adds it."
            )
        return None if self.intervention is None else self.intervention.seeded(seed)

    @property
    def decode(self) -> dict[str, Any]:
        """Changed decode settings, as plain data; empty for conditions that change attention."""
        return self.change.decode() if isinstance(self.change, DecodeChange) else {}

    @property
    def must_take_effect(self) -> bool:
        """Whether masked keys must receive exactly no attention."""
        made = self.intervention
        return made is not None and self.name != "noop" and made.hides and not getattr(made, "keep_self", False)

    @property
    def aim(self) -> Aim | None:
        return None if self.intervention is None else self.intervention.aim

    def controls(self) -> Mapping[Match, Sequence[Condition]]:
        """Return the conditions that may serve as controls for this one, best first."""
        made = {} if self.intervention is None or self.name == "noop" else self.intervention.controls()
        return {match: [Condition.of(one) for one in several] for match, several in made.items()}

    def short_name(self, silent: Collection[str] = (), causal: bool = False) -> str | None:
        """Return a name for tables; None if a few words cannot express all settings.

        Args:
            silent: Settings that the name leaves out.
            causal: Whether the model is autoregressive.
        """
        words = {name: value for name, value in self.words.items() if name not in silent and value is not False}
        if isinstance(self.change, Intervention) and self.name not in PLAIN:
            return self.change.short_name(words, causal)
        return None


PLAIN: Mapping[str, Entry | None] = {"none": None, "noop": MaskSinks(k=0)}
NONE, NOOP = (Condition(name, change) for name, change in PLAIN.items())


def sweep_points(words: Mapping[str, Any], takes_list: Callable[[str], bool] = lambda _: False) -> list[dict[str, Any]]:
    """Every combination of settings in which a list is a sweep; takes_list: whether it is one value of this setting."""
    swept = {
        name: value if isinstance(value, list) and not takes_list(name) else [value] for name, value in words.items()
    }
    for name, values in swept.items():
        if not values:
            raise FieldError("must be one value, or a list of values to sweep, got an empty list", name)
    count = math.prod(map(len, swept.values()))
    if count > MOST:
        raise FieldError(f"makes {count:,}, and there can be no more than {MOST:,}; leave some out")
    return [dict(zip(swept, point, strict=True)) for point in itertools.product(*swept.values())]


def names() -> tuple[str, ...]:
    """What study files may call a condition."""
    return (*PLAIN, *sorted(INTERVENTIONS))


@settings(StudyError)
class NothingToSet(Entry):
    """What an entry of `none` or `noop` may say beside its name."""


@dataclass(frozen=True)
class NotInstalled(Entry):
    """Of a package that is not here: it can be shown, and not made."""

    kind: str
    text: str

    def to_entry(self) -> dict[str, Any]:
        words: dict[str, Any] = json.loads(self.text)
        return words

    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_entry().items())


# ---- conditions that change how a model decodes, not what its attention does


class DecodeChange(Entry):
    """Base class of conditions that change decode settings, so that answers are compared problem by problem with those
    of "none".
    """

    def __post_init__(self) -> None:
        with as_field():
            self.decode()

    def decode(self) -> dict[str, Any]:
        """Return the changed decode settings as plain data."""
        raise NotImplementedError


@settings(StudyError)
class DeletePositions(DecodeChange):
    """A token taken out of the prompt: nobody reads it, nothing stands there."""

    name: ClassVar[str] = "delete_positions"
    positions: Positions

    def decode(self) -> dict[str, Any]:
        return {"delete": list(self.positions)}


@settings(StudyError)
class OtherSeed(DecodeChange):
    """The noise of sampling, which no paired interval over one seed contains."""

    name: ClassVar[str] = "other_seed"
    always: ClassVar[tuple[str, ...]] = ("seed",)
    seed: Annotated[Seed, Label("{}")] = 1

    def decode(self) -> dict[str, Any]:
        return {"seed": self.seed}


def _check_policy(name: str) -> str:
    with as_field():
        CACHE_POLICIES[name]
    return name


PolicyName = Annotated[str, AfterValidator(_check_policy), Label("{}", 5)]
RuleOfSinks = Annotated[SinkRule, Label(lambda rule: f"by {' '.join(map(str, rule.to_dict().values()))}", 55)]


@settings(StudyError)
class Cached(DecodeChange):
    """A cache policy by its name, with its budget and what becomes of sinks; `decode: {cache: …}` has its other settings."""

    name: ClassVar[str] = "cache"
    always: ClassVar[tuple[str, ...]] = ("kind",)
    kind: PolicyName = "dual"
    keep: Annotated[Share, Label("keep={:g}", 20)] | None = None
    sinks: Annotated[Literal["keep", "drop"], Label("sinks {}", 50)] | None = None
    rule: RuleOfSinks | None = None
    seed: Annotated[Seed, Label("seed={}", 65)] | None = None

    def decode(self) -> dict[str, Any]:
        words = {name: value for name, value in self.to_entry().items() if name != "kind"}
        policy = CACHE_POLICIES[self.kind](**words)
        return {"cache": policy.to_dict() if words or self.kind not in CACHES else self.kind}


@settings(StudyError)
class SparselyCached(DecodeChange):
    """A cache of a kept share of the keys (`sk.SparseCache`)."""

    name: ClassVar[str] = "sparse_cache"
    always: ClassVar[tuple[str, ...]] = ("by", "keep")
    by: Annotated[By, Label("by {}", 10)] = "received"
    keep: Annotated[Share, Label("keep={:g}", 20)] = 0.25
    recent: Annotated[FromZero, Label("recent={}", 30)] = 0
    blocks: Annotated[Any, Label("blocks={}", 35)] = 1
    refresh: Annotated[Count, Label("refresh={}", 40)] | None = None
    per: Annotated[Per, Label("per {}", 45)] = "head"
    drift: Annotated[Number, Label("drift={:g}", 47)] | None = None

    def decode(self) -> dict[str, Any]:
        return {"cache": SparseCache(**self.to_entry()).to_dict()}
