"""Griffe learns that a class with typed fields and no constructor of its own is a dataclass, whatever decorates it."""

from __future__ import annotations

from typing import Any

import griffe


class DataclassName(griffe.ExprName):
    """The name of the standard decorator, wherever it stands."""

    @property
    def canonical_path(self) -> str:
        return "dataclasses.dataclass"


class SettingsExtension(griffe.Extension):
    """`validation.settings`, and bases that apply it to their subclasses, make dataclasses."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Mark classes that have fields, or that may inherit some."""
        has_fields = any(
            member.is_attribute and member.annotation is not None and "instance-attribute" in member.labels
            for member in cls.members.values()
        )
        is_settings = has_fields and cls.decorators  # typed class attributes alone make no constructor
        if (is_settings or cls.bases) and "__init__" not in cls.members:
            cls.decorators.append(griffe.Decorator(DataclassName("dataclass"), lineno=cls.lineno, endlineno=cls.lineno))
