"""Settings that check themselves: a frozen dataclass whose constructor refuses what does not fit in one sentence.

`@settings(SomeError)` above a class is all: pydantic checks each field by its annotation, and this module is the only place
that puts a pydantic error into words. Study files and constructors so accept and refuse the same values.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, fields
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.errors import SinkscopeError

T = TypeVar("T")
Location = tuple[str | int, ...]

# Name of a checked class → its fields, each with its annotation as text: what a wrong name of a field may have meant.
_FIELDS: dict[str, dict[str, str]] = {}
LARGEST = 2**63 - 1  # whole number that a tensor holds
LARGEST_FLOAT = 3e38

# ---- types of fields: whole numbers and truths are strict, so that True is no 1 and "3" no 3

Truth = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True, ge=-LARGEST, le=LARGEST)]
FromZero = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Count = Annotated[int, Field(strict=True, ge=1, le=1 << 24)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=LARGEST_FLOAT, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, le=LARGEST_FLOAT, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


Text = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_not_blank)]


class FieldError(ValueError):
    """A mistake that a check of our own found: what the field must be, and where below it the wrong value stands."""

    def __init__(self, sentence: str, *path: int | str) -> None:
        super().__init__(sentence)
        self.path = path


@contextmanager
def as_field(*path: int | str) -> Iterator[None]:
    """What another part of the package refuses is a mistake in this field."""
    try:
        yield
    except FieldError as error:
        raise FieldError(str(error), *path, *error.path) from None
    except ValidationError as error:
        words, inner = first_mistake(error)
        raise FieldError(words, *path, *inner) from None
    except (SinkscopeError, TypeError, RuntimeError) as error:
        raise FieldError(f"is wrong: {str(error).rstrip('.')}", *path) from None


def suggest(name: object, known: Iterable[str]) -> str:
    """What a name that is not known may have meant, or all that are known."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(error: type[SinkscopeError]) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass whose fields are checked; a class decorator.

    Args:
        error: Error class that the constructor raises, with one sentence, if a field is wrong.
    """

    def decorate(cls: type[T]) -> type[T]:
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        checked: Any = dataclass(frozen=True, config=config)(cls)
        _FIELDS[cls.__name__] = {one.name: str(one.type) for one in fields(checked)}
        construct = checked.__init__
        positional = [one.name for one in fields(checked) if one.init and not one.kw_only]

        @functools.wraps(construct)
        def init(self: Any, *args: Any, **words: Any) -> None:
            try:
                if len(args) > len(positional) or set(words) & set(positional[: len(args)]):
                    construct(self, *args, **words)  # which says what argument is one too many
                construct(self, **dict(zip(positional, args, strict=False)), **words)
            except ValidationError as wrong:
                raise error(sentence(wrong, type(self).__name__)) from None

        checked.__init__ = init
        made: type[T] = checked
        return made

    return decorate


def validate(
    kind: Any, values: Any, where: str, error: type[SinkscopeError], lines: Mapping[Location, int] | None = None
) -> Any:
    """Plain values as `kind`: a checked dataclass, an annotated type or its adapter; `lines` are those of a file's values."""
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(values)
    except ValidationError as wrong:
        raise error(sentence(wrong, where, lines)) from None


def sentence(wrong: ValidationError, where: str, lines: Mapping[Location, int] | None = None) -> str:
    """The first mistake: FILE, line N: FIELD must be ALLOWED, got VALUE."""
    words, path = first_mistake(wrong)
    known = lines or {}
    line = next((known[path[:n]] for n in range(len(path), -1, -1) if path[:n] in known), None)
    place = where if line is None else f"{where}, line {line}"
    return f"{place}: {write_path(path) or 'it'} {words}{'' if words.endswith('?') else '.'}"


def first_mistake(wrong: ValidationError) -> tuple[str, Location]:
    """What must be instead, and where it stands."""
    problems = wrong.errors()
    # A wrong name first: what is said to be missing may stand under it.
    problem = next((one for one in problems if one["type"] == "unexpected_keyword_argument"), problems[0])
    path: Location = tuple(problem["loc"])
    match problem["type"]:
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"needs the field {path[-1]!r}", path[:-1]
        case "unexpected_keyword_argument":
            return f"is not a field that is known here; {_field_advice(wrong.title, path)}", path
        case "unexpected_positional_argument":
            return "is not a field that is known here; correct its name, or leave it out", path
        case "dataclass_type" | "mapping_type" | "dict_type":
            return f"must be a mapping of fields, got {show_value(problem['input'])}", path
        case "value_error":
            cause = problem["ctx"]["error"]
            return str(cause).rstrip("."), (*path, *getattr(cause, "path", ()))
    expected = re.sub("^.* should ", "must ", problem["msg"]).replace("valid tuple", "list")
    return f"{expected}, got {show_value(problem['input'])}", path


def _field_advice(title: str, path: Location) -> str:
    """What a wrong name of a field may have meant: one of like spelling, or one that stands elsewhere."""
    name, own = str(path[-1]), _FIELDS.get(title, {})
    if len(path) == 1 and own:
        owners = [owner for owner, known in _FIELDS.items() if name in known]
        places = [field for field, kind in own.items() if any(re.search(rf"\b{owner}\b", kind) for owner in owners)]
        if places:
            return f"it stands inside {' or '.join(places[:3])}"
        close = difflib.get_close_matches(name, own, n=1)
    else:
        inside = [kind for known in _FIELDS.values() for kind in known]
        close = difflib.get_close_matches(name, dict.fromkeys(inside), n=1)
    return f"did you mean {close[0]}?" if close else "correct its name, or leave it out"


def write_path(path: Location) -> str:
    """A path as text, such as conditions[2].k."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def show_value(value: object, most: int = 120) -> str:
    """A wrong value as a sentence repeats it: text in quotes, a number as it is; neither longer than is worth reading."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # it holds a number with more digits than Python writes
        return f"a {type(value).__name__} with a number that is too long to write"
    return text if len(text) <= most else f"{text[: most - 3]}…"


# ---- setting names of transformers and of the models' authors, and ours for each; docs/reference/words.md


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NAMES = {
    # of a decoder
    "max_new_tokens": "length",
    "gen_length": "length",
    "block_length": "block",
    "remasking": "confidence",
    "cfg_scale": "guidance",
    "alg": "algorithm",
    "alg_temp": "algorithm_temperature",
    "eps": "epsilon",
    "logits_eos_inf": "forbid_eos",
    "confidence_eos_eot_inf": "late_eos",
    # of `load`
    "torch_dtype": "dtype",
    "device_map": "device",
}
VALUES = {"remasking": {"low_confidence": "probability"}}


def rename_settings(settings: Mapping[str, Any], error: type[SinkscopeError]) -> dict[str, Any]:
    """The same settings under our names alone."""
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        ours = NAMES.get(name, name)
        if ours in renamed or (ours != name and ours in settings):
            raise error(f"{name} and {ours} are the same setting; give one of them.")
        values = VALUES.get(name, {})
        renamed[ours] = values.get(value, value) if isinstance(value, str) else value
    return renamed
