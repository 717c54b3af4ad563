"""A unit of work: the smallest piece that is run, stored and never run again; and what a plan must know of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from sinkscope.interventions.conditions import Condition, condition_from_dict
from sinkscope.settings.decode import Decode

LONGEST_FILE_NAME = 150  # bytes of a file's name, with room for what is put behind it


@dataclass(frozen=True)
class ModelInfo:
    """What the plan must know of a model, found by loading it once."""

    asked: str  # as the study names it
    name: str  # as results show it
    causal: bool
    family: str
    identity: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]  # label of a point of the sweep → Decode as a dict
    likelihood: bool = False  # measured by likelihood, not by answers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Unit:
    """One piece: a chunk of problems of one task, under one condition, with one model and setting."""

    kind: str
    model: str  # as the study names it
    condition: Condition
    setting: str = ""
    task: str = ""
    first: int = 0
    last: int = 0  # problems [first, last) in the order of their length
    chunk: int = 0
    decode: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ""  # the model as results show it

    @cached_property
    def id(self) -> str:
        """A name for files; says everything that tells units of one study apart."""
        parts = (self.kind, self.shown, self.setting, self.condition.key, self.task, f"{self.chunk:03d}")
        text = "__".join(part for part in parts if part)
        name = "".join(sign if sign.isalnum() or sign in "-._=" else "-" for sign in text)
        if len(name.encode()) <= LONGEST_FILE_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]  # of the whole
        return f"{name.encode()[: LONGEST_FILE_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"

    @cached_property
    def decoder(self) -> Decode:
        """The decode settings, checked."""
        return Decode.from_dict(dict(self.decode))

    def to_dict(self) -> dict[str, Any]:
        # By hand: `asdict` copies every setting of the decoder, and a driver does this for thousands of units per second.
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**plain, "condition": self.condition.to_dict(), "decode": dict(self.decode)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unit:
        return cls(**{**values, "condition": condition_from_dict(values["condition"])})
