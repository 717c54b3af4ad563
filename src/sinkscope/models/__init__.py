"""A checkpoint becomes a Model: one file per family, found by config.json, never by name."""

from sinkscope.models.base import Model, pad
from sinkscope.models.family import Family, register
from sinkscope.models.load import load

__all__ = ["Family", "Model", "load", "pad", "register"]
