"""What the constructors of `Decode` have in common: arguments become settings, and a word that is none is told in one sentence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

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
    shown = [name for name, one in takes.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]

    @functools.wraps(make)
    def made(kind: Any, *values: Any, **words: Any) -> Any:
        decoder = "native" if make.__name__ == "diffusion_gemma" else make.__name__
        words = translated(words, DECODE, DecodeError, decoder)
        try:
            given = takes.bind(kind, *values, **words)
            if "family" in words:
                raise TypeError("got multiple values for argument 'family'")
            given.apply_defaults()
            own = {field.name: given.arguments[field.name] for field in fields(kind) if field.name in given.arguments}
            return kind(**{"family": make.__name__, **own, **make(kind, *values, **words)})
        except TypeError as error:
            # What Python says of a call names the argument: "got an unexpected keyword argument 'lenght'".
            why = str(error).partition("() ")[2] or str(error)
            raise DecodeError(
                f"Expected Decode.{make.__name__}({', '.join([*shown, '…'])}) and further fields of Decode, but it {why}."
            ) from None

    made.__signature__ = takes.replace(return_annotation="Decode")  # type: ignore[attr-defined]  # for help()
    return cast("Callable[Concatenate[type[Decode], Given], Decode]", made)
