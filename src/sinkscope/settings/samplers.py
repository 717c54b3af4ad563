"""What the constructors of `Decode` have in common: arguments become settings, and a word that is none is told in one sentence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from sinkscope.aliases import DECODE, translated
from sinkscope.errors import DecodeError

if TYPE_CHECKING:
    from sinkscope.settings.decode import Decode

Given = ParamSpec("Given")


def sampler(
    make: Callable[Concatenate[Any, Given], dict[str, Any]],
) -> Callable[Concatenate[type[Decode], Given], Decode]:
    """For under @classmethod. `make` gives the settings beside its arguments, its further words among them.

    The family is called as the constructor, unless it says another. Words that are unknown, given twice, missing, or set by
    the sampler itself are refused.
    """
    takes = inspect.signature(make)
    shown = [name for name, one in takes.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD][1:]

    @functools.wraps(make)
    def made(kind: Any, *values: Any, **words: Any) -> Any:
        decoder = "native" if make.__name__ == "diffusion_gemma" else make.__name__
        words = translated(words, DECODE, DecodeError, decoder)
        try:
            given = takes.bind(kind, *values, **words)
            if "family" in words:
                raise TypeError("got multiple values for argument 'family'")
            given.apply_defaults()
            known = {field.name for field in fields(kind)} & set(given.arguments)
            settings = {"family": make.__name__, **{name: _tuple(name, given.arguments[name]) for name in known}}
            return kind(**{**settings, **make(kind, *values, **words)})
        except TypeError as error:
            # What Python says of a call names the argument: "got an unexpected keyword argument 'lenght'".
            why = str(error).partition("() ")[2] or str(error)
            raise DecodeError(
                f"Expected Decode.{make.__name__}({', '.join([*shown, '…'])}) and further fields of Decode, but it {why}."
            ) from None

    return made


def _tuple(name: str, value: Any) -> Any:
    """Token ids in any sequence as a tuple; what is none stays as it is, and is refused with the other values."""
    if name not in ("stop_ids", "guidance_keep", "suppress", "begin_suppress", "suffix"):
        return value
    return tuple(value) if isinstance(value, Sequence) else () if value is None else value
