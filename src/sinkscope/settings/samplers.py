"""What the constructors of `Decode` have in common: a word that a sampler does not take is told in one sentence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sinkscope.errors import DecodeError

Words = ParamSpec("Words")
Made = TypeVar("Made")


def sampler(make: Callable[Concatenate[type[Made], Words], Made]) -> Callable[Concatenate[type[Made], Words], Made]:
    """For under @classmethod: words that are unknown, given twice, missing, or set by the sampler itself."""
    takes = inspect.signature(make)

    @functools.wraps(make)
    def told(kind: type[Made], *values: Words.args, **words: Words.kwargs) -> Made:
        try:
            takes.bind(kind, *values, **words)
            return make(kind, *values, **words)
        except TypeError as error:
            # What Python says of a call names the argument: "got an unexpected keyword argument 'lenght'".
            why = str(error).partition("() ")[2] or str(error)
            raise DecodeError(
                f"Expected Decode.{make.__name__}({_shown(takes)}) and further fields of Decode, but it {why}."
            ) from None

    return told


def _shown(takes: inspect.Signature) -> str:
    names = [name for name, one in takes.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return ", ".join([*names[1:], "…"])
