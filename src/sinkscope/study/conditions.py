"""An entry of a study file becomes conditions; a mistake is told with its place in the file."""

from __future__ import annotations

from sinkscope.interventions.conditions import MODELS, Condition, condition_from_dict, read_entry
from sinkscope.interventions.settings import SettingError
from sinkscope.study.reader import Fields, among

__all__ = ["MODELS", "Condition", "condition_from_dict", "read_condition"]


def read_condition(given: Fields) -> list[tuple[Condition, str]]:
    """An entry of a study file: every list in it is a sweep; with the kind of models that it is for."""
    models = given.take("for", "all", among(MODELS), f"one of {', '.join(MODELS)}")
    try:
        return [(condition, models) for condition in read_entry(given.left)]
    except SettingError as error:
        raise given.error(error.field, str(error)) from None
