"""A unit that asks what a model is: everything that the plan must know before it can be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.decoding import resolve_settings
from sinkscope.decoding.cost import Workload
from sinkscope.decoding.settings import Decode
from sinkscope.errors import CheckpointError, DecodeError, StudyError
from sinkscope.models.model import Model
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, ModelInfo, Unit, UnitKind, conditions_for
from sinkscope.study.units.worker import model_for


class FactsKind(UnitKind):
    """Settings that do not fit a model are told here, before anything runs."""

    name = "facts"
    order = 0

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        return []  # asked before there is a plan

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        return []  # the model is loaded, and not run

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """A model that is measured by likelihood is an extra: one that is not installed is reported, and no error."""
        unit = job.unit
        try:
            model = model_for(study, unit)
            model.require_tokenizer()
        except CheckpointError as error:
            if unit.model not in study.models:
                return {"left_out": str(error)}
            raise
        if unit.model in study.likelihood.models and not model.causal:
            raise StudyError(f"Expected autoregressive models in likelihood, got {unit.model}; put it under forced.")
        identity = {**model.identity(), "name": unit.shown}
        info = model_info(study, model, unit.model, identity)
        for condition in conditions_for(study, info) if info.answers else ():
            for setting in info.settings if condition.decode else ():
                try:
                    Decode.from_dict({**info.settings[setting], **condition.decode})
                except DecodeError as error:
                    told = f"The condition {condition.label} does not go with {info.asked}: {str(error).rstrip('.')}"
                    raise StudyError(f"{told}; leave one of them out, or say for which models it is (for:).") from None
        return info.to_dict()


def model_info(study: Study, model: Model, asked: str, identity: dict[str, Any]) -> ModelInfo:
    """What a plan must know of a model; it need not have weights."""
    likelihood = asked in (*study.likelihood.models, *study.forced.models)
    settings: dict[str, dict[str, Any]] = {}
    for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
        made = resolve_settings(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
        if made not in settings.values():  # decoding from left to right has no blocks: a sweep of them is one point
            settings[label] = made
    traced_only = asked in study.trace.models
    return ModelInfo(
        asked, identity["name"], model.causal, model.family.name, identity, settings, likelihood, traced_only
    )
