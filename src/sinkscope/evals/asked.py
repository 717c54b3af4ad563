"""Tasks as one model is asked them: the protocol's prompts, turns and settings; and a run of them under an intervention."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.evals.protocol import (
    BENCHMARKS,
    OTHERWISE,
    Protocol,
    Setup,
    benchmark_of,
    checkpoint_of,
    in_full,
    protocol_for,
    settings_for,
)
from sinkscope.evals.scores import summarise, write_summary
from sinkscope.evals.worked import worked_examples
from sinkscope.fields import maybe, need, whole
from sinkscope.sandbox import require_sandbox
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from sinkscope.evals.batches import RunBatches
    from sinkscope.evals.harness import HarnessLM
    from sinkscope.models.base import Model

OnMessage = Callable[[str], object]
OnProgress = Callable[[int, int], object]  # answers there, answers in all
Part = tuple[int, int]  # the first of two, counted from 1


@dataclass(frozen=True)
class Place:
    """Where requests are answered and kept."""

    out: Path | None = None
    dtype: str | None = None
    device: str | None = None
    run: RunBatches | None = None  # workers elsewhere; None: this process
    part: Part | None = None  # of the batches; None: all

    @property
    def requests(self) -> Path | None:
        """The file of the answers; a part has one of its own, so that several can be written in one folder."""
        if self.out is None:
            return None
        return self.out / ("requests.jsonl" if self.part is None else "requests-{}-of-{}.jsonl".format(*self.part))


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
        names = self.names
        if not names:
            raise TaskError("Expected at least one task, got none; try gsm8k, humaneval or sinkscope.")
        check_numbers(
            fewshot=self.fewshot, batch_size=self.batch_size, repeats=self.repeats, samples=self.samples,
            problems=self.problems,
        )  # fmt: skip
        # Options that none of the tasks uses are refused: their results would look as if they had.
        if not any(name.startswith("humaneval") for name in names) and (self.repeats, *self.pass_at) != (1, 1):
            raise TaskError(
                f"Only humaneval draws several answers per problem; leave repeats and pass_at out for {names[0]}."
            )
        if self.data is not None and not any(benchmark_of(name) for name in names):
            raise TaskError(f"Only gsm8k and humaneval are read from a data folder; leave it out for {names[0]}.")
        given = {"a protocol": self.protocol, "worked examples": self.examples}
        if (used := [what for what, value in given.items() if value is not None]) and not set(names) & set(BENCHMARKS):
            raise TaskError(f"Only gsm8k and humaneval have {used[0]}; leave it out for {names[0]}.")
        if self.data is not None and not self.folder.is_dir():  # type: ignore[union-attr]
            raise TaskError(f"Expected a folder with the benchmarks' JSON lines, got {self.data}, which is none.")

    @property
    def folder(self) -> Path | None:
        return None if self.data is None else Path(self.data).expanduser()

    def find_data(self, name: str) -> None:
        """Refuse what cannot run before a model is loaded: data, worked examples or the sandbox are missing."""
        from sinkscope.evals.benchmarks import find_data

        if any(one.startswith("humaneval") or one in ("sinkscope", "sinkscope_programs") for one in self.names):
            require_sandbox()  # now, and not after hours of generating
        protocol = protocol_for(name, self.protocol)
        setups = [one for one in protocol.setups if one.benchmark == "gsm8k" and "gsm8k" in self.names]
        setups = [one for one in setups if one.of(checkpoint_of(name))] or setups
        if setups and all(one.worked for one in setups) and self.fewshot != 0:
            worked_examples(self.examples, self.fewshot or setups[0].examples or 0, protocol.name)
        _quietly(lambda: find_data(self.names, self.folder))

    def build(self, model: Model, message: OnMessage) -> Asked:
        """The tasks for this model, with what is worth knowing about them printed."""
        from sinkscope.evals.benchmarks import load_tasks

        protocol, checkpoint = protocol_for(model.name, self.protocol), checkpoint_of(model.name)
        setups: dict[str, Setup] = {}
        for name in self.names:
            if name in BENCHMARKS:
                setup = protocol.setup(name, checkpoint, model.family)
                if setup is None:
                    raise TaskError(f"The protocol {protocol.name} does not say how {model.name} is asked {name}.")
                setups[name] = setup
        tasks = _quietly(
            lambda: load_tasks(
                self.names, data=self.folder, fewshot=self.fewshot, repeats=self.repeats, pass_at=self.pass_at,
                problems=self.problems, seed=self.seed, setups=setups, examples=self.examples, protocol=protocol.name,
            )
        )  # fmt: skip
        asked = Asked(self, model, protocol, setups, tasks)
        if setups and self.protocol is None:
            message(
                f"{model.name}: protocol {protocol.name}, that of this checkpoint"
                if protocol.name != OTHERWISE
                else f"{model.name} has no protocol of its own: {OTHERWISE} is taken, and no published score is shown "
                "(--protocol chooses another)"
            )
        for name in tasks:
            message(f"{name}: {asked.how(name)}; {in_full(settings_for(model, name, self.settings, None, protocol))}")
            for one in asked.published(name):
                message(f"{name}: {one['score']:g} % without masking, by {one['by']}")
        if "humaneval" in self.names and protocol.name == OTHERWISE and asked.turns("humaneval") != "plain":
            message("humaneval wants a continuation, which a chat seldom is: humaneval_instruct is meant for chats.")
        return asked


@dataclass(frozen=True)
class Asked:
    """The tasks as one model is asked them; `run` answers them under an intervention."""

    choices: Choices
    model: Model
    protocol: Protocol
    setups: Mapping[str, Setup]
    tasks: Mapping[str, Any]  # the harness's, by name

    def turns(self, name: str) -> str:
        """multi, single or plain: the option's, else the protocol's, else by whether there is a chat template."""
        setup, chat = self.setups.get(name), self.choices.chat
        own = "auto" if setup is None else setup.turns
        if chat is not None:
            own = ("multi" if own in ("auto", "plain") else own) if chat else "plain"
        if own == "auto":
            return "plain" if self.model.chat_template is None else "multi"
        if own != "plain" and self.model.chat_template is None:
            what = "leave chat out" if chat else f"choose another protocol than {self.protocol.name}, or --no-chat"
            raise TaskError(f"{self.model.name} has no chat template; {what}, or give its tokenizer one.")
        return own

    def how(self, name: str) -> str:
        task, setup = self.tasks[name], self.setups.get(name)
        form = f"{setup.task} of the harness" if setup else "as the harness has it"
        return f"{form}, {task.get_config('num_fewshot')} examples, turns {self.turns(name)}"

    def published(self, name: str) -> list[dict[str, Any]]:
        """Scores of exactly this checkpoint under exactly this protocol; none where an option changes it."""
        setup, made = self.setups.get(name), self.choices
        changed = made.settings is not None or made.fewshot is not None or made.chat is not None
        exact = setup is not None and setup.of(checkpoint_of(self.model.name)) and not changed
        return [asdict(one) for one in setup.published] if setup is not None and exact else []

    def count(self, limit: int | None = None) -> int:
        """How many answers are asked for."""
        sizes = {name: len(task.eval_docs) for name, task in self.tasks.items()}
        repeats = {name: int(task.get_config("repeats") or 1) for name, task in self.tasks.items()}
        return sum(min(limit or size, size) * repeats[name] for name, size in sizes.items())

    def run(
        self,
        intervention: Any,
        place: Place,
        *,
        limit: int | None = None,
        order: Sequence[int] | None = None,
        settings: Decode | Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
    ) -> tuple[dict[str, Any], HarnessLM]:
        """Answer and score; the summary, and the adapter that still has every answer.

        A part is not scored.
        order: numbers of problems, of which the first `limit` are taken; by default the benchmark's own order.
        """
        from sinkscope.evals.batches import job_of
        from sinkscope.evals.harness import HarnessLM, PartAnswered

        made, total, done = self.choices, self.count(limit), 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            if on_progress is not None:
                on_progress(done, max(done, total))

        job = None if place.run is None else (place.run, job_of(self.model, place.dtype, place.device, intervention))
        lm = HarnessLM(
            self.model, intervention, made.settings if settings is None else settings, protocol=self.protocol,
            batch_size=made.batch_size, samples=made.samples, seed=made.seed,
            store=place.requests, elsewhere=job, part=place.part,
            on_answers=None if on_progress is None else tick,
        )  # fmt: skip
        results: dict[str, Any] = {}
        for name, task in self.tasks.items():
            with suppress(PartAnswered):
                for part, value in self._asked(
                    lm, name, task, limit, order
                ).items():  # of the harness's, table by table
                    both = isinstance(value, dict) and isinstance(results.get(part), dict)
                    results[part] = results[part] | value if both else value
        if place.part is not None:
            return {}, lm
        summary = summarise(results, lm.get_model_info()["sinkscope"])
        for name, entry in summary["tasks"].items():
            if name in self.setups:
                entry |= {"protocol": self.protocol.name, "published": self.published(name)}
            entry["turns"] = self.turns(name)
        summary["options"] = {
            "limit": limit, "fewshot": made.fewshot, "repeats": made.repeats, "samples": made.samples,
            "seed": made.seed, "problems": made.problems, "protocol": self.protocol.name if self.setups else None,
        }  # fmt: skip
        if place.out is not None:
            write_summary(place.out, {**summary, "sinkscope": settled(summary["sinkscope"])}, results)
        return summary, lm

    def _asked(self, lm: Any, name: str, task: Any, limit: int | None, order: Sequence[int] | None) -> dict[str, Any]:
        """One task through the harness: layout of turns and system prompt are the task's own."""
        from lm_eval.evaluator import evaluate as run_harness

        turns, setup = self.turns(name), self.setups.get(name)
        some: dict[str, Any] = {"limit": limit}
        if order is not None:
            some = {"samples": {name: sorted(self.drawn(name, order, limit))}}  # it takes them for sorted
        found: dict[str, Any] = _quietly(
            lambda: run_harness(
                lm, {"tasks": {name: task}}, **some, bootstrap_iters=0, log_samples=True,
                apply_chat_template=turns != "plain", fewshot_as_multiturn=turns == "multi",
                system_instruction=setup.system if setup else None,
            )
        )  # fmt: skip
        return found

    def drawn(self, name: str, order: Sequence[int], limit: int | None) -> list[int]:
        """The first `limit` problems of the order that a task has."""
        return [number for number in order if number < len(self.tasks[name].eval_docs)][:limit]

    def prompt(self, name: str) -> list[dict[str, str]]:
        """The first problem's turns, the begun answer as the assistant's; plain text is one turn of no role."""
        task, turns, setup = self.tasks[name], self.turns(name), self.setups.get(name)
        found: list[dict[str, str]] = []

        def keep(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            found.extend(messages)
            return ""

        doc = task.eval_docs[0]
        text = task.fewshot_context(
            doc, task.get_config("num_fewshot"), system_instruction=setup.system if setup else None,
            apply_chat_template=turns != "plain", fewshot_as_multiturn=turns == "multi",
            chat_template=keep if turns != "plain" else None, gen_prefix=task.doc_to_prefix(doc),
        )  # fmt: skip
        return found if turns != "plain" else [{"role": "", "content": text}]


def settled(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says about itself, the same however often it was stopped: files have that."""
    counts = info["requests"]
    done = {"truncated": counts.get("truncated", 0), "answered": counts.get("found", 0) + counts.get("generated", 0)}
    return {**info, "requests": done}


def check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        need(name, number, maybe(whole(0 if name == "fewshot" else 1)), TaskError)


def _quietly(call: Callable[[], Any]) -> Any:
    """Without the harness's advice on options that we set ourselves, and without its bar over the prompts."""
    import lm_eval.api.task

    logger, bar = logging.getLogger("lm_eval"), lm_eval.api.task.tqdm
    level = logger.level
    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = functools.partial(bar, disable=True)
    try:
        return call()
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm = bar
