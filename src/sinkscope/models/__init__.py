"""A checkpoint becomes a Model: one file a family, found by config.json, never by name."""

from sinkscope.models.base import Model, pad
from sinkscope.models.family import Family
from sinkscope.models.load import load, register

__all__ = ["Family", "Model", "load", "pad", "register"]
