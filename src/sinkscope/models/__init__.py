"""A checkpoint becomes a Model: one class per family, found by config.json, never by name."""

from sinkscope.models.family import Family, register
from sinkscope.models.load import load
from sinkscope.models.model import Model, pad

__all__ = ["Family", "Model", "load", "pad", "register"]
