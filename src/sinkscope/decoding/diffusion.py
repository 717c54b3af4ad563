"""The one denoising loop: block scope, schedule, candidates, commit rule, guidance and cache are its parts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sinkscope.attention.context import COMMITTED, MASKED, PROMPT, Forward, announce
from sinkscope.decoding import commit
from sinkscope.decoding.cache import Forwards
from sinkscope.decoding.choose import dream_candidates, llada_candidates
from sinkscope.decoding.noise import Noise, ReferenceNoise, RowNoise
from sinkscope.decoding.run import OnStep, Run, Step
from sinkscope.decoding.settings import Decode
from sinkscope.errors import DecodeError
from sinkscope.models.base import Model

HEAD_BYTES = 1 << 26  # logits are made for as many positions at a time as fit here


class Denoiser:
    """State of one generation of a batch."""

    def __init__(self, model: Model, prompt: Tensor, settings: Decode, attention_mask: Tensor | None) -> None:
        if model.mask_id is None:
            raise DecodeError(f"{model.name} is autoregressive and has no mask token; use Decode.autoregressive.")
        self.model, self.settings = model, settings
        self.mask_id = model.mask_id
        self.eos_id = _token(settings.eos_id, model.eos_id, settings.forbid_eos or settings.late_eos, "eos_id")
        self.eot_id = _token(settings.eot_id, model.eot_id, settings.late_eos or settings.stop == "eot", "eot_id")
        batch, self.prompt_length = prompt.shape
        masks = torch.full((batch, settings.length), self.mask_id, device=prompt.device)
        self.canvas = torch.cat([prompt, masks], dim=1)
        self.real = torch.ones_like(self.canvas, dtype=torch.bool)
        if attention_mask is not None:
            self.real[:, : self.prompt_length] = attention_mask.bool()
        self.padding = (~self.real).sum(1).cpu()
        self.guided = settings.guidance > 0
        self.given = self.canvas != self.mask_id  # what the unconditional copy does not see
        mask = None if bool(self.real.all()) else self.real.to(torch.int64)
        doubled = mask if mask is None or not self.guided else torch.cat([mask, mask])
        self.forwards = Forwards(model, doubled, settings.cache)
        self.noise: Noise = (
            ReferenceNoise(settings.seed, *self.canvas.shape)
            if settings.noise == "reference"
            else RowNoise(settings.seed, self.padding, self.canvas.shape[1])
        )
        self.done = torch.zeros(batch, dtype=torch.bool, device=prompt.device)
        self.identity = object()
        self.step = 0

    def blocks(self) -> Iterator[tuple[int, int]]:
        size = self.settings.block or self.settings.length
        for start in range(self.prompt_length, self.canvas.shape[1], size):
            yield start, start + size

    def open_positions(self, block: tuple[int, int]) -> Tensor:
        """bool [batch, position]: masks up to the end of the block, in rows that have not stopped."""
        masked = (self.canvas == self.mask_id) & self.real & ~self.done.unsqueeze(1)
        masked[:, block[1] :] = False
        return masked

    def forward(self, block: tuple[int, int]) -> tuple[Tensor, int]:
        """Hidden states [batch (doubled with guidance), window, width] and the window's first column."""
        start, stop = self.forwards.window(block, self.canvas.shape[1])
        canvas, labels = self.canvas, self.labels()[:, start:stop]
        if self.guided:
            canvas = torch.cat([canvas, canvas.masked_fill(self.given, self.mask_id)])
            labels = torch.cat([labels, labels])
        padding = self.padding if int(self.padding.max()) else None
        if padding is not None and self.guided:
            padding = torch.cat([padding, padding])
        with announce(Forward(self.identity, self.step, labels, len(self.canvas), start, padding, self.prompt_length)):
            hidden = self.forwards(canvas, block)
        return hidden, start

    def labels(self) -> Tensor:
        """[batch, position]: which group of queries each position belongs to; −1 where padded."""
        labels = torch.full_like(self.canvas, COMMITTED)
        labels[:, : self.prompt_length] = PROMPT
        labels[self.canvas == self.mask_id] = MASKED
        return labels.masked_fill(~self.real, -1)

    def logits(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits [n, vocab] that predict the tokens at (rows, columns) of the window."""
        sources = (columns - 1).clamp(min=0) if self.model.shift else columns
        logits = self.model.recipe.head(self.model.module, hidden[rows, sources])
        if self.guided:
            free = self.model.recipe.head(self.model.module, hidden[rows + len(self.canvas), sources])
            logits = free + (self.settings.guidance + 1) * (logits - free)
        if (nameless := self.model.nameless_from) is not None:
            logits[:, nameless:] = -torch.inf
        return logits

    def candidates(self, hidden: Tensor, start: int, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Candidate ids and confidence at the wanted positions, both [batch, position] (mask id and NaN elsewhere)."""
        settings, vocabulary = self.settings, self.model.vocabulary
        chosen = self.canvas.clone()
        confidence = torch.full(self.canvas.shape, torch.nan, dtype=torch.float64, device=self.canvas.device)
        rows, columns = wanted.nonzero(as_tuple=True)
        where = rows * self.canvas.shape[1] + columns
        dream = settings.commit in ("schedule", "origin")
        noisy = settings.temperature > 0
        self.noise.begin_step()
        # The authors' draw for Dream is one call over all rows: torch gives other numbers if it is split.
        whole = dream and noisy and settings.noise == "reference"
        size = max(len(where), 1) if whole else max(HEAD_BYTES // (8 * vocabulary), 1)
        for part in torch.arange(len(where), device=where.device).split(size):
            logits = self.logits(hidden, rows[part], columns[part] - start)
            if dream:
                ids, sure = dream_candidates(logits, settings, self.noise, where[part])
            else:
                uniform = self.noise.token_uniform(where[part], vocabulary) if noisy else None
                ids, sure = llada_candidates(logits, settings, self.eos_id, self.eot_id, uniform)
            chosen[rows[part], columns[part]] = ids
            confidence[rows[part], columns[part]] = sure.to(torch.float64)
        if noisy and not dream:
            self.noise.end_step(vocabulary)
        if settings.confidence == "random":
            confidence[rows, columns] = self.noise.canvas_uniform(where).to(confidence)
        return chosen, confidence

    def commit(self, chosen: Tensor, confidence: Tensor, picked: Tensor, block: tuple[int, int]) -> Step:
        self.canvas = torch.where(picked, chosen, self.canvas)
        step = Step(self.step, self.canvas, confidence.to(torch.float32), picked, block)
        self.step += 1
        if self.settings.stop == "eot" and not bool((self.canvas[:, block[0] : block[1]] == self.mask_id).any()):
            self.done = self.done | (self.canvas[:, block[1] - 1] == self.eot_id)
        return step


def denoise(
    model: Model, prompt: Tensor, settings: Decode, attention_mask: Tensor | None, run: Run, on_step: OnStep | None
) -> Tensor:
    """prompt [batch, position] → tokens [batch, position + length]."""
    state = Denoiser(model, prompt, settings, attention_mask)
    run.start(state.canvas)
    for block in state.blocks():
        if bool(state.done.all()):
            break
        for step in _block_steps(state, block):
            run.note(step)
            if on_step is not None:
                on_step(step)
    return state.canvas


def _block_steps(state: Denoiser, block: tuple[int, int]) -> Iterator[Step]:
    settings = state.settings
    if settings.commit == "quota":
        yield from _quota_steps(state, block)
    elif settings.commit in ("threshold", "factor"):
        yield from _confident_steps(state, block)
    else:
        yield from _dream_steps(state, block)


def _quota_steps(state: Denoiser, block: tuple[int, int]) -> Iterator[Step]:
    """LLaDA and MMaDA: the block's masks shared evenly over its steps."""
    assert state.settings.steps is not None
    steps = state.settings.steps // state.settings.blocks
    masks = state.open_positions(block)[:, block[0] :].sum(1).tolist()
    for index in range(steps):
        hidden, start = state.forward(block)
        wanted = state.open_positions(block)
        chosen, confidence = state.candidates(hidden, start, wanted)
        counts = [commit.quota(count, steps, index) for count in masks]
        picked = commit.most_confident(confidence.nan_to_num(nan=-torch.inf), counts, state.padding)
        yield state.commit(chosen, confidence, picked, block)


def _confident_steps(state: Denoiser, block: tuple[int, int]) -> Iterator[Step]:
    """Fast-dLLM: whatever is confident enough, until the block is full."""
    while bool((wanted := state.open_positions(block))[:, block[0] :].any()):
        hidden, start = state.forward(block)
        chosen, confidence = state.candidates(hidden, start, wanted)
        ranked = confidence.nan_to_num(nan=-torch.inf)
        if state.settings.threshold is not None:
            picked = commit.above_threshold(ranked, state.settings.threshold)
        else:
            assert state.settings.factor is not None
            picked = commit.most_confident(ranked, commit.factor_counts(ranked, state.settings.factor), state.padding)
        yield state.commit(chosen, confidence, picked, block)


def _dream_steps(state: Denoiser, block: tuple[int, int]) -> Iterator[Step]:
    """Dream: a share of the masks that grows as time runs from 1 to epsilon."""
    settings = state.settings
    assert settings.steps is not None
    steps = settings.steps // settings.blocks
    times = torch.linspace(1, settings.epsilon, steps + 1)
    for index in range(steps):
        hidden, start = state.forward(block)
        wanted = state.open_positions(block)
        if settings.commit == "origin":
            where = wanted.flatten().nonzero().squeeze(-1)
            drawn = state.noise.uniform(where).to(wanted.device)
            share = 1.0 if index == steps - 1 else commit.dream_share(times, index).to(wanted.device)
            wanted = wanted.flatten().index_put((where,), drawn < share).view_as(wanted)
            chosen, confidence = state.candidates(hidden, start, wanted)
            yield state.commit(chosen, confidence, wanted, block)
            continue
        chosen, confidence = state.candidates(hidden, start, wanted)
        count = commit.dream_count(wanted.sum(1).cpu(), times, index)
        ranked = confidence.nan_to_num(nan=-torch.inf).to(torch.float32)
        if settings.algorithm_temperature:
            picked = commit.drawn_by_confidence(ranked, count, settings.algorithm_temperature, state.noise)
        else:
            picked = commit.most_confident(ranked, [count] * len(ranked), state.padding)
        yield state.commit(chosen, confidence, picked, block)


def _token(asked: int | None, own: int | None, needed: bool, name: str) -> int | None:
    found = own if asked is None else asked
    if needed and found is None:
        raise DecodeError(f"These settings need {name}, and the model names no such token; pass {name}=… to Decode.")
    return found
