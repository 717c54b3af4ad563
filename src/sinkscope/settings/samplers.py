"""What the constructors of `Decode` have in common: a word that a sampler does not take is told in one sentence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sinkscope.aliases import DECODE, translated
from sinkscope.errors import DecodeError

Make = TypeVar("Make", bound=Callable[..., Any])


def sampler(make: Make) -> Make:
    """For under @classmethod: words that are unknown, given twice, missing, or set by the sampler itself."""
    takes = inspect.signature(make)

    @functools.wraps(make)
    def told(kind: type, *values: Any, **words: Any) -> Any:
        decoder = "native" if make.__name__ == "diffusion_gemma" else make.__name__
        words = translated(words, DECODE, DecodeError, decoder)
        try:
            takes.bind(kind, *values, **words)
            return make(kind, *values, **words)
        except TypeError as error:
            # What Python says of a call names the argument: "got an unexpected keyword argument 'lenght'".
            why = str(error).partition("() ")[2] or str(error)
            raise DecodeError(
                f"Expected Decode.{make.__name__}({_shown(takes)}) and further fields of Decode, but it {why}."
            ) from None

    return cast(Make, told)


def _shown(takes: inspect.Signature) -> str:
    names = [name for name, one in takes.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return ", ".join([*names[1:], "…"])
