"""What the fields of a recipe may be: pydantic checks them, from a file or in code, and a mistake is one sentence."""

from __future__ import annotations

import functools
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from lab.errors import TrainingError
from sinkscope.files import MB, parse_yaml, read_text, short

Made = TypeVar("Made")
PLAIN = ConfigDict(extra="forbid")


def whole(least: int, most: int) -> Any:
    words = f"a whole number of at least {least} and at most {most}"
    return Field(strict=True, ge=least, le=most, description=words)


def number(low: float, high: float, above: bool = False) -> Any:
    """above: low itself is too small."""
    words = f"a number above {low:g} and at most {high:g}" if above else f"a number from {low:g} to {high:g}"
    least: dict[str, Any] = {"gt": low} if above else {"ge": low}
    return Field(strict=True, le=high, allow_inf_nan=False, description=words, **least)


def _plain(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError
    return value


def _file_name(value: str) -> str:
    if len(value.encode()) > 150 or any(part in value for part in ("/", "\\", "..")):
        raise ValueError
    return value


Text = Annotated[str, Field(strict=True, max_length=1000, description="a plain word"), AfterValidator(_plain)]
Name = Annotated[
    Text, Field(description="a plain file name without slashes and '..'"), AfterValidator(_file_name)
]  # fmt: skip
Seed = Annotated[int, whole(0, 2**32 - 1)]
Count = Annotated[int, whole(1, 1 << 30)]
Rows = Annotated[int, whole(1, 1 << 16)]
Share = Annotated[float, number(0, 1)]
Weight = Annotated[float, number(0, 1000)]


def recipe_part(kind: type[Made]) -> type[Made]:
    """The constructor of a checked dataclass raises TrainingError, as a file does."""
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **words: Any) -> None:
        try:
            plain(self, *args, **words)
        except ValidationError as error:
            raise TrainingError(_sentence(error, kind)) from None

    kind.__init__ = init  # type: ignore[method-assign]
    return kind


def made(kind: type[Made], values: Any, where: str) -> Made:
    """A recipe of plain values; the first mistake is reported with the file or folder that it stands in."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise TrainingError(f"{where}: {_sentence(error, kind)}") from None
    except TrainingError as error:
        raise TrainingError(f"{where}: {error}") from None


def _sentence(error: ValidationError, kind: Any) -> str:
    """The field by its path, what was expected there, and what came."""
    problems = error.errors()
    problem = next((one for one in problems if one["type"] == "unexpected_keyword_argument"), problems[0])
    path, holder, expected, value = [], kind, "a recipe", problem["input"]
    for part in problem["loc"]:
        known = getattr(holder, "__pydantic_fields__", {})
        if part not in known:  # an entry of a list or a mapping, or no field at all
            break
        path.append(str(part))
        expected = known[part].description or expected
        inner = known[part].annotation
        if not hasattr(inner, "__pydantic_fields__"):
            break
        holder = inner
    name = ".".join(path) or "the recipe"
    match problem["type"]:
        case "missing":
            return f"the recipe is not complete: {name} is missing, {expected}; fix the recipe."
        case "unexpected_keyword_argument" | "unexpected_positional_argument":
            unknown = sorted({short(str(one["loc"][-1]), 60) for one in problems if one["type"] == problem["type"]})
            some = f"{', '.join(unknown[:5])}{', …' if unknown[5:] else ''}"
            return f"{name} has unknown fields {some}; known are {', '.join(one.name for one in fields(holder))}."
        case "dataclass_type" | "dict_type":
            return f"{name} must be a mapping of fields, not {short(repr(value), 80)}; fix the recipe."
    return f"{name} must be {expected}, not {short(repr(value), 80)}; fix the recipe."


def read_yaml(path: Path) -> Any:
    """The plain values of a recipe file, bounded as study files are."""
    text = read_text(path, TrainingError, MB)
    return parse_yaml(text, short(str(path)), TrainingError)[0]
