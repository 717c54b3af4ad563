"""A unit that asks what a model is: everything that the plan must know before it can be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.decoding import resolve_settings
from sinkscope.errors import CheckpointError, DecodeError, StudyError
from sinkscope.settings.decode import Decode
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit
from sinkscope.study.units.base import Kind, decode_of, wanted
from sinkscope.study.units.given import model_for


class FactsKind(Kind):
    """Settings that do not fit a model are told here, before anything runs."""

    name = "facts"
    order = 0

    def plan(self, study: Study, fact: ModelInfo) -> list[Unit]:
        return []  # asked before there is a plan

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """A model that is measured by likelihood is an extra: one that is not installed is reported, and no error."""
        likelihood = unit.model not in study.models
        try:
            model = model_for(study, unit)
            model.require_tokenizer()
        except CheckpointError as error:
            if likelihood:
                return {"left_out": str(error)}
            raise
        if unit.model in study.likelihood.models and not model.causal:
            raise StudyError(
                f"The likelihood of text is measured of autoregressive models, and {unit.model} is a diffusion model."
            )
        settings: dict[str, dict[str, Any]] = {}
        for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
            made = resolve_settings(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
            if made not in settings.values():  # decoding from left to right has no blocks: a sweep of them is one point
                settings[label] = made
        identity = {**model.identity(), "name": unit.shown}
        facts = ModelInfo(unit.model, unit.shown, model.causal, model.family, identity, settings, likelihood)
        _check_conditions(study, facts)
        return facts.to_dict()


def _check_conditions(study: Study, facts: ModelInfo) -> None:
    """Conditions that change the decode settings must fit those of this model."""
    for condition in () if facts.likelihood else wanted(study, facts):
        for setting in facts.settings if condition.decode else ():
            try:
                Decode.from_dict(decode_of(facts, setting, condition))
            except DecodeError as error:
                raise StudyError(
                    f"The condition {condition.label} does not go with {facts.asked}: {str(error).rstrip('.')}; "
                    "leave one of them out, or limit the condition with for: causal or for: diffusion."
                ) from None
