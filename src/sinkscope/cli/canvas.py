"""The canvas while it fills in, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sinkscope.cli.screen import printable
from sinkscope.decoding.run import Step
from sinkscope.models.base import Model

MASK = "░"
STYLES = {"masked": "dim", "new": "bold green", "known": ""}


@contextmanager
def live_canvas(
    console: Console, model: Model, prompt_length: int, pace: float = 0
) -> Iterator[Callable[[Step], None]]:
    """Gives a callback for `decode`; what the last step committed stands out, masks are shaded.

    pace: seconds that each step stays on the screen, at least.
    """
    with Live(Text(), console=console, refresh_per_second=12, vertical_overflow="crop") as live:
        last: list[Step] = []

        def show(step: Step) -> None:
            last[:] = [step]
            live.update(drawn(model, step, prompt_length))
            time.sleep(pace)

        yield show
        if last:  # leave the finished answer on the screen, with nothing standing out and nothing after its end
            live.update(Text(printable(model.decode_text(last[0].canvas[0, prompt_length:]))))


def drawn(model: Model, step: Step, prompt_length: int) -> Text:
    """One step of the first row. Neighbours of one kind are decoded together: a sign may be spread over tokens."""
    tokenizer = model.require_tokenizer()
    ids = step.canvas[0, prompt_length:].tolist()
    new = step.committed[0, prompt_length:].tolist()
    if model.causal:  # what lies right of the token just written does not exist yet
        ids, new = ids[: step.block[1] - prompt_length], new[: step.block[1] - prompt_length]
    kinds = [
        "masked" if token == model.mask_id else "new" if fresh else "known"
        for token, fresh in zip(ids, new, strict=True)
    ]
    text = Text()
    for kind, run in groupby(range(len(ids)), key=kinds.__getitem__):
        part = [ids[place] for place in run]
        text.append(MASK * len(part) if kind == "masked" else printable(str(tokenizer.decode(part))), STYLES[kind])
    return text
