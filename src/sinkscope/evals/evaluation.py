"""`evaluate`: a model, under an intervention, through the benchmarks; scores with intervals, resumable by request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.evals.asked import Choices, OnMessage, OnProgress, check_numbers
from sinkscope.evals.protocol import in_full

if TYPE_CHECKING:
    from sinkscope.evals.batches import Runner
    from sinkscope.models.base import Model

logger = logging.getLogger(__name__)


def evaluate(
    model: str | Model,
    tasks: Sequence[str],
    *,
    intervention: Any = None,
    out: Path | str | None = None,
    limit: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    engine: Any = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Score a model on harness tasks; with `out`, a killed run is resumed, and its score is the same.

    tasks: gsm8k and humaneval, as the protocol has them; forms of them (gsm8k_cot, gsm8k_cot_zeroshot, gsm8k_cot_llama,
    humaneval_instruct). Also sinkscope (our suite, or sinkscope_arithmetic, …), or any task of the harness, as they are.
    limit: the first so many problems. engine: a `Ray`, whose workers answer the requests in place of this process. The
    model is then a name, which this process loads too, on its CPU, for its tokenizer and its settings. on_message: is
    given one line for each thing worth printing; on_progress: how many answers are there, of how many. choices: protocol,
    settings and the other fields of `Choices`.
    """
    message = on_message or logger.info
    chosen = Choices(tuple(name.strip() for name in tasks if name.strip()), **choices)
    check_numbers(limit=limit)
    asked = chosen.build(outlined(model, engine))
    with loader(engine, dtype, device, message) as load:
        loaded, runner = load(model)
        asked = replace(asked, model=loaded)
        asked.tell(message)
        folder = None if out is None else Path(out)
        return asked.run(intervention, folder, runner=runner, limit=limit, on_progress=on_progress)[0]


def shown_prompts(name: str, choices: Choices) -> list[dict[str, Any]]:
    """The first problem of every task as the model would get it, with settings and stop strings; no weights are loaded.

    text is None where the checkpoint has no tokenizer here: then the turns are all that can be shown.
    """
    from sinkscope.evals.harness import HarnessLM
    from sinkscope.models.hub import TOKENIZER, snapshot

    model = outlined(name)
    if model.tokenizer is None and not Path(name).expanduser().exists():
        model.tokenizer = model.recipe.load_tokenizer(snapshot(name, TOKENIZER))
    asked = choices.build(model)
    found = []
    for task in asked.tasks:
        turns, text = asked.prompt(task), None
        if model.tokenizer is not None:
            lm, begun = HarnessLM(model, protocol=asked.protocol), turns[-1]["role"] == "assistant"
            chat = asked.turns(task) != "plain"
            text = lm.apply_chat_template(turns, add_generation_prompt=not begun) if chat else turns[0]["content"]
            text = lm.begun(task, text)
        until = asked.tasks[task].get_config("generation_kwargs") or {}
        found.append(
            {"task": task, "protocol": asked.protocol.name, "how": asked.how(task), "turns": turns, "text": text,
             "settings": in_full(asked.settings(task)), "stops": until.get("until"), "published": asked.published(task)}
        )  # fmt: skip
    return found


def outlined(model: str | Model, engine: Any = None) -> Model:
    """The model without its weights, so that whatever is missing is told before they are loaded."""
    from sinkscope.models.load import outline

    if isinstance(model, str):
        return outline(model)
    if engine is not None:
        raise TaskError(
            f"Expected the name of a model for other machines, got {model.name} as an object; name a zoo model, a folder "
            "or a Hub id."
        )
    return model


@contextmanager
def loader(
    engine: Any, dtype: str | None, device: str | None, message: OnMessage
) -> Iterator[Callable[[str | Model], tuple[Model, Runner]]]:
    """Gives a function: a model as this process needs it, and what answers its batches, here or with the engine's workers.

    With an engine the model is on the CPU here, whatever device the workers have.
    """
    from sinkscope.evals.batches import runner_of
    from sinkscope.models.load import load

    if engine is not None and dtype is None and device not in (None, "cpu"):
        raise TaskError(
            f"Expected a dtype for workers on {device}, so that this process loads the same numbers; add dtype bfloat16."
        )
    with nullcontext() if engine is None else engine.answering(device, message) as run:

        def loaded(model: str | Model) -> tuple[Model, Runner]:
            found = load(model, dtype=dtype, device=None if engine else device) if isinstance(model, str) else model
            return found, runner_of(found, run, dtype, device)

        yield loaded
