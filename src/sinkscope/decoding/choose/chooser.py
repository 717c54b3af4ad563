"""What a chooser is: the logits of some positions in, a token for each and how sure it is out."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sinkscope.decoding.noise import Noise
from sinkscope.settings import Decode

CHOICES: dict[str, type[Chooser]] = {}


class Chooser:
    """Chooses tokens in one generation. Subclass, write `choose`, and put `@register("name")` above it."""

    def __init__(self, settings: Decode, noise: Noise, eos_id: int | None, eot_id: int | None) -> None:
        self.settings, self.noise = settings, noise
        self.eos_id, self.eot_id = eos_id, eot_id

    @property
    def whole(self) -> bool:
        """Whether all positions must come in one call, because the authors' draw is one call."""
        return False

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """logits [n, vocab] at flat positions `where` [n] of the noise's frame → candidates [n], confidence [n]."""
        raise TypeError(f"{type(self).__name__} must choose")

    def begin(self) -> None:
        """Called before the positions of a step."""
        self.noise.begin_step()

    def end(self, vocabulary: int) -> None:
        """Called after the positions of a step."""


def register(name: str) -> Callable[[type[Chooser]], type[Chooser]]:
    def put(chooser: type[Chooser]) -> type[Chooser]:
        CHOICES[name] = chooser
        return chooser

    return put


def choice_of(settings: Decode) -> type[Chooser]:
    usual = "draw" if settings.family in ("dream", "autoregressive") else "gumbel"
    return CHOICES[settings.choice or usual]
