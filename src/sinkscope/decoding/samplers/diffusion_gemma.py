"""DiffusionGemma's own `generate`, told step by step: its decoder's forwards are the steps of this decoder.

It has no mask token. A canvas begins as random tokens, and what is not accepted is drawn again at every step, so that an
accepted position can be lost again. An encoder reads what is finished into a cache, causally; it belongs to no step and is
neither watched nor changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sinkscope.attention.forward import MASKED, Forward, forward_context
from sinkscope.decoding.canvas import DecodeRun, Step
from sinkscope.decoding.settings import Cache, Decode, Layout, Stop, TokenId, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, FromZero, NonNegative, Share


@sampler("diffusion_gemma")
class DiffusionGemma(Decode):
    """DiffusionGemma's own `generate`: canvases of random tokens, each denoised as a whole.

    A setting that is None keeps the value of the checkpoint's generation config.

    Args:
        block: Number of tokens per canvas, which is the checkpoint's. Whole canvases are written.
        steps: Largest number of denoising steps per canvas.
        gamma: Sum of entropies, in nats, up to which tokens are accepted (`entropy_bound`).
        t_min: Temperature at the last step of a canvas.
        t_max: Temperature at the first step of a canvas.
        threshold: Entropy below which a stable canvas is finished (`confidence_threshold`).
        stability: Number of steps without a change after which a canvas is stable (`stability_threshold`).
    """

    layout: ClassVar[Layout] = "grid"
    block_causal: ClassVar[bool] = True
    needs_own_model: ClassVar[bool] = True
    caches: ClassVar[tuple[str | None, ...]] = ("exact",)
    unused: ClassVar[tuple[str, ...]] = ("block",)

    block: Count | None = 256
    steps: Count | None = 48
    _: KW_ONLY
    gamma: NonNegative | None = None
    t_min: NonNegative | None = None
    t_max: NonNegative | None = None
    threshold: Share | None = None
    stability: FromZero | None = None
    eos_id: TokenId | None = None
    cache: Cache = "exact"
    stop: Stop = "eos"

    @property
    def answer_length(self) -> int:
        """Number of columns after the prompt: whole canvases that hold `length`."""
        return self.blocks * (self.block or 1)

    @property
    def pads_left(self) -> bool:
        return True

    @property
    def most_steps(self) -> int:
        return self.blocks * (self.steps or 48)

    def fit(self, length: int, words: Mapping[str, Any]) -> dict[str, Any]:
        return {"length": length}

    def generate(self, run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
        return generate_natively(run)


class GenerateWatcher:
    """Says what each forward inside `generate` is, and makes a Step of each forward of the decoder."""

    def __init__(self, run: DecodeRun) -> None:
        model, settings, prompt, mask = run.model, run.settings, run.prompt, run.attention_mask
        self.model, self.settings, self.run = model, settings, run
        self.padding = None if mask is None else (mask == 0).sum(1).cpu()
        self.text = prompt[:, :0]  # [batch, position]: what the encoder has read
        self.prompt, self.width = prompt.shape[1], prompt.shape[1] + settings.answer_length
        self.fill_id = model.pad_id or 0  # stands where no canvas is yet
        self.identity, self.step, self.before = object(), 0, -1
        self.taken = 0  # steps of this canvas so far
        self.accepted: Tensor | None = None  # bool [batch, canvas], after the last step of this canvas
        self.pending: Step | None = None  # the last step, until it is known whether its canvas goes on
        self.open = ExitStack()

    def encode(self, _: nn.Module, args: Any, words: dict[str, Any]) -> None:
        self.finish_canvas()
        self.run.forwards += 1
        ids = words["input_ids"] if "input_ids" in words else args[0]
        labels = torch.full_like(ids, -1)
        start, self.text = self.text.shape[1], torch.cat([self.text, ids], 1)
        forward = Forward(self.identity, self.step, labels, len(ids), start, self.padding, self.prompt, kind="encode")
        self.open.enter_context(forward_context(forward))

    def denoise(self, _: nn.Module, args: Any, words: dict[str, Any]) -> None:
        canvas = words["decoder_input_ids"] if "decoder_input_ids" in words else args[0]
        before = self.text.shape[1]
        if before != self.before:  # what was ranked on another canvas is of other tokens
            self.before, self.identity, self.accepted, self.taken = before, object(), None, 0
        self.emit()
        ids = torch.cat([self.text, canvas], 1)
        self.run.forwards += 1
        self.run.note(self.whole(ids))
        labels = torch.full_like(canvas, MASKED)
        forward = Forward(
            self.identity, self.step, labels, len(ids), before, self.padding, self.prompt, ids=ids,
            most=self.settings.most_steps,
        )  # fmt: skip
        self.open.enter_context(forward_context(forward))

    def leave(self, *_: object) -> None:
        self.open.close()

    def score(self, _: nn.Module, args: Any, output: Tensor) -> None:
        """The output head's hook: which positions the sampler is about to accept, recomputed as it computes them."""
        config, first, last = self.generation, self.before, self.before + output.shape[1]
        left = 1 - self.taken / config.max_denoising_steps
        temperature = config.t_min + (config.t_max - config.t_min) * left
        logs = (self.model.family.cap(self.model.module, output) / temperature).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)  # [batch, canvas]
        ordered, order = entropy.sort(-1)
        within = ordered.cumsum(-1) - ordered <= config.sampler_config.entropy_bound
        accepted = torch.zeros_like(within).scatter(-1, order, within)
        lost = torch.zeros_like(accepted) if self.accepted is None else self.accepted & ~accepted
        self.taken, self.accepted = self.taken + 1, accepted
        canvas = self.whole(torch.cat([self.text, logs.argmax(-1)], 1))
        confidence = torch.full(canvas.shape, torch.nan, device=canvas.device)
        confidence[:, first:last] = -entropy
        self.pending = Step(
            self.step, canvas, confidence, self.placed(accepted), (first, last), reopened=self.placed(lost)
        )
        self.step += 1

    def whole(self, ids: Tensor) -> Tensor:
        return nn.functional.pad(ids, (0, self.width - ids.shape[1]), value=self.fill_id)

    def placed(self, marks: Tensor) -> Tensor:
        return nn.functional.pad(marks, (self.before, self.width - self.before - marks.shape[1]))

    def finish_canvas(self) -> None:
        """A canvas that ends becomes text as a whole: its last step commits what was never accepted."""
        if self.pending is not None:
            columns = torch.arange(self.width, device=self.text.device)
            inside = (columns >= self.pending.block[0]) & (columns < self.pending.block[1])
            self.pending = replace(self.pending, committed=inside.expand_as(self.pending.committed), reopened=None)
            self.emit()

    def emit(self) -> None:
        step, self.pending = self.pending, None
        if step is not None:
            self.run.tell(step)

    @contextmanager
    def hooked(self, generation: Any) -> Iterator[None]:
        self.generation = generation
        module: Any = self.model.module
        encoder, decoder, head = module.model.encoder, module.model.decoder, module.get_output_embeddings()
        with ExitStack() as hooks:
            hooks.callback(self.leave)
            for part, begin in ((encoder, self.encode), (decoder, self.denoise)):
                hooks.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
                hooks.callback(part.register_forward_hook(self.leave, always_call=True).remove)
            hooks.callback(head.register_forward_hook(self.score).remove)
            yield


def generate_natively(run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
    """Text of whole canvases, and each row's answer; prompts are padded at the left."""
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    model, prompt, settings, attention_mask = run.model, run.prompt, run.settings, run.attention_mask
    module: Any = model.module
    ends = settings.eos_id if settings.eos_id is not None else list(model.eos_ids) or None
    asked = {
        "max_denoising_steps": settings.steps, "t_min": settings.t_min, "t_max": settings.t_max,
        "stability_threshold": settings.stability, "confidence_threshold": settings.threshold,
        "sampler_config": None if settings.gamma is None else EntropyBoundSamplerConfig(entropy_bound=settings.gamma),
    }  # fmt: skip
    words: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    words |= {"max_new_tokens": settings.length, "pad_token_id": model.pad_id, "return_dict_in_generate": False}
    words |= {"eos_token_id": None if settings.stop == "never" else ends, "cache_implementation": None}
    watched = GenerateWatcher(run)
    devices = [] if prompt.device.type == "cpu" else [prompt.device]
    try:
        generation = module._prepare_generation_config(None, **words)[0]
        with watched.hooked(generation), torch.random.fork_rng(devices):
            torch.manual_seed(settings.seed)
            masked = {} if attention_mask is None else {"attention_mask": attention_mask}
            tokens: Tensor = module.generate(prompt, **words, **masked)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{type(module).__name__}.generate refuses these settings: {error}") from None
    watched.finish_canvas()
    run.note(watched.whole(tokens))
    run.cut(tokens.shape[1])
    return tokens, list(tokens[:, prompt.shape[1] :])
