"""`sinkscope generate MODEL PROMPT`: text, with the canvas filling in while it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sinkscope.cli.app import LOOK, command
from sinkscope.cli.options import GenerateOptions, JsonFlag, ModelArgument, PromptArgument, read_prompt, refuse
from sinkscope.cli.screen import output, print_json
from sinkscope.errors import PromptError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from sinkscope.decoding import Decode
    from sinkscope.decoding.canvas import Step
    from sinkscope.models import Model

MASK = "░"
STYLES = {"masked": "dim", "new": "bold green", "known": ""}


@command(LOOK, 'sinkscope generate tiny-llada "Tom has 3 apples."')
def generate(
    model: ModelArgument,
    prompt: PromptArgument,
    top_p: Annotated[float | None, Option(help="Keep the likeliest tokens up to this probability.")] = None,
    top_k: Annotated[int | None, Option(help="Keep this many of the likeliest tokens.")] = None,
    guidance: Annotated[float | None, Option(help="Classifier-free guidance; 0 is none.")] = None,
    algorithm: Annotated[str | None, Option(help="Dream: origin, maskgit_plus, topk_margin or entropy.")] = None,
    threshold: Annotated[float | None, Option(help="Parallel: commit all tokens at least so sure.")] = None,
    factor: Annotated[float | None, Option(help="Parallel: the required confidence falls with the rank.")] = None,
    cache: Annotated[str | None, Option(help="Parallel: prefix, dual, or the name of another cache policy.")] = None,
    noise: Annotated[str | None, Option(help="reference (the authors' stream) or per_row.")] = None,
    pace: Annotated[float, Option(help="Seconds that each step stays on a terminal, at least.", min=0)] = 0,
    chat: Annotated[bool, Option(help="Put the prompt into the chat template, if there is one.")] = True,
    as_json: JsonFlag = False,
    *,
    options: GenerateOptions,
) -> None:
    """Generate text and watch the canvas fill in."""
    asked = read_prompt(prompt)
    if not isinstance(asked, str):
        refuse(PromptError, "with chat messages or token ids", no_chat=not chat)
    from sinkscope.decoding import decode

    words = options.decode_words(
        top_p=top_p, top_k=top_k, guidance=guidance, algorithm=algorithm, threshold=threshold, factor=factor,
        cache=cache, noise=noise,
    )  # fmt: skip
    loaded = options.load(model, threshold=threshold, factor=factor)
    ids = loaded.encode(asked, chat=None if chat else False)
    settings = chosen(loaded, ids.shape[1], words)
    console = output()
    started = time.perf_counter()
    if console.is_terminal and not as_json:
        with live_canvas(console, loaded, ids.shape[1], pace) as show:
            done = decode(loaded, ids, settings, history=False, on_step=show)
    else:
        done = decode(loaded, ids, settings, history=False)
    seconds = time.perf_counter() - started
    answer = done.returned[0]
    text = loaded.decode_text(answer)
    if as_json:
        print_json(
            {"model": loaded.identity(), "prompt": asked, "text": text, "tokens": answer.tolist(),
             "forwards": done.forwards, "seconds": round(seconds, 3), "settings": settings.to_dict()}
        )  # fmt: skip
    elif console.is_terminal:
        console.print(f"{done.forwards} forwards in {seconds:.1f} s", style="dim")
    else:
        print(printable(text))


def chosen(model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    """The model's own settings with these words changed; a threshold, factor or cache asks for parallel decoding."""
    from sinkscope.decoding import Decode, resolve_settings

    settings = model.defaults
    if {"threshold", "factor", "cache"} & set(words) and not model.causal:
        parallel = {name: words.pop(name) for name in ("threshold", "factor", "cache") if name in words}
        settings = Decode.parallel(length=settings.length, block=settings.block, **parallel)
    return resolve_settings(settings, model, prompt_length, words)


@contextmanager
def live_canvas(
    console: Console, model: Model, prompt_length: int, pace: float = 0
) -> Iterator[Callable[[Step], None]]:
    """Gives a callback for `decode`; what the last step committed stands out, masks are shaded.

    pace: seconds that each step stays on the screen, at least.
    """
    from rich.live import Live
    from rich.text import Text

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
    """One step of the first row; neighbours of one kind are decoded together: a sign may be spread over tokens."""
    from rich.text import Text

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
