"""Generation up to stop strings: a batch ends as soon as every row has reached one of its own."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Step
from sinkscope.decoding.decode import decode
from sinkscope.decoding.settings import Decode
from sinkscope.models.model import Model, pad

CHECK_EVERY = 8  # tokens between two looks for stop strings in a left-to-right generation


@dataclass(frozen=True)
class StoppedAnswer:
    """One row up to its first stop."""

    text: str
    ids: list[int]
    steps: list[int] | None  # when each token was committed; None where that is the order of the text


class _AllRowsStoppedError(Exception):
    """What follows would be cut off anyway."""


def generate_until(
    model: Model, prompts: Sequence[Tensor], settings: Decode, stops: Sequence[Sequence[str]]
) -> list[StoppedAnswer]:
    """Prompts [1, position] → their answers, each up to the first of its stop strings, in one padded batch."""
    rows, order = answer_tokens(model, prompts, settings, stops)
    # In other layouts each row's answer begins in a column of its own.
    timed = settings.layout == "answer" and not model.causal
    answers = []
    for ids, own, when in zip(rows, stops, order, strict=True):
        count = count_kept_tokens(model, ids, own)  # what follows depends on how long the rest of the batch took
        steps = when[:count].tolist() if timed else None
        answers.append(StoppedAnswer(read_answer(model, ids, own)[0], ids[:count], steps))
    return answers


def answer_tokens(
    model: Model, prompts: Sequence[Tensor], settings: Decode, stops: Sequence[Sequence[str]] = ()
) -> tuple[list[list[int]], Tensor]:
    """Prompts [1, position] → answer ids, in one batch; ends as soon as every row has reached one of its stops.

    What is committed stays, and blocks are filled from left to right: so ending early changes no text before a stop.
    The second value is [batch, position]: the step of the last commit of every position of the answer, −1 for none.
    """
    ids, mask = pad(list(prompts), model)
    width = ids.shape[1]
    order, whole = torch.full((len(prompts), 0), -1), ids[:, width:]
    # In other layouts each row's answer begins in a column of its own.
    early = bool(stops) and all(stops) and settings.layout == "answer"

    def look(step: Step) -> None:
        nonlocal order, whole
        if order.shape[1] < step.canvas.shape[1] - width:
            order = torch.full((len(prompts), step.canvas.shape[1] - width), -1)
        order[step.committed[:, width:].cpu()] = step.index
        if not early or (settings.left_to_right and step.index % CHECK_EVERY):
            return
        whole = step.canvas[:, width : step.block[1]]
        if model.mask_id is not None and bool((whole == model.mask_id).any()):
            return
        if all(read_answer(model, row, own)[1] for row, own in zip(whole.tolist(), stops, strict=True)):
            raise _AllRowsStoppedError

    try:
        answers = decode(model, ids, settings, mask, history=False, on_step=look).returned
    except _AllRowsStoppedError:
        answers = tuple(whole)
    rows: list[list[int]] = [answer.tolist() for answer in answers]
    return rows, order


def count_kept_tokens(model: Model, ids: list[int], stops: Sequence[str]) -> int:
    """How many tokens stand before the end token, or up to and with the first stop string."""
    count = bisect.bisect_left(range(len(ids)), True, key=lambda count: read_answer(model, ids[:count], stops)[1])
    return count - 1 if count and ids[count - 1] in end_tokens(model, stops) else count


def read_answer(model: Model, ids: list[int], stops: Sequence[str]) -> tuple[str, bool]:
    """Text before the first end token and the first stop string, and whether there was one."""
    ends = end_tokens(model, stops)
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    # Cleaning up would take the space before a comma away, in program text too.
    tokenizer = model.require_tokenizer()
    text = str(tokenizer.decode(ids[:first], skip_special_tokens=True, clean_up_tokenization_spaces=False))
    ended = first is not None or any(stop in text for stop in stops)
    for stop in stops:
        text = text.partition(stop)[0]
    return text, ended


def end_tokens(model: Model, stops: Sequence[str]) -> set[int | None]:
    """End tokens, and stop strings that are a token of their own."""
    known = model.require_tokenizer().get_added_vocab()
    return {*model.eos_ids, model.eot_id, *(known[stop] for stop in stops if stop in known)}
