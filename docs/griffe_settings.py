"""Griffe learns which classes are dataclasses, and writes types without the validators in them."""

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

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Write the types of fields and parameters plainly, before dataclasses get their constructors."""
        write_types(pkg)


def write_types(part: griffe.Object) -> None:
    """Replace the types in a module or class, and in all that it has."""
    for member in part.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            for parameter in member.parameters:
                parameter.annotation = plain_type(parameter.annotation, part)
        elif member.is_attribute:
            member.annotation = plain_type(member.annotation, part)
        else:
            write_types(member)


def plain_type(annotation: Any, part: griffe.Object) -> Any:
    """A type without validators: `Count`, which is Annotated[int, …], becomes int; dimensions of tensors stay."""
    match annotation:
        case griffe.ExprBinOp(left, operator, right):
            return griffe.ExprBinOp(plain_type(left, part), operator, plain_type(right, part))
        case griffe.ExprSubscript(griffe.ExprName("Annotated"), griffe.ExprTuple([first, note, *_])):
            return annotation if isinstance(note, str) else plain_type(first, part)
        case griffe.ExprSubscript(griffe.ExprName("tuple" as outer), griffe.ExprTuple(elements)):
            plain = [plain_type(one, part) for one in elements]
            return griffe.ExprSubscript(griffe.ExprName(outer), griffe.ExprTuple(plain, implicit=True))
        case griffe.ExprName():
            return alias_of(annotation, part)
    return annotation


def alias_of(name: griffe.ExprName, part: griffe.Object) -> Any:
    """What a name stands for, if it names a checked type or a choice of values; else the name."""
    try:
        found = part.modules_collection[name.canonical_path]
        value = (found.final_target if found.is_alias else found).value
    except (KeyError, AttributeError, griffe.GriffeError):
        return name
    match value:
        case griffe.ExprSubscript(griffe.ExprName("Annotated" | "Literal")):
            return plain_type(value, part)
    return name
