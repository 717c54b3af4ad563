"""A batch of prompts to answers: padded, each row with its own stop strings, no longer than the slowest row needs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sinkscope.decoding import Decode, Step, decode
from sinkscope.models.base import Model, pad

CHECK_EVERY = 8  # tokens between two looks for stop strings in a left-to-right generation


class _EnoughError(Exception):
    """Every row of the batch has reached one of its stop strings; what follows would be cut off anyway."""

    def __init__(self, canvas: Tensor) -> None:
        super().__init__()
        self.canvas = canvas


def answer_tokens(
    model: Model, prompts: list[Tensor], settings: Decode, stops: Sequence[list[str]] = ()
) -> list[list[int]]:
    """Prompts [1, position] → answer ids, in one batch; ends as soon as every row has reached one of its stops.

    What is committed stays, and blocks are filled from left to right: so ending early changes no text before a stop.
    """
    ids, mask = pad(prompts, model)
    width = ids.shape[1]

    def look(step: Step) -> None:
        stop = step.block[1]
        if settings.family == "autoregressive" and step.index % CHECK_EVERY:
            return
        whole = step.canvas[:, width:stop]
        if model.mask_id is not None and bool((whole == model.mask_id).any()):
            return
        if all(_stopped(model, row, own) for row, own in zip(whole.tolist(), stops, strict=True)):
            raise _EnoughError(step.canvas[:, :stop])

    # In other layouts each row's answer begins in a column of its own.
    early = bool(stops) and all(stops) and settings.layout == "answer"
    try:
        answers = decode(model, ids, settings, mask, history=False, on_step=look if early else None).returned
    except _EnoughError as enough:
        answers = tuple(enough.canvas[:, width:])
    rows: list[list[int]] = [answer.tolist() for answer in answers]
    return rows


def text_of(model: Model, ids: list[int], stops: Sequence[str]) -> str:
    """The answer's text before its end token and before the first of its stop strings."""
    text, _ = _cut(model, ids, stops)
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def _stopped(model: Model, ids: list[int], stops: Sequence[str]) -> bool:
    text, ended = _cut(model, ids, stops)
    return ended or any(stop in text for stop in stops)


def _cut(model: Model, ids: list[int], stops: Sequence[str]) -> tuple[str, bool]:
    """Text before the first end token, or stop string that is a token of its own, and whether there was one."""
    tokenizer = model.require_tokenizer()
    known = tokenizer.get_added_vocab()
    ends = {*model.eos_ids, model.eot_id, *(known[stop] for stop in stops if stop in known)}
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    # Cleaning up would take the space before a comma away, in program text too.
    text = tokenizer.decode(ids[:first], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text), first is not None
