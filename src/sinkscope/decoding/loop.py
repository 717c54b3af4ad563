"""The one denoising loop: layout, forwards, choice, commit rule, guidance, stop rule and cache are its parts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sinkscope.attention.forward import Forward, forward_context
from sinkscope.decoding.canvas import Block, DecodeRun, Picks, Step, blocks, build_canvas
from sinkscope.decoding.choose import CHOICES, COMMIT_RULES, noise_of
from sinkscope.decoding.forwards import BlockForwards
from sinkscope.decoding.settings import CACHES
from sinkscope.errors import DecodeError

# Logits are made for as many positions at a time as fit here; a GPU reads the whole head for each lot.
HEAD_BYTES, GPU_HEAD_BYTES = 1 << 26, 1 << 30


class Denoiser:
    """State of one generation of a batch."""

    def __init__(self, run: DecodeRun) -> None:
        model, settings, prompt = run.model, run.settings, run.prompt
        self.model, self.settings, self.run = model, settings, run
        self.canvas = build_canvas(model, prompt, settings, run.attention_mask)
        self.eos_id = special_token(settings.eos_id, model.eos_id, settings.forbid_eos or settings.late_eos, "eos_id")
        self.eot_id = special_token(
            settings.eot_id, model.eot_id, settings.late_eos or settings.stop == "eot", "eot_id"
        )
        self.padding = self.canvas.padding()
        self.padded = not bool(self.canvas.real.all())
        self.guided = settings.guidance > 0
        self.shift = model.shift if settings.shift is None else settings.shift
        # What the unconditional copy does not see.
        kept = torch.tensor(settings.guidance_keep, dtype=torch.int64, device=prompt.device)
        self.given = self.canvas.given & ~self.canvas.masked_positions() & ~torch.isin(self.canvas.tokens, kept)
        self.forwards = settings.forwards(model)
        self.forwards.attach(self.canvas, run.keep)
        self.noise = noise_of(settings, self.canvas.tokens.shape, self.padding)
        self.chooser = CHOICES[settings.choice](settings, self.noise, self.eos_id, self.eot_id)
        self.done = torch.zeros(self.canvas.batch, dtype=torch.bool, device=prompt.device)
        self.identity = object()
        self.step = 0

    def forward(self, block: Block) -> tuple[Tensor, int]:
        """Hidden states [batch (doubled with guidance), window, width] and the window's first column."""
        self.run.note(self.canvas.tokens)
        return self.run_forward("denoise", block.span)

    def fill_cache(self, stop: int) -> None:
        """Make the keys and values of everything before column `stop` that are not kept yet."""
        assert isinstance(self.forwards, BlockForwards)
        self.canvas.hide_padding()
        self.padded = not bool(self.canvas.real.all())
        if self.forwards.kept < stop:
            kind = "store" if self.forwards.kept else "prefill"
            self.run_forward(kind, (self.forwards.kept, stop))

    def run_forward(self, kind: str, span: tuple[int, int]) -> tuple[Tensor, int]:
        canvas, forwards = self.canvas, self.forwards
        start, stop = forwards.window(span, canvas.width)
        labels = canvas.labels()
        labels = labels[:, start:stop] if forwards.columns is None else labels.gather(1, forwards.columns)
        labels = functional.pad(labels, (0, forwards.shadow), value=-1)
        tokens, real = canvas.tokens, canvas.real if self.padded else None
        padding = self.padding if int(self.padding.max()) else None
        # Padded elsewhere than at the left.
        apart = self.padded and bool((canvas.real.sum(1).cpu() + self.padding < canvas.width).any())
        if self.guided:
            tokens = torch.cat([tokens, tokens.masked_fill(self.given, canvas.mask_id)])
            labels, real = torch.cat([labels, labels]), None if real is None else torch.cat([real, real])
            padding = None if padding is None else torch.cat([padding, padding])
        keep = kind != "denoise"
        visible = forwards.visible(tokens, real, span, keep)
        forward = Forward(
            self.identity, self.step, labels, canvas.batch, start, padding, max(canvas.answers), kind=kind, ids=tokens,
            visible=None if visible is None else visible[:, 0], real=canvas.real if apart else None,
            kept=forwards.cached_columns, columns=forwards.columns, most=self.settings.most_steps,
        )  # fmt: skip
        self.run.forwards += 2 if self.guided and self.settings.layout == "left" else 1  # the authors run two
        with forward_context(forward):
            hidden = forwards(tokens, real, span, keep)
        return hidden, stop - hidden.shape[1]

    def logits(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits [n, vocab] that predict the tokens at (rows, columns) of the window."""
        sources = (columns - 1).clamp(min=0) if self.shift else columns
        rows, sources = rows.to(hidden.device), sources.to(hidden.device)  # the last of several devices
        logits = self.model.family.head(self.model.module, hidden[rows, sources])
        if self.guided:
            free = self.model.family.head(self.model.module, hidden[rows + self.canvas.batch, sources])
            logits = free + (self.settings.guidance + 1) * (logits - free)
        if (valid := self.model.valid_vocab_size) is not None:
            logits[:, valid:] = -torch.inf
        return logits

    def candidates(self, hidden: Tensor, start: int, wanted: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Candidate ids and confidence at the wanted positions, both [batch, position] (canvas and NaN elsewhere)."""
        settings, vocabulary = self.settings, self.model.vocabulary
        chosen = self.canvas.tokens.clone()
        confidence = torch.full(chosen.shape, torch.nan, dtype=torch.float64, device=chosen.device)
        rows, columns = wanted.nonzero(as_tuple=True)
        first, last = block.span if settings.draws_by_block else (0, self.canvas.width)
        count, places = self.forwards.draws(rows, columns - first, last - first)
        self.noise.frame(count)
        where = rows * count + places
        room = HEAD_BYTES if hidden.device.type == "cpu" else GPU_HEAD_BYTES
        size = max(len(where), 1) if self.chooser.whole else max(room // (8 * vocabulary), 1)
        self.noise.begin_step()
        for part in torch.arange(len(where), device=where.device).split(size):
            logits = self.logits(hidden, rows[part], columns[part] - start)
            ids, sure = self.chooser.choose(logits, where[part])
            chosen[rows[part], columns[part]] = ids.to(chosen.device)
            confidence[rows[part], columns[part]] = sure.to(chosen.device, torch.float64)
        self.chooser.end(vocabulary)
        if settings.confidence == "random":
            confidence[rows, columns] = self.noise.canvas_uniform(where).to(confidence)
        return chosen, confidence

    def commit(self, chosen: Tensor, confidence: Tensor, picks: Picks, block: Block) -> None:
        edited = self.canvas.apply(chosen, picks)
        step = Step(
            self.step, self.canvas.tokens, confidence.to(torch.float32), picks.commit, block.span,
            edited if picks.edit is not None else None, picks.reopen,
        )  # fmt: skip
        self.step += 1
        self.forwards.note(step)
        self.update_done(block, finished=False)
        self.run.tell(step)

    def update_done(self, block: Block, finished: bool) -> None:
        """By the stop rule, note which rows are done: asked after every step, and again when a block is finished."""
        rule, canvas = self.settings.stop, self.canvas
        if rule == "eot":  # MMaDA's fast variant: when a block is full and ends in end-of-turn
            tokens = canvas.tokens[:, slice(*block.span)]
            if not bool((tokens == canvas.mask_id).any()):
                self.done = self.done | torch.eq(tokens[:, -1], -1 if self.eot_id is None else self.eot_id)
        elif rule != "never" and (finished or rule == "early_eos"):
            ids = self.settings.stop_ids if rule == "ids" else () if self.eos_id is None else (self.eos_id,)
            wanted = torch.tensor(ids, dtype=torch.int64, device=canvas.tokens.device)
            ends = torch.isin(canvas.tokens, wanted) & ~canvas.given & canvas.real
            ended = ends.any(1)
            if rule in ("row_eos", "batch_eos"):  # a row that has end-of-text goes on with the others
                ended = ended.all().expand_as(ended)
            if not finished:  # LLaDA2.0's early stop: once nothing before the first end-of-text is open
                ended = ended & ~(canvas.masked_positions() & (ends.cumsum(1) == 0)).any(1)
            self.done = self.done | ended

    def ends(self, tokens: Tensor) -> Tensor:
        """Where end-of-text stands, bool of the same shape; nowhere if the model names none."""
        return torch.eq(tokens, -1 if self.eos_id is None else self.eos_id)

    def returned(self, row: int, reached: int) -> Tensor:
        """The answer of a row, up to the column that was reached; some authors' code cuts it after the first end-of-text."""
        start = self.canvas.answers[row]
        answer = self.canvas.tokens[row, start : min(start + self.canvas.length, reached)]
        if self.settings.stop == "batch_eos":  # Nemotron's cuts all rows behind the latest, once all have one
            ends = self.ends(self.canvas.tokens[:, start:reached])
            return answer[: int(ends.int().argmax(1).max()) + 1] if bool(ends.any(1).all()) else answer
        if self.settings.cuts_at_end:
            ends = self.ends(answer).nonzero().flatten()
            answer = answer[: int(ends[0]) + 1] if len(ends) else answer
        return answer


def denoise(run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
    """The last canvas [batch, position], and each row's answer."""
    settings, state = run.settings, Denoiser(run)
    real = run.prompt if run.attention_mask is None else run.prompt[run.attention_mask.bool()]
    if settings.cache in CACHES and bool(real.eq(run.model.require_mask()).any()):
        raise DecodeError(
            "The prompt holds the mask token, and a cache leaves prompts as they are; decode without a cache."
        )
    reached = state.canvas.width
    for block in blocks(state.canvas, settings):
        if bool(state.done.all()):
            break
        # dllm appends blocks as it goes: those that it does not reach are not there.
        reached = block.span[1] if settings.layout == "left" else reached
        denoise_block(state, block)
    run.note(state.canvas.tokens)
    run.cache = state.forwards.use()
    run.cut(reached)
    return state.canvas.tokens[:, :reached], [state.returned(row, reached) for row in range(state.canvas.batch)]


def denoise_block(state: Denoiser, block: Block) -> None:
    cached = state.settings.cache == "exact"
    if cached or state.settings.reads_context:
        state.fill_cache(block.span[0])
    rule = COMMIT_RULES[state.settings.commit_rule](state, block)
    while not bool(state.done.all()) and rule.is_unfinished():
        if state.step >= state.settings.most_steps:  # a step that commits the mask token leaves everything as it was
            raise DecodeError(
                f"{state.model.name} is not done after {state.step} steps, the most that {state.settings.sampler} decoding "
                "of this length takes: it keeps choosing its mask token; look at mask_token_id, or use another model."
            )
        hidden, start = state.forward(block)
        positions = rule.candidate_positions()
        chosen, confidence = state.candidates(hidden, start, state.forwards.wanted(positions), block)
        picks = rule.pick(chosen, confidence.masked_fill(~positions, torch.nan).nan_to_num(nan=-torch.inf))
        state.commit(chosen, confidence, picks, block)
        rule.step += 1
    state.update_done(block, finished=True)
    if cached and state.settings.stores_last_block:  # as the authors' code does, after the last block too
        state.fill_cache(block.span[1])


def special_token(asked: int | None, own: int | None, needed: bool, name: str) -> int | None:
    token = own if asked is None else asked
    if needed and token is None:
        raise DecodeError(f"These settings need {name}, and the model names no such token; pass {name}=… to Decode.")
    return token
