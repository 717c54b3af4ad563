"""How logits become commits: random numbers, the token that is chosen and how sure it is, and which positions take theirs.

Random numbers are the authors' stream to the last bit, or one that no other row can disturb. Both are drawn on the CPU, whatever
the device of the model. The authors' code draws on the GPU it runs on, so `reference` gives their tokens on a CPU only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.errors import DecodeError
from sinkscope.registry import Registry

if TYPE_CHECKING:
    from sinkscope.decoding.loop import Denoiser
    from sinkscope.decoding.settings import Decode

CHUNK = 1 << 21  # numbers drawn at a time while a stream is walked


# ---- random numbers


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


# ---- which token, and how sure it is


class Chooser:
    """Chooses tokens in one generation; a subclass writes `choose`."""

    def __init__(self, settings: Any, noise: Noise, eos_id: int | None, eot_id: int | None) -> None:
        self.settings, self.noise = settings, noise
        self.eos_id, self.eot_id = eos_id, eot_id

    @property
    def whole(self) -> bool:
        """Whether all positions must come in one call, because the authors' draw is one call."""
        return False

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """logits [n, vocab] at flat positions `where` [n] of the noise's frame → candidates [n], confidence [n]."""
        raise TypeError(f"{type(self).__name__} must choose")

    def end(self, vocabulary: int) -> None:
        """Called after the positions of a step."""


class Draw(Chooser):
    """Dream's choice, and a sampled ARM's: top_p first, then top_k."""

    @property
    def whole(self) -> bool:
        # The authors' draw is one call over all rows: torch gives other numbers if it is split.
        return bool(self.settings.temperature > 0 and self.settings.noise == "reference")

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        sampled = settings.temperature > 0
        if sampled:
            logits = logits / settings.temperature
        logits = self.cut(logits)
        probabilities = logits.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
        chosen = self.noise.draw(probabilities, where).to(logits.device) if sampled else probabilities.argmax(-1)
        return chosen, confidence_of(probabilities, chosen, settings.confidence)

    def cut(self, logits: Tensor) -> Tensor:
        return truncated(logits, self.settings.top_p, self.settings.top_k)


class BlockDraw(Draw):
    """LLaDA2's and SDAR's: top_k first, then top_p among what is left; at temperature 0 nothing is cut."""

    def cut(self, logits: Tensor) -> Tensor:
        if self.settings.temperature == 0:
            return logits
        return truncated(truncated(logits, None, self.settings.top_k), self.settings.top_p, None)


class Likeliest(Chooser):
    """The largest logit; temperature only sharpens or flattens how sure it is."""

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        chosen = logits.argmax(-1)
        shares = (logits / (self.settings.temperature or 1.0)).float().softmax(-1)
        return chosen, confidence_of(shares, chosen, self.settings.confidence)


class ByEntropy(Chooser):
    """Temperature, top_k, top_p, then the likeliest token or a draw; confidence is the negative entropy.

    With the authors' noise it is not a number under top_k or top_p, as in their code; noise="per_row" has the entropy.
    """

    log_probability: Tensor  # [n]: of the tokens chosen last, for the rule that ranks by it

    @property
    def whole(self) -> bool:
        return self.settings.gamma is not None or (not self.settings.greedy and self.settings.noise == "reference")

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        logits = truncated(logits / (settings.temperature or 1.0), None, settings.top_k)
        logs = truncated(logits, settings.top_p, None).log_softmax(-1)
        shares = logs.exp()
        if settings.greedy or settings.temperature == 0:
            chosen = logs.argmax(-1)
        else:
            drawn = shares.cpu()
            if settings.noise == "reference":  # the authors draw for the last position too, which predicts nothing
                drawn = torch.cat([drawn, drawn[-1:]])
            chosen = self.noise.draw(drawn, where).to(logits.device)[: len(where)]
        self.log_probability = logs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        confidence = (shares * logs).sum(-1)
        if settings.noise == "reference":
            # The authors multiply 0 by −∞ wherever top_k or top_p took a token away: no entropy is left to rank by.
            confidence = confidence.masked_fill((logs < torch.finfo(logs.dtype).min / 2).any(-1), torch.nan)
        return chosen, confidence


class Gumbel(Chooser):
    """Argmax of exp(logits) / (−ln U)^T.

    The authors' end-of-text options are kept as they are, quirk included: at temperature > 0 `late_eos`
    holds back end-of-turn only. dllm's begin_suppress likewise acts after the choice, on confidences only.
    """

    def end(self, vocabulary: int) -> None:
        if self.settings.temperature > 0:
            self.noise.end_step(vocabulary)

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings = self.settings
        noisy = settings.temperature > 0
        if settings.forbid_eos:
            logits[:, self.eos_id] = -torch.inf
        if settings.suppress:
            logits[:, list(settings.suppress)] = -torch.inf
        if noisy:
            # In float64: in float32 the tail of the noise is cut off and quality falls.
            uniform = self.noise.token_uniform(where.to(logits.device), logits.shape[-1]).to(logits.device)
            weights = uniform.log_().neg_().pow_(settings.temperature)
            chosen = logits.to(torch.float64).exp_().div_(weights).argmax(-1)
        else:
            chosen = logits.argmax(-1)
        if settings.late_eos:
            logits[:, self.eot_id] = -torch.inf
            if not noisy:
                logits[:, self.eos_id] = -torch.inf
        if settings.begin_suppress:
            logits[:, list(settings.begin_suppress)] = -torch.inf
        if settings.confidence == "random":
            return chosen, torch.zeros(len(chosen), device=logits.device)
        probabilities = logits.to(confidence_dtype(settings, logits.dtype)).softmax(-1)
        return chosen, confidence_of(probabilities, chosen, settings.confidence)


CHOICES: dict[str, type[Chooser]] = {
    "draw": Draw, "block_draw": BlockDraw, "likeliest": Likeliest, "entropy": ByEntropy, "gumbel": Gumbel,
}  # fmt: skip


def confidence_of(probabilities: Tensor, chosen: Tensor, kind: str) -> Tensor:
    """probabilities [n, vocab], chosen [n] → confidence [n]; larger is surer in every kind."""
    if kind == "margin":
        best = probabilities.topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]
    if kind == "entropy":
        return (probabilities * (probabilities + 1e-10).log()).sum(-1)
    return probabilities.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def truncated(logits: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """Tail removed: top_p keeps the token that crosses the limit, then top_k keeps everything equal to the k-th."""
    lowest = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True, dim=-1)
        shares = ordered.softmax(-1)
        # CUDA adds up in no fixed order: in float64 that decides nothing.
        beyond = (shares.double() if shares.is_cuda else shares).cumsum(-1) > top_p
        beyond = torch.cat([torch.zeros_like(beyond[:, :1]), beyond[:, :-1]], dim=-1)
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), lowest)
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, lowest)
    return logits


def confidence_dtype(settings: Decode, model: torch.dtype) -> torch.dtype:
    """The dtype of the softmax; in bfloat16 many confidences tie at 1."""
    return {"model": model, "float32": torch.float32, "float64": torch.float64}[settings.confidence_dtype]


# ---- which positions take their token


class CommitRule:
    """Commit rule for one block: which tokens are committed at each denoising step.

    Subclass it, write `is_unfinished` and `pick`, and decorate it with `@register_commit_rule("name")`.
    """

    block_only: ClassVar[bool] = False  # leaves masks before the block alone
    needs: ClassVar[Sequence[str]] = ()  # settings that it cannot do without
    reads: ClassVar[Sequence[str]] = ()  # settings that it reads where they are given

    def __init__(self, run: Denoiser, block: Block) -> None:
        self.run, self.block = run, block
        self.settings: Any = run.settings  # of the samplers that have it
        self.step = 0  # forwards of this block so far
        self.begin()

    def begin(self) -> None:
        """Prepare what the rule needs to know about the block before the first denoising step; nothing by default."""

    def is_unfinished(self) -> bool:
        """Decide whether the block needs another denoising step."""
        return bool((self.open() & self.block.inside).any())

    def candidate_positions(self) -> Tensor:
        """Return where candidates are needed, bool [batch, position]; called once per denoising step, after the
        forward.
        """
        return self.open()

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        """Decide what to do with the candidates.

        Args:
            candidates: Token ids [batch, position].
            confidence: Confidence in each candidate [batch, position]; minus infinity where there is none.
        """
        return Picks(most_confident(confidence, self.counts(confidence), self.run.padding))

    def counts(self, confidence: Tensor) -> list[int]:
        """Return how many tokens each sequence commits at this step, for rules that commit the most confident ones.

        Args:
            confidence: Confidence in each candidate [batch, position]; minus infinity where there is none.
        """
        raise TypeError(f"{type(self).__name__} must say what to commit")

    def best(self, score: Tensor, counts: list[int]) -> Tensor:
        """Select the best columns of each answer, with ties as of a topk over the answer alone.

        Args:
            score: Score of each column [batch, position].
            counts: Number of columns per sequence.

        Returns:
            Selected positions, bool [batch, position].
        """
        return most_confident(score, counts, torch.tensor(self.run.canvas.answers))

    def open(self) -> Tensor:
        """Return the mask tokens up to the end of the block (or inside it), bool [batch, position], in unfinished
        sequences.
        """
        here = self.block.inside if self.block_only else self.block.until
        return self.run.canvas.masked_positions() & here & ~self.run.done.unsqueeze(1)


COMMIT_RULES: Registry[type[CommitRule]] = Registry("commit rule", DecodeError)
Rule = TypeVar("Rule", bound=type[CommitRule])


def register(name: str, needs: Sequence[str] = ()) -> Callable[[Rule], Rule]:
    """Register a commit rule under the name that `Decode.commit` gives; a class decorator.

    Args:
        name: Name of the rule.
        needs: Names of the decode settings that the rule cannot do without.
    """

    def add(rule: Rule) -> Rule:
        rule.needs = (*rule.needs, *needs)
        COMMIT_RULES.add(name, rule)
        return rule

    return add


def most_confident(confidence: Tensor, counts: list[int], padding: Tensor) -> Tensor:
    """Select the most confident positions of each sequence.

    Positions are ranked by torch.topk over the sequence without its padding, so that ties fall as in the authors' code
    and as in the sequence alone. Ranking is on the CPU, because CUDA's topk breaks ties otherwise and confidences in
    bfloat16 often tie.

    Args:
        confidence: Confidence [batch, position]; minus infinity where nothing may be committed.
        counts: Number of positions per sequence.
        padding: Number of padded columns at the left of each sequence, int [batch].

    Returns:
        Selected positions, bool [batch, position].
    """
    device, confidence = confidence.device, confidence.cpu()
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for row, (count, start) in enumerate(zip(counts, padding.tolist(), strict=True)):
        open_positions = int((confidence[row] > -torch.inf).sum())
        if count > 0 and open_positions > 0:
            places = confidence[row, start:].topk(min(count, open_positions)).indices
            chosen[row, start + places] = True
    return chosen.to(device, non_blocking=True)
