"""A unit that asks what a model is: everything that the plan must know before it can be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.decoding import fitted
from sinkscope.errors import CheckpointError, StudyError
from sinkscope.study.schema import Study
from sinkscope.study.unit import Facts, Unit
from sinkscope.study.units.base import Kind
from sinkscope.study.units.given import model_for


class FactsKind(Kind):
    """Settings that do not fit a model are told here, before anything runs."""

    name = "facts"
    order = 0

    def plan(self, study: Study, fact: Facts) -> list[Unit]:
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
        if likelihood and not model.causal:
            raise StudyError(
                f"The likelihood of text is measured of autoregressive models, and {unit.model} is a diffusion model."
            )
        settings: dict[str, dict[str, Any]] = {}
        for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
            made = fitted(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
            if made not in settings.values():  # decoding from left to right has no blocks: a sweep of them is one point
                settings[label] = made
        identity = {**model.identity(), "name": unit.shown}
        return Facts(unit.model, unit.shown, model.causal, model.family, identity, settings, likelihood).to_dict()
