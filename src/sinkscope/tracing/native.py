"""A trace of a generation that is not ours: DiffusionGemma's own `generate`, denoising step by denoising step.

It has no mask token: the canvas begins as random tokens, and all that is not accepted is drawn anew at every step. So no
decoder of sinkscope can stand in for it. Its encoder reads what is finished into a cache, under causal attention; its
decoder reads that cache and a canvas that sees all of itself. Only the decoder's forwards are steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.attention.calls import Call, Outcome, Tap
from sinkscope.attention.capture import listening
from sinkscope.attention.context import GROUPS, MASKED
from sinkscope.errors import BudgetError, DecodeError, PromptError
from sinkscope.settings.decode import Decode
from sinkscope.tracing.record import Trace
from sinkscope.tracing.recorder import Keep

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NATIVE = "DiffusionGemmaForBlockDiffusion"
WORDS = {"length": "max_new_tokens", "steps": "max_denoising_steps"}  # ours → transformers'


def is_native_diffusion(module: object) -> bool:
    """Whether this is transformers' own DiffusionGemma, which brings its own generation."""
    return isinstance(module, nn.Module) and type(module).__name__ == NATIVE


@dataclass
class Steps(Tap):
    """What the decoder's forwards were given and paid; the encoder's, which fill the cache, are let go."""

    canvases: list[Tensor] = field(default_factory=list)  # [canvas] each
    before: list[int] = field(default_factory=list)  # tokens in the cache at each step
    paid: list[dict[int, Tensor]] = field(
        default_factory=list
    )  # layer → [head, key]; keys of a window are the last ones
    backend: str = ""
    inside: bool = False

    def watches(self, call: Call) -> bool:
        return self.inside

    def take(self, call: Call, outcome: Outcome) -> None:
        if self.inside:
            self.paid[-1][call.layer] = outcome.received[0].sum(1).float().cpu()
            self.backend = call.backend

    @contextmanager
    def hooked(self, decoder: nn.Module) -> Iterator[None]:
        """The decoder says when a step begins, with which canvas, and when it ends."""

        def begin(module: nn.Module, args: Any, words: dict[str, Any]) -> None:
            canvas = words["decoder_input_ids"] if "decoder_input_ids" in words else args[0]
            self.canvases.append(canvas[0].detach().cpu().clone())
            self.before.append(int(words["past_key_values"].get_seq_length()))
            self.paid.append({})
            self.inside = True

        def end(module: nn.Module, args: Any, output: Any) -> None:
            self.inside = False

        hooks = [decoder.register_forward_pre_hook(begin, with_kwargs=True), decoder.register_forward_hook(end)]
        try:
            yield
        finally:
            self.inside = False
            for hook in hooks:
                hook.remove()


def trace_generate(
    module: Any, ids: Any, tokenizer: PreTrainedTokenizerBase | None = None, keep: Keep | None = None, **words: Any
) -> Trace:
    """Run the module's own `generate` on one prompt, ids [1, position], and record every denoising step.

    words: length (in canvases: the last one is whole) and steps (at most so many per canvas), or any word of the module's
    own generate. All canvas queries count as still masked: none is kept until its canvas is finished.
    """
    if not isinstance(ids, Tensor) or ids.dim() != 2 or len(ids) != 1 or ids.dtype != torch.int64 or not ids.shape[1]:
        raise PromptError(f"Expected one prompt as ids [1, position] for {type(module).__name__}, got {_shown(ids)}.")
    asked = {WORDS.get(name, name): value for name, value in words.items()}
    known = {name for name in vars(module.generation_config_class()) if not name.startswith("_")}
    if strange := sorted(set(asked) - known):  # generate would hand them on to the model, which ignores them
        raise DecodeError(
            f"{type(module).__name__}.generate does not take {', '.join(strange)}; it takes length, steps, "
            f"{', '.join(sorted(known - {*WORDS.values()}))}."
        )
    seen, chosen = Steps(), keep or Keep()
    with seen.hooked(module.model.decoder), listening(module, seen), torch.inference_mode():
        try:
            done = module.generate(ids, **asked)
        except (TypeError, ValueError) as error:
            raise DecodeError(f"{type(module).__name__}.generate refuses these settings: {error}") from None
    tokens = (done if isinstance(done, Tensor) else done.sequences)[0].cpu()
    return _trace(module, ids[0].cpu(), tokens, seen, chosen, tokenizer, int(asked.get("max_denoising_steps") or 48))


def _trace(module: Any, prompt: Tensor, tokens: Tensor, seen: Steps, keep: Keep, tokenizer: Any, most: int) -> Trace:
    from sinkscope.sinks.tokens import describe

    config = module.config.get_text_config()
    steps, layers, heads, width = len(seen.paid), config.num_hidden_layers, config.num_attention_heads, len(tokens)
    size = steps * layers * heads * len(GROUPS) * width * keep.dtype.itemsize
    if size > keep.budget:
        raise BudgetError(
            f"Recording {steps} steps of {layers} layers × {heads} heads × {width} keys needs {size / 2**20:,.0f} MB, more "
            f"than the budget of {keep.budget / 2**20:,.0f} MB; take fewer steps, or raise budget=…"
        )
    canvas_length = len(seen.canvases[0])
    received = torch.zeros(steps, layers, heads, len(GROUPS), width, dtype=keep.dtype)
    blank = int(config.pad_token_id or 0)  # stands where no canvas is yet
    canvas = torch.full((steps + 1, width), blank)
    canvas[-1] = tokens
    starts = torch.tensor(seen.before)
    committed = torch.full((width,), -1, dtype=torch.int32)
    for step, (start, there) in enumerate(zip(seen.before, seen.canvases, strict=True)):
        stop = start + canvas_length
        canvas[step, :start], canvas[step, start:stop] = tokens[:start], there
        committed[start:stop] = step
        for layer, paid in seen.paid[step].items():
            received[step, layer, :, MASKED, stop - paid.shape[-1] : stop] = paid.to(keep.dtype)
    answer = tokens[len(prompt) :]
    return Trace(
        received=received,
        queries=torch.tensor([[canvas_length, 0, 0]] * steps, dtype=torch.int32),
        canvas=canvas,
        confidence=torch.full((steps, width), torch.nan),
        committed_at=committed,
        blocks=torch.stack([starts, starts + canvas_length], 1).to(torch.int32),
        prompt_length=len(prompt),
        settings=Decode("native", len(answer), canvas_length, most, cache="exact", layout="grid", block_causal=True),
        model={
            "name": str(getattr(module.config, "_name_or_path", "") or type(module).__name__), "family": "diffusion_gemma",
            "fingerprint": "", "dtype": str(module.dtype).removeprefix("torch."),
            "parameters": sum(part.numel() for part in module.parameters()), "layers": layers, "heads": heads,
        },
        backend=seen.backend,
        vocabulary=describe(tokenizer, sorted(set(canvas.unique().tolist()))),
        mask_id=None,
        causal=False,
        prompt="" if tokenizer is None else str(tokenizer.decode(prompt.tolist())),
        text="" if tokenizer is None else str(tokenizer.decode(answer.tolist(), skip_special_tokens=True)),
    )  # fmt: skip


def _shown(ids: object) -> str:
    return f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else repr(ids)[:80]
