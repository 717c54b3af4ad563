"""`trace`: decode a prompt, or a batch of them, with a recorder listening."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from torch import Tensor, nn

from sinkscope.attention.patch import patched
from sinkscope.decoding import decode, prepare, resolve_settings
from sinkscope.decoding.canvas import Decoded, OnStep, Step
from sinkscope.decoding.settings import Decode
from sinkscope.errors import DecodeError, InterventionError, TraceError
from sinkscope.interventions import Intervention, intervene
from sinkscope.models.family import Messages
from sinkscope.models.load import load
from sinkscope.models.model import Model, Prompt
from sinkscope.progress import step_bar
from sinkscope.sinks import describe
from sinkscope.tracing.recorder import Keep, Recorder
from sinkscope.tracing.trace import SHAPES, Trace, find_answer_end


@overload
def trace(model: Model | str, prompt: str | Messages, settings: Decode | None = None, **options: Any) -> Trace: ...
@overload
def trace(model: Model | str, prompt: list[str], settings: Decode | None = None, **options: Any) -> list[Trace]: ...
@overload
def trace(model: Model | str, prompt: Any, settings: Decode | None = None, **options: Any) -> Trace | list[Trace]: ...
def trace(
    model: Model | str,
    prompt: Prompt | list[Any],
    settings: Decode | None = None,
    *,
    attention_mask: Tensor | None = None,
    interventions: Intervention | Sequence[Intervention] = (),
    keep: Keep | None = None,
    on_step: OnStep | None = None,
    progress: bool | None = None,
    **words: Any,
) -> Trace | list[Trace]:
    """Generate from a prompt and record the attention that every key receives.

    Args:
        model: Model, or a name that `load` accepts.
        prompt: Text, chat messages, token ids, or a list of these.
        settings: Decode settings; the default is the model's `defaults`.
        attention_mask: Attention mask [batch, position], 0 at padding, if `prompt` is a batch of token ids [batch,
            position].
        interventions: Intervention, or several, active while the trace is recorded.
        keep: What is recorded, and within which memory.
        on_step: Function that is called with each denoising step (`Step`).
        progress: Whether a progress bar is shown; the default is to show it in interactive sessions.
        **words: Single decode settings that replace those of `settings` (`length=32`, `steps=32`, `block=8`).

    Returns:
        Trace; a list of traces if `prompt` is a list or a batch of token ids.

    Raises:
        BudgetError: If the trace does not fit the budget of `keep`.
    """
    loaded = load(model) if isinstance(model, str | Path) else model
    interventions = [interventions] if isinstance(interventions, Intervention) else interventions
    _check(loaded, settings, interventions, keep, on_step)
    ids, mask, alone = loaded.batch(prompt, attention_mask)
    chosen = (
        resolve_settings(settings or loaded.defaults, loaded, ids.shape[1], words)
        if words or settings is None
        else settings
    )
    loaded, ids, mask = prepare(loaded, ids, chosen, mask)
    recorder = Recorder(loaded, ids, chosen, keep or Keep(), mask)

    def both(step: Step) -> None:
        recorder.on_step(step)
        bar.update()
        if on_step is not None:
            on_step(step)

    with step_bar(chosen.steps or chosen.length, f"tracing {loaded.name}", asked=progress) as bar, ExitStack() as stack:
        if interventions:
            stack.enter_context(intervene(loaded, *interventions))
        recorder.hooks(stack)  # behind interventions on activations: what is recorded is what they leave
        stack.enter_context(patched(loaded.module, recorder))
        done = decode(loaded, ids, replace(chosen, delete=()), attention_mask=mask, history=False, on_step=both)
    recorder.finish(done.tokens)
    texts = [prompt] if alone else prompt
    traces = [
        cut_row(recorder, row, done, text if isinstance(text, str) else None, interventions)
        for row, text in enumerate(texts)
    ]
    return traces[0] if alone else traces


def _check(model: Any, settings: Any, interventions: Any, keep: Any, on_step: Any) -> None:
    """Arguments of another kind are told in our words, and before anything is put into the model."""
    if not isinstance(model, Model):
        given = f"the torch module {type(model).__name__}" if isinstance(model, nn.Module) else repr(model)
        raise TraceError(f"Expected a model from sk.load or sk.wrap, or its name, got {given}.")
    if not isinstance(settings, Decode | None):
        raise DecodeError(f"Expected settings such as sk.Decode.llada(…), got {settings!r}.")
    if not isinstance(interventions, Sequence) or isinstance(interventions, str):
        raise InterventionError(f"Expected interventions such as [sk.MaskSinks(k=5)], got {interventions!r}.")
    if not isinstance(keep, Keep | None):
        raise TraceError(f"Expected what to keep as sk.Keep(…), got {keep!r}.")
    if on_step is not None and not callable(on_step):
        raise TraceError(f"Expected a function to call after each step, got on_step={on_step!r}.")


def cut_row(
    recorder: Recorder, row: int, done: Decoded, prompt: str | None, interventions: Sequence[Intervention]
) -> Trace:
    """One row of a recorded batch as a Trace of its own, without its padding and without steps after its end."""
    model, steps = recorder.model, recorder.steps
    padding, prompt_width = recorder.real[row].start, recorder.answers[row]
    if model.causal:  # a row of a batch may be done before the others
        steps = int(recorder.kept["committed_at"][row].max()) + 1
    noisy = recorder.settings.layout == "drawn"  # random tokens, of which those behind the answer are seen too
    written = recorder.real[row].stop if noisy else done.tokens.shape[1]
    stop = min(recorder.real[row].stop, written) if not model.causal else prompt_width + steps
    tensors = recorder.row(row, steps, slice(padding, stop))
    canvas, shown = tensors["canvas"], [tensors[name] for name in ("canvas", "lens_tokens") if name in tensors]
    ids = sorted({token for some in shown for token in some.unique().tolist()})
    if prompt is None:
        prompt_ids = canvas[0, : prompt_width - padding].tolist()
        prompt = "" if model.tokenizer is None else str(model.tokenizer.decode(prompt_ids))
    vocabulary, start = describe(model.tokenizer, ids, model.mask_id), prompt_width - padding
    end = find_answer_end(canvas[-1], start, {*model.eos_ids, model.eot_id}, lambda token: vocabulary[token][1])
    end = min(end, start + recorder.settings.length) if noisy else end
    return Trace(
        **{name: tensors.get(name) for name in SHAPES},  # type: ignore[arg-type]
        prompt_length=start,
        answer_end=end,
        settings=recorder.settings,
        model=model.identity(),
        backend=recorder.backend,
        vocabulary=vocabulary,
        mask_id=None if noisy else model.mask_id,
        causal=model.causal,
        prompt=prompt,
        text="" if model.tokenizer is None else model.decode_text(done.returned[row]),
        interventions=[each.to_dict() for each in interventions],
        map_heads=recorder.keep.heads,
    )
