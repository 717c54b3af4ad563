"""Parts of a study file: tasks, traces, the mechanism, likelihoods; and the types that their fields have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, SkipValidation, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass

from sinkscope.interventions.conditions import Condition
from sinkscope.study import entries
from sinkscope.study.mistakes import guarded, refuse

MOST = 1_000  # entries of a list, points of a sweep, conditions of a study
LARGEST = 1_000_000  # problems, draws and the like
STRICT = ConfigDict(extra="forbid")


def from_(least: int) -> Any:
    return Field(strict=True, ge=least, le=LARGEST, description=f"a whole number of at least {least}")


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value


Text = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_text)]
Whole0 = Annotated[int, from_(0)]
Whole1 = Annotated[int, from_(1)]
Whole2 = Annotated[int, from_(2)]


@guarded
@dataclass(frozen=True, config=STRICT)
class TaskPlan:
    """Problems of one kind."""

    name: Annotated[str, Field(strict=True, description="the name of a task"), AfterValidator(entries.known_task)]
    problems: Whole1
    difficulty: Annotated[int | None, Field(strict=True, ge=1, le=3, description="1, 2 or 3")] = None


@guarded
@dataclass(frozen=True, config=STRICT)
class TracePlan:
    """What is traced: so many problems per task, of which the first `keep` are saved whole."""

    problems: Whole0
    keep: Whole0 = 1
    # Conditions under which traces are taken: a name stands for all conditions of that name, a label for one of them.
    conditions: Annotated[
        tuple[Text, ...], Field(min_length=1, max_length=MOST, description="a list of names or labels of conditions")
    ] = ("none",)
    # So many heads per saved trace keep their whole attention maps: the liveliest moving and the firmest static ones.
    maps: Whole0 = 0
    # The share of non-sinks is measured at each, in every unit.
    epsilons: Annotated[
        tuple[Annotated[float, Field(strict=True, ge=0, le=1e9)], ...],
        Field(max_length=MOST, description="a list of numbers ≥ 0"),
    ] = ()
    norms: Annotated[bool, Field(strict=True, description="true or false")] = True
    # Kept traces also hold what each layer would write at each position.
    lens: Annotated[bool, Field(strict=True, description="true or false")] = False

    def takes(self, condition: Condition) -> bool:
        """Whether traces are taken under this condition."""
        return condition.name in self.conditions or condition.label in self.conditions

    @model_validator(mode="after")
    def _kept(self, info: ValidationInfo) -> TracePlan:
        if self.maps and not min(self.keep, self.problems):
            raise refuse(
                info, ("trace", "maps"), "has no effect: no trace is saved; set keep and problems to 1 or more"
            )
        return self


@guarded
@dataclass(frozen=True, config=STRICT)
class MechanismPlan:
    """Confidence and commit delay where tokens depended on the masked sinks."""

    problems: Whole0
    k: Annotated[
        tuple[Whole1, ...],
        Field(min_length=1, max_length=MOST, description="a list of whole numbers of at least 1"),
    ] = (1, 5)


@guarded
@dataclass(frozen=True, config=STRICT)
class LikelihoodPlan:
    """Models that are measured by the likelihood of held-out text; those not installed are skipped with a word."""

    models: Annotated[
        tuple[Text, ...], Field(max_length=MOST, description="a list of autoregressive models"),
        AfterValidator(entries.each_once),
    ] = ()  # fmt: skip
    texts: Whole2 = 8
    read: Whole2 = 48  # tokens read at once, before the masking begins
    scored: Whole1 = 48  # tokens whose likelihood counts, one per step
    conditions: SkipValidation[tuple[Condition, ...]] = ()

    @field_validator("conditions", mode="before")
    @classmethod
    def _conditions(cls, value: Any, info: ValidationInfo) -> Any:
        return tuple(condition for condition, _ in entries.conditions(value, info, ("likelihood", "conditions"), MOST))

    @model_validator(mode="after")
    def _compared(self, info: ValidationInfo) -> LikelihoodPlan:
        if self.models and Condition("none") not in self.conditions:
            raise refuse(info, ("likelihood", "conditions"), entries.NEEDS_NONE)
        for condition in self.conditions:
            if condition.decode:
                told = f"must not have {condition.label!r}: it changes how a model decodes, and reading a text decodes nothing"
                raise refuse(info, ("likelihood", "conditions"), told)
        return self


@guarded
@dataclass(frozen=True, config=STRICT)
class ForcedPlan:
    """Models that are measured by the likelihood of the true answers; those not installed are skipped with a word."""

    models: Annotated[
        tuple[Text, ...], Field(max_length=MOST, description="a list of models"), AfterValidator(entries.each_once)
    ] = ()
    problems: Whole2 = 20  # of each task
    # Shares of the answer that a diffusion model finds masked; an autoregressive one has the chain rule.
    levels: Annotated[
        tuple[Annotated[float, Field(strict=True, gt=0, le=1)], ...],
        Field(min_length=1, max_length=MOST, description="a list of shares above 0, at most 1"),
    ] = (0.25, 0.5, 0.75, 1.0)
    # With the kind of models it is for: all, causal, diffusion.
    conditions: SkipValidation[tuple[tuple[Condition, str], ...]] = ()

    @field_validator("conditions", mode="before")
    @classmethod
    def _conditions(cls, value: Any, info: ValidationInfo) -> Any:
        return tuple(entries.conditions(value, info, ("forced", "conditions"), MOST))

    @model_validator(mode="after")
    def _compared(self, info: ValidationInfo) -> ForcedPlan:
        if self.models and (Condition("none"), "all") not in self.conditions:
            raise refuse(info, ("forced", "conditions"), entries.NEEDS_NONE)
        return self
