"""Random numbers of a decoder: the authors' stream to the last bit, or one that no other row can disturb.

Both draw on the CPU, whatever the device of the model. The authors' code draws on the GPU it runs on, so `reference` gives
their tokens on a CPU only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from sinkscope.decoding.settings import Decode

CHUNK = 1 << 21  # numbers drawn at a time while a stream is walked


class Noise(ABC):
    """`where`: flat indices into [batch × position], in increasing order; `frame` says how many positions a row has."""

    generators: list[torch.Generator]  # one for the batch, or one per row

    def __init__(self, positions: int) -> None:
        self.positions = positions

    def frame(self, positions: int) -> None:
        self.positions = positions

    def begin_step(self) -> None:  # noqa: B027 - most count no steps
        pass

    def end_step(self, vocabulary: int) -> None:  # noqa: B027
        pass

    def draw(self, probabilities: Tensor, where: Tensor) -> Tensor:
        """[n, vocabulary] → [n]: the largest of p / Exponential(1) is a draw from p, the same in any chunk."""
        waiting = exponential(self.token_uniform(where.to(probabilities.device), probabilities.shape[-1]))
        return (probabilities.to(waiting.device, torch.float64) / waiting).argmax(-1)

    @abstractmethod
    def token_uniform(self, where: Tensor, vocabulary: int) -> Tensor: ...  # [n, vocabulary] float64
    def canvas_uniform(self, where: Tensor) -> Tensor:
        """[n] float32, of a draw over the whole canvas; a row that is done draws nothing while it waits for the others."""
        return self.uniform(where)

    @abstractmethod
    def uniform(self, where: Tensor) -> Tensor: ...  # [n] float32
    @abstractmethod
    def whole(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...  # [batch, position, …]
    @abstractmethod
    def subset(self, weights: Tensor, count: int) -> Tensor: ...  # [batch, position] → [batch, count]
    @abstractmethod
    def binomial(self, row: int, count: Tensor, share: Tensor) -> Tensor: ...  # float64 numbers → one


class ReferenceNoise(Noise):
    """One CPU generator for the whole batch, used in the order of the authors' code.

    LLaDA's code draws a number for every entry of [batch, position, vocabulary]. The stream is walked in
    chunks here and only the rows that are needed are kept, so memory stays that of the needed rows.
    """

    def __init__(self, seed: int, batch: int, positions: int) -> None:
        super().__init__(positions)
        self.generators = [torch.Generator().manual_seed(seed)]
        self.generator = self.generators[0]
        self.batch, self.cursor = batch, 0

    def begin_step(self) -> None:
        self.cursor = 0

    def token_uniform(self, where: Tensor, vocabulary: int) -> Tensor:
        kept = torch.empty(len(where), vocabulary, dtype=torch.float64)
        for slot, flat in enumerate(where.tolist()):
            self._skip(flat - self.cursor, vocabulary)
            torch.rand(vocabulary, dtype=torch.float64, generator=self.generator, out=kept[slot])
            self.cursor = flat + 1
        return kept

    def end_step(self, vocabulary: int) -> None:
        self._skip(self.batch * self.positions - self.cursor, vocabulary)
        self.cursor = self.batch * self.positions

    def _skip(self, rows: int, vocabulary: int) -> None:
        left = rows * vocabulary
        while left > 0:
            torch.rand(min(left, CHUNK), dtype=torch.float64, generator=self.generator)
            left -= CHUNK

    def canvas_uniform(self, where: Tensor) -> Tensor:
        return torch.rand(self.batch * self.positions, generator=self.generator)[where.cpu()]

    def uniform(self, where: Tensor) -> Tensor:
        return torch.rand(len(where), generator=self.generator)

    def whole(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(*shape, dtype=dtype, generator=self.generator)

    def draw(self, probabilities: Tensor, where: Tensor) -> Tensor:
        # Normalised first, and with replacement, as torch.distributions.Categorical does.
        shares = probabilities.cpu() / probabilities.cpu().sum(-1, keepdim=True)
        return torch.multinomial(shares, 1, replacement=True, generator=self.generator).squeeze(-1)

    def subset(self, weights: Tensor, count: int) -> Tensor:
        return torch.multinomial(weights.cpu(), count, generator=self.generator)

    def binomial(self, row: int, count: Tensor, share: Tensor) -> Tensor:
        return torch.binomial(count, share, generator=self.generator)


class RowNoise(Noise):
    """A generator per row, all with the same seed: a row's numbers do not depend on its neighbours or its padding."""

    def __init__(self, seed: int, padding: Tensor, positions: int) -> None:
        super().__init__(positions)
        self.padding = padding.tolist()  # [batch]: padded columns at the left of each row
        self.generators = [torch.Generator().manual_seed(seed) for _ in self.padding]

    def _by_row(self, where: Tensor, *shape: int, dtype: torch.dtype) -> Tensor:
        counts = torch.bincount(where // self.positions, minlength=len(self.generators)).tolist()
        parts = [
            torch.rand(count, *shape, dtype=dtype, generator=generator)
            for count, generator in zip(counts, self.generators, strict=True)
        ]
        return torch.cat(parts)

    def token_uniform(self, where: Tensor, vocabulary: int) -> Tensor:
        return self._by_row(where.cpu(), vocabulary, dtype=torch.float64)

    def uniform(self, where: Tensor) -> Tensor:
        return self._by_row(where.cpu(), dtype=torch.float32)

    def whole(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A row draws for its real positions, the last ones."""
        numbers = torch.full(tuple(shape), 0.5, dtype=dtype)
        for row, (generator, padded) in enumerate(zip(self.generators, self.padding, strict=True)):
            count = min(self.positions - padded, shape[1])
            numbers[row, shape[1] - count :] = torch.rand(count, *shape[2:], dtype=dtype, generator=generator)
        return numbers

    def subset(self, weights: Tensor, count: int) -> Tensor:
        rows = [
            padded + torch.multinomial(row[padded:], count, generator=generator)
            for row, padded, generator in zip(weights.cpu(), self.padding, self.generators, strict=True)
        ]
        return torch.stack(rows)

    def binomial(self, row: int, count: Tensor, share: Tensor) -> Tensor:
        return torch.binomial(count, share, generator=self.generators[row])


def exponential(uniform: Tensor) -> Tensor:
    """Uniform numbers as exponential ones, in place."""
    return uniform.neg_().log1p_().neg_().clamp_(min=1e-300)


def noise_of(settings: Decode, shape: Sequence[int], padding: Tensor) -> Noise:
    """The noise that the settings name, for a canvas [batch, position]; padding: [batch], at the left."""
    if settings.noise == "reference":
        return ReferenceNoise(settings.seed, *shape)
    return RowNoise(settings.seed, padding, shape[1])
