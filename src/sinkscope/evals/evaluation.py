"""`evaluate`: a model, under an intervention, through the benchmarks; scores with intervals, resumable by request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.evals.asked import Choices, OnMessage, OnProgress, Place, check_numbers
from sinkscope.evals.protocol import in_full, settings_for

if TYPE_CHECKING:
    from sinkscope.evals.batches import Elsewhere, RunBatches
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
    engine: Elsewhere | None = None,
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
    from sinkscope.evals.harness import HarnessLM  # noqa: F401 - checks for lm_eval before anything is loaded

    check_named(engine, model)
    chosen.find_data(model if isinstance(model, str) else model.name)
    loaded = loaded_for(engine, model, dtype, device)
    with workers_of(engine, device, message) as run:
        asked = chosen.build(loaded, message)
        if chosen.examples is not None and not any(setup.worked for setup in asked.setups.values()):
            raise TaskError(
                f"The protocol {asked.protocol.name} takes no worked examples from elsewhere; leave them out."
            )
        place = Place(Path(out) if out is not None else None, dtype, device, run)
        return asked.run(intervention, place, limit=limit, on_progress=on_progress)[0]


def shown_prompts(name: str, choices: Choices) -> list[dict[str, Any]]:
    """The first problem of every task as the model would get it, with settings and stop strings; no weights are loaded.

    text is None where the checkpoint has no tokenizer here: then the turns are all that can be shown.
    """
    from sinkscope.evals.harness import HarnessLM
    from sinkscope.models.hub import TOKENIZER, snapshot
    from sinkscope.models.load import outline

    choices.find_data(name)
    model = outline(name)
    if model.tokenizer is None and not Path(name).expanduser().exists():
        model.tokenizer = model.recipe.load_tokenizer(snapshot(name, TOKENIZER))
    asked = choices.build(model, lambda line: None)
    found = []
    for task in asked.tasks:
        turns, text = asked.prompt(task), None
        if model.tokenizer is not None:
            lm, begun = HarnessLM(model, protocol=asked.protocol), turns[-1]["role"] == "assistant"
            chat = asked.turns(task) != "plain"
            text = lm.apply_chat_template(turns, add_generation_prompt=not begun) if chat else turns[0]["content"]
            text = lm.begun(task, text)
        settings = settings_for(model, task, choices.settings, None, asked.protocol)
        until = asked.tasks[task].get_config("generation_kwargs") or {}
        found.append(
            {"task": task, "protocol": asked.protocol.name, "how": asked.how(task), "turns": turns, "text": text,
             "settings": in_full(settings), "stops": until.get("until"), "published": asked.published(task)}
        )  # fmt: skip
    return found


def loaded_for(engine: Elsewhere | None, model: str | Model, dtype: str | None, device: str | None) -> Model:
    """The model as this process needs it; with an engine that is on the CPU, whatever device its workers have."""
    from sinkscope.models.load import load

    if not isinstance(model, str):
        return model
    if engine is None:
        return load(model, dtype=dtype, device=device)
    if dtype is None and device not in (None, "cpu"):
        raise TaskError(
            f"Expected a dtype for workers on {device}, so that this process loads the same numbers; add dtype bfloat16."
        )
    return load(model, dtype=dtype)


def check_named(engine: Elsewhere | None, model: str | Model) -> None:
    """Other machines find a model by its name."""
    if engine is not None and not isinstance(model, str):
        raise TaskError(
            f"Expected the name of a model for other machines, got {model.name} as an object; name a zoo model, a folder "
            "or a Hub id."
        )


def workers_of(
    engine: Elsewhere | None, device: str | None, say: OnMessage
) -> AbstractContextManager[RunBatches | None]:
    """The engine's workers for as long as the `with` lasts."""
    return nullcontext() if engine is None else engine.answering(device, say)
