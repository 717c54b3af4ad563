"""`evaluate`: a model, under an intervention, through the benchmarks; scores with intervals, resumable by request.

`Choices` are what is asked of any model. `Asked` are the tasks as one model is asked them: the protocol's prompts, turns and
settings. `Asked.run` answers them under an intervention.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.evals.protocol import BENCHMARKS, OTHERWISE, Protocol, Setup, benchmark_of, protocol_for, settings_for
from sinkscope.evals.store import scores_of, settled, write_results
from sinkscope.fields import maybe, need, whole
from sinkscope.sandbox import require_sandbox
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from sinkscope.evals.batches import Runner
    from sinkscope.evals.harness import HarnessLM
    from sinkscope.models.base import Model

logger = logging.getLogger(__name__)
OnMessage = Callable[[str], object]
OnProgress = Callable[[int, int], object]  # answers there, answers in all
Part = tuple[int, int]  # the first of two, counted from 1


@dataclass(frozen=True)
class Choices:
    """What is asked, of whichever model: tasks and everything that their prompts and scores depend on."""

    names: tuple[str, ...]
    protocol: str | Protocol | None = None  # a name or a YAML file; by default the checkpoint's own, else `harness`
    settings: Decode | Mapping[str, Any] | None = None  # a Decode, or words that change single settings of the protocol
    data: Path | str | None = None  # folder with the benchmarks' JSON lines, for machines without a network
    examples: Path | None = None  # worked examples of a protocol that takes them from elsewhere
    fewshot: int | None = None  # examples, in place of the protocol's number
    chat: bool | None = None  # the model's chat template or none, in place of the protocol's turns
    batch_size: int = 8
    repeats: int = 1  # answers per problem of humaneval
    pass_at: Sequence[int] = (1,)  # the k of pass@k
    samples: int = 128  # maskings in a diffusion model's likelihood
    problems: int = 100  # size of each task of our suite
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.names:
            raise TaskError("Expected at least one task, got none; try gsm8k, humaneval or sinkscope.")
        check_numbers(batch_size=self.batch_size, repeats=self.repeats, samples=self.samples, problems=self.problems)
        need("fewshot", self.fewshot, maybe(whole(0)), TaskError)
        # Options that none of the tasks uses are refused: their results would look as if they had.
        forms, own = {benchmark_of(name) for name in self.names}, set(self.names) & set(BENCHMARKS)
        unused = {
            "repeats and pass_at": "humaneval" not in forms and (self.repeats, *self.pass_at) != (1, 1),
            "a data folder": forms == {None} and self.data is not None,
            "a protocol": not own and self.protocol is not None,
            "worked examples": not own and self.examples is not None,
        }
        if wrong := [what for what, is_unused in unused.items() if is_unused]:
            raise TaskError(f"No task of {', '.join(self.names)} uses {wrong[0]}; leave it out.")
        if self.folder is not None and not self.folder.is_dir():
            raise TaskError(f"Expected a folder with the benchmarks' JSON lines, got {self.data}, which is none.")

    @property
    def folder(self) -> Path | None:
        return None if self.data is None else Path(self.data).expanduser()

    def build(self, model: Model) -> Asked:
        """The tasks for this model, whose weights are not needed.

        Refuses what could not run: data, worked examples or the sandbox are missing.
        """
        from sinkscope.evals.benchmarks import load_tasks

        if any(name.startswith("humaneval") or name in ("sinkscope", "sinkscope_programs") for name in self.names):
            require_sandbox()  # now, and not after hours of generating
        protocol, setups = protocol_for(model.name, self.protocol), dict[str, Setup]()
        for name in set(self.names) & set(BENCHMARKS):
            setup = protocol.setup(name, model.name, model.family)
            if setup is None:
                raise TaskError(f"The protocol {protocol.name} does not say how {model.name} is asked {name}.")
            setups[name] = setup
        if self.examples is not None and not any(setup.worked for setup in setups.values()):
            raise TaskError(f"The protocol {protocol.name} takes no worked examples from elsewhere; leave them out.")
        with _quiet():
            return Asked(self, model, protocol, setups, load_tasks(self, setups, protocol.name))


@dataclass(frozen=True)
class Asked:
    """The tasks as one model is asked them; `run` answers them under an intervention."""

    choices: Choices
    model: Model
    protocol: Protocol
    setups: Mapping[str, Setup]
    tasks: Mapping[str, Any]  # the harness's, by name

    def tell(self, message: OnMessage) -> None:
        """What is worth knowing before a run; refuses a chat where there is no template."""
        if self.setups and self.choices.protocol is None:
            message(
                f"{self.model.name}: protocol {self.protocol.name}, that of this checkpoint"
                if self.protocol.name != OTHERWISE
                else f"{self.model.name} has no protocol of its own: {OTHERWISE} is taken, and no published score is "
                "shown (--protocol chooses another)"
            )
        for name in self.tasks:
            message(f"{name}: {self.how(name)}; {in_full(self.settings(name))}")
            for one in self.published(name):
                message(f"{name}: {one['score']:g} % without masking, by {one['by']}")

    def settings(self, name: str) -> Decode:
        return settings_for(self.model, name, self.choices.settings, None, self.protocol)

    def turns(self, name: str) -> str:
        """multi, single or plain: the option's, else the protocol's, else by whether there is a chat template."""
        setup, chat = self.setups.get(name), self.choices.chat
        own = "auto" if setup is None else setup.turns
        if chat is not None:
            own = ("multi" if own in ("auto", "plain") else own) if chat else "plain"
        if own == "auto":
            return "plain" if self.model.chat_template is None else "multi"
        if own != "plain" and self.model.chat_template is None:
            raise TaskError(
                f"{self.model.name} has no chat template, which {'chat' if chat else self.protocol.name} needs; add "
                "--no-chat, choose another protocol, or give its tokenizer one."
            )
        return own

    def layout(self, name: str) -> dict[str, Any]:
        """How the harness is to lay a task's prompts out."""
        turns, setup = self.turns(name), self.setups.get(name)
        return {
            "apply_chat_template": turns != "plain",
            "fewshot_as_multiturn": turns == "multi",
            "system_instruction": setup.system if setup else None,
        }

    def how(self, name: str) -> str:
        task, setup = self.tasks[name], self.setups.get(name)
        form = f"{setup.task} of the harness" if setup else "as the harness has it"
        return f"{form}, {task.get_config('num_fewshot')} examples, turns {self.turns(name)}"

    def published(self, name: str) -> list[dict[str, Any]]:
        """Scores of exactly this checkpoint under exactly this protocol; none where an option changes it."""
        setup, made = self.setups.get(name), self.choices
        if setup is None or (made.settings, made.fewshot, made.chat) != (None, None, None):
            return []
        return [asdict(one) for one in setup.published] if setup.of(self.model.name) else []

    def count(self, limit: int | None = None, part: Part | None = None) -> int:
        """How many answers are asked for."""
        sizes = [(len(task.eval_docs), int(task.get_config("repeats") or 1)) for task in self.tasks.values()]
        return math.ceil(sum(min(limit or size, size) * repeats for size, repeats in sizes) / (part or (1, 1))[1])

    def run(
        self,
        intervention: Any,
        out: Path | None = None,
        *,
        runner: Runner | None = None,
        part: Part | None = None,
        limit: int | None = None,
        order: Sequence[int] | None = None,
        words: Mapping[str, Any] = {},
        on_progress: OnProgress | None = None,
    ) -> tuple[dict[str, Any], HarnessLM]:
        """Answer and score; the summary, and the adapter that still has every answer.

        runner: what answers batches in place of this process. part: of the batches, which are not scored; it has a file of
        its own, so that several can be written in one folder. order: numbers of problems, of which the first `limit` are
        taken; by default the benchmark's own order. words: decode settings over those that were chosen.
        """
        from lm_eval.evaluator import evaluate as run_harness

        from sinkscope.evals.harness import HarnessLM, PartAnswered

        made, total, done = self.choices, self.count(limit), 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            if on_progress is not None:
                on_progress(done, max(done, total))

        file = "requests.jsonl" if part is None else "requests-{}-of-{}.jsonl".format(*part)
        given = made.settings
        settings = replace(given, **words) if isinstance(given, Decode) else {**(given or {}), **words}
        lm = HarnessLM(
            self.model, intervention, settings, protocol=self.protocol,
            batch_size=made.batch_size, samples=made.samples, seed=made.seed, store=None if out is None else out / file,
            runner=runner, part=part, on_answers=None if on_progress is None else tick,
        )  # fmt: skip
        results: defaultdict[str, dict[str, Any]] = defaultdict(dict)  # the harness's tables, by task
        for name, task in self.tasks.items():
            some: dict[str, Any] = {"limit": limit}
            if order is not None:
                some = {"samples": {name: sorted(self.drawn(name, order, limit))}}  # it takes them for sorted
            with suppress(PartAnswered), _quiet():
                found = run_harness(
                    lm, {"tasks": {name: task}}, **some, bootstrap_iters=0, log_samples=True, **self.layout(name)
                )
                for table, value in found.items():
                    results[table] |= value if isinstance(value, dict) else {}
        if part is not None:
            return {}, lm
        summary = {"schema": 1, "tasks": scores_of(results), "sinkscope": lm.get_model_info()["sinkscope"]}
        for name, entry in summary["tasks"].items():
            if name in self.setups:
                entry |= {"protocol": self.protocol.name, "published": self.published(name)}
            entry["turns"] = self.turns(name)
        summary["options"] = {
            "limit": limit, "fewshot": made.fewshot, "repeats": made.repeats, "samples": made.samples,
            "seed": made.seed, "problems": made.problems, "protocol": self.protocol.name if self.setups else None,
        }  # fmt: skip
        if out is not None:
            write_results(out, {**summary, "sinkscope": settled(summary["sinkscope"])}, results)
        return summary, lm

    def drawn(self, name: str, order: Sequence[int], limit: int | None) -> list[int]:
        """The first `limit` problems of the order that a task has."""
        return [number for number in order if number < len(self.tasks[name].eval_docs)][:limit]

    def prompt(self, name: str) -> list[dict[str, str]]:
        """The first problem's turns, the begun answer as the assistant's; plain text is one turn of no role."""
        task, layout, found = self.tasks[name], self.layout(name), list[dict[str, str]]()

        def keep(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            found.extend(messages)
            return ""

        doc, chat = task.eval_docs[0], layout["apply_chat_template"]
        text = task.fewshot_context(
            doc, task.get_config("num_fewshot"), **layout, chat_template=keep if chat else None,
            gen_prefix=task.doc_to_prefix(doc),
        )  # fmt: skip
        return found if chat else [{"role": "", "content": text}]


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


def in_full(settings: Decode) -> str:
    """Every setting on one line, defaults too: what was not printed cannot be compared."""
    return ", ".join(f"{name}={value}" for name, value in settings.to_dict().items())


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


def check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        need(name, number, maybe(whole(1)), TaskError)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the harness's advice on options that we set ourselves, and without its bar over the prompts."""
    import lm_eval.api.task

    import sinkscope.evals.harness  # noqa: F401 - says what to install where there is no harness

    logger, bar = logging.getLogger("lm_eval"), lm_eval.api.task.tqdm
    level = logger.level
    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm = bar
