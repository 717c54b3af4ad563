"""GSM8K and HumanEval as tasks: the harness's own prompts and filters, our data where asked, our sandbox for code.

The harness's humaneval fetches its scorer from the hub as soon as it is imported, and runs generated code in its own
process. Ours takes prompt, stop strings and filter name from the installed harness and scores in the sandbox; the
task's metadata says so. With a data folder nothing is fetched: GSM8K and HumanEval are read from its JSON lines.
"""

from __future__ import annotations

import ast
import functools
import gzip
import hashlib
import importlib.util
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import SinkscopeError, TaskError
from sinkscope.files import report_damage
from sinkscope.sandbox import Limits, check_many, require_sandbox
from sinkscope.tasks.protocol import BENCHMARKS, Protocol, Setup, benchmark_of, protocol_for, settings_for
from sinkscope.tasks.sanitize import program

if TYPE_CHECKING:
    from sinkscope.decoding import Decode
    from sinkscope.models.model import Model

FILES = {"gsm8k": "gsm8k_test", "humaneval": "HumanEval"}
TRAIN = "gsm8k_train"
FIELDS = {"gsm8k": {"question", "answer"}, "humaneval": {"prompt", "test", "entry_point"}}
FEWSHOT_SEED = 1234  # the harness's own
LIMITS = Limits(seconds=10.0)  # of one solution and all of its tests
GSM8K = ("gsm8k", "gsm8k_cot", "gsm8k_cot_zeroshot", "gsm8k_cot_llama")
HUMANEVAL = ("humaneval", "humaneval_instruct")
# What counts as right, first match first.
MAIN = ("exact_match,flexible-extract", "pass@1,create_test", "exact_match,none")


@dataclass(frozen=True)
class BenchmarkPlan:
    """A benchmark as a study or a command asks for it."""

    name: str  # gsm8k and humaneval, as the protocol has them, or one of the harness's forms of them
    protocol: str | Protocol | None = None  # a name or a YAML file; by default the checkpoint's own, else `harness`
    data: Path | None = None  # folder with the benchmarks' JSON lines, for machines without a network
    examples: Path | None = None  # worked examples of a protocol that takes them from elsewhere
    fewshot: int | None = None  # examples, in place of the protocol's number
    chat: bool | None = None  # the model's chat template or none, in place of the protocol's turns
    decode: Mapping[str, Any] | None = None  # words over the protocol's decode settings

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_dir():
            raise TaskError(f"Expected a folder with the benchmarks' JSON lines, got {self.data}, which is none.")
        if self.name not in BENCHMARKS and (self.protocol, self.examples) != (None, None):
            raise TaskError(f"{self.name} is asked as the harness has it; leave protocol and examples out.")


class Benchmark:
    """A benchmark as one model is asked it, whose weights are not needed: prompts, settings, and what is right."""

    def __init__(self, plan: BenchmarkPlan, model: Model, limit: int | None = None) -> None:
        """limit: no more problems than the first so many are asked.

        Refuses what could not run: data, worked examples, a chat template or the sandbox are missing."""
        if plan.name in HUMANEVAL:
            require_sandbox()  # now, and not after hours of generating
        self.plan, self.model, self.limit = plan, model, limit
        self.protocol = protocol_for(model.name, plan.protocol)
        self.setup = self._own_setup()
        used = self.setup or Setup(benchmark_of(plan.name) or "", plan.name)  # type: ignore[arg-type]
        if plan.examples is not None and not used.worked:
            raise TaskError(
                f"The protocol {self.protocol.name} takes no worked examples from elsewhere; leave them out."
            )
        make = _humaneval if plan.name in HUMANEVAL else _gsm8k
        with _quiet():
            self.task = make(plan, used, self.protocol.name)
        shots = self.task.get_config("num_fewshot")
        if shots != 0 and (plan.fewshot is not None or shots is None):
            self.task.set_config(key="num_fewshot", value=plan.fewshot or 0)

    def _own_setup(self) -> Setup | None:
        if self.plan.name not in BENCHMARKS:
            return None
        found = self.protocol.setup(self.plan.name, self.model.name, self.model.family.name)
        if found is None:
            raise TaskError(
                f"The protocol {self.protocol.name} does not say how {self.model.name} is asked {self.plan.name}."
            )
        return found

    @property
    def turns(self) -> str:
        """multi, single or plain: the option's, else the protocol's, else by whether there is a chat template."""
        chat = self.plan.chat
        own = "auto" if self.setup is None else self.setup.turns
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

    @property
    def layout(self) -> dict[str, Any]:
        """How the harness is to lay the prompts out."""
        return {
            "apply_chat_template": self.turns != "plain",
            "fewshot_as_multiturn": self.turns == "multi",
            "system_instruction": self.setup.system if self.setup else None,
        }

    @property
    def size(self) -> int:
        """How many problems there are."""
        return len(self.task.eval_docs)

    @property
    def about(self) -> dict[str, Any]:
        """Everything that prompts and scores depend on."""
        return {
            "protocol": self.protocol.name, "turns": self.turns, "examples": self.task.get_config("num_fewshot"),
            "published": self.published, **self.task.get_config("metadata"),
        }  # fmt: skip

    @property
    def how(self) -> str:
        form = f"{self.setup.task} of the harness" if self.setup else "as the harness has it"
        return f"{form}, {self.task.get_config('num_fewshot')} examples, turns {self.turns}"

    @property
    def published(self) -> list[dict[str, Any]]:
        """Scores of exactly this checkpoint under exactly this protocol; none where an option changes it."""
        plan, setup = self.plan, self.setup
        if setup is None or plan.decode or (plan.fewshot, plan.chat) != (None, None):
            return []
        return [asdict(one) for one in setup.published] if setup.of(self.model.name) else []

    def settings(self, words: Mapping[str, Any] | None = None) -> Decode:
        """The protocol's decode settings under those of the plan, and further words over them."""
        return settings_for(
            self.model, self.plan.name, {**(self.plan.decode or {}), **(words or {})}, None, self.protocol
        )

    @cached_property
    def instances(self) -> list[Any]:
        """The harness's request of every problem, by number."""
        from sinkscope.tasks.harness import HarnessLM

        self.adapter = HarnessLM(self.model, settings=self.plan.decode or None, protocol=self.protocol)
        with _quiet():
            self.task.set_fewshot_seed(seed=FEWSHOT_SEED)
            self.task.build_all_requests(
                limit=self.limit,
                **self.layout,
                chat_template=self.adapter.apply_chat_template,
                tokenizer_name=self.adapter.tokenizer_name,
            )
        return sorted(self.task.instances, key=lambda one: int(one.doc_id))

    def prompt(self, number: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Token ids of a problem's prompt, and the strings that end its answer."""
        _, ids, stops = self.adapter.read_request(self.instances[number]) if self.instances else (None, (), ())
        return ids, stops

    def grade(self, numbers: Sequence[int], texts: Sequence[str]) -> list[bool]:
        """Whether each text answers its problem, by the task's own filters and metric."""
        chosen = [self.instances[number] for number in numbers]
        for instance, text in zip(chosen, texts, strict=True):
            instance.resps, instance.filtered_resps = [text], {}
        self.task._instances = chosen
        self.task.apply_filters()
        verdicts = []
        for instance in chosen:
            scores: dict[str, float] = {}
            for kept, filtered in instance.filtered_resps.items():
                found = self.task.process_results(instance.doc, [filtered])
                scores |= {f"{metric},{kept}": value for metric, value in found.items()}
            metric = next(name for name in MAIN if name in scores)
            verdicts.append(bool(scores[metric]))
        return verdicts

    def messages(self) -> list[dict[str, str]]:
        """The first problem's turns, the begun answer as the assistant's; plain text is one turn of no role."""
        found: list[dict[str, str]] = []

        def keep(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            found.extend(messages)
            return ""

        doc, chat = self.task.eval_docs[0], self.layout["apply_chat_template"]
        self.task.set_fewshot_seed(seed=FEWSHOT_SEED)
        text = self.task.fewshot_context(
            doc, self.task.get_config("num_fewshot"), **self.layout, chat_template=keep if chat else None,
            gen_prefix=self.task.doc_to_prefix(doc),
        )  # fmt: skip
        return found if chat else [{"role": "", "content": text}]

    def first_text(self) -> str | None:
        """The first prompt as text; None where there is no tokenizer."""
        if self.model.tokenizer is None:
            return None
        from sinkscope.tasks.harness import HarnessLM

        adapter, turns = HarnessLM(self.model, protocol=self.protocol), self.messages()
        begun = turns[-1]["role"] == "assistant"
        chat = self.turns != "plain"
        text = adapter.apply_chat_template(turns, add_generation_prompt=not begun) if chat else turns[0]["content"]
        return adapter.begun(self.plan.name, text)

    @property
    def stops(self) -> list[str]:
        return list((self.task.get_config("generation_kwargs") or {}).get("until") or [])


def is_benchmark(name: str) -> bool:
    return name in GSM8K or name in HUMANEVAL


def is_foreign(name: str) -> bool:
    """Whether the installed harness has a task of that name that is not run as one of ours."""
    if is_benchmark(name) or name.startswith("sinkscope"):
        return False
    from lm_eval.tasks import TaskManager

    return name in TaskManager().all_tasks


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the harness's advice on options that we set ourselves, and without its bar over the prompts."""
    from lm_eval.api import task

    import sinkscope.tasks.harness  # which says what to do where lm_eval is not installed  # noqa: F401

    logger, bar = logging.getLogger("lm_eval"), task.tqdm
    level = logger.level
    logger.setLevel(logging.ERROR)
    task.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        task.tqdm = bar


# ---- GSM8K


def _gsm8k(plan: BenchmarkPlan, setup: Setup, protocol: str) -> Any:
    config, data = _harness_config("gsm8k", setup.task.replace("_", "-")), plan.data
    asked = plan.fewshot if plan.fewshot is not None else setup.examples
    shots = config["num_fewshot"] if asked is None else asked
    source, train = _find(data, FILES["gsm8k"]), None
    if data is not None and config.get("training_split") is not None:
        train = _find(data, TRAIN, needed=False)
        if train is None and asked:
            raise TaskError(
                f"{setup.task} takes its {asked} examples from {TRAIN}.jsonl, which {data} does not hold; put it "
                "there, use 0 examples, or take gsm8k_cot, which carries its own."
            )
        if train is None:
            shots = 0
            config |= {"training_split": None, "fewshot_split": None}
    config = {**config, **_changed(config, setup), "task": plan.name, "num_fewshot": shots}
    if setup.worked and plan.fewshot != 0:
        worked = worked_examples(plan.examples, plan.fewshot or setup.examples or 0, protocol)
        config["doc_to_text"] = (
            f"{{% if user is defined %}}{{{{user}}}}{{% else %}}{config['doc_to_text']}{{% endif %}}"
        )
        config |= {"fewshot_config": {"sampler": "first_n", "samples": worked}, "target_delimiter": ""}
    if setup.extract is not None:
        pattern = {"function": "regex", "group_select": -1, "regex_pattern": setup.extract}
        config["filter_list"] = [{"name": "flexible-extract", "filter": [pattern, {"function": "take_first"}]}]
    return _task(config, {"examples": shots, "harness_task": setup.task}, {"test": source, "train": train}, "gsm8k")


def _changed(config: dict[str, Any], setup: Setup) -> dict[str, Any]:
    """What a protocol puts in place of a task's own text and stop strings."""
    words = {"doc_to_text": setup.question, "gen_prefix": setup.prefix}
    until = None if setup.stops is None else {**config["generation_kwargs"], "until": list(setup.stops)}
    return {name: value for name, value in {**words, "generation_kwargs": until}.items() if value is not None}


OPENCOMPASS = "gsm8k_gen_1d7fe4.py"  # what OpenCompass's gsm8k_gen stands for


def worked_examples(file: Path | None, count: int, protocol: str) -> list[dict[str, str]]:
    """Turns of `user` and `target` (the assistant's) that a protocol's authors took from OpenCompass: read, never copied.

    file: OpenCompass's own configuration, which is parsed and not run; by default that of an installed opencompass.
    """
    spec = importlib.util.find_spec("opencompass")
    folders = list(spec.submodule_search_locations or []) if spec else []
    places = [Path(folder) / "configs" / "datasets" / "gsm8k" / OPENCOMPASS for folder in folders]
    path = file or next((place for place in places if place.is_file()), None)
    if path is None:
        raise TaskError(
            f"The protocol {protocol} takes {count} worked examples from OpenCompass, which is not installed; pip install "
            f"opencompass, name its {OPENCOMPASS} with --examples, or choose another protocol, such as --protocol paper."
        )
    with report_damage(str(path), TaskError, f"name OpenCompass's {OPENCOMPASS}"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
    turns = []  # dict(role='HUMAN', prompt=…) and dict(role='BOT', prompt=…)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
            if {"role", "prompt"} <= words.keys():
                turns.append((node.lineno, node.col_offset, words["role"], str(words["prompt"])))
    pairs = itertools.pairwise(sorted(turns))  # in their order; the question has no pair
    found = [{"user": a[3], "target": b[3]} for a, b in pairs if (a[2], b[2]) == ("HUMAN", "BOT")]
    if len(found) < count:
        raise TaskError(f"Expected {count} worked examples for {protocol} in {path}, got {len(found)}.")
    return found[:count]


# ---- HumanEval


def _humaneval(plan: BenchmarkPlan, setup: Setup, protocol: str) -> Any:
    if plan.fewshot:
        raise TaskError(
            f"{plan.name} takes no examples, so that {plan.fewshot} would have no effect; leave fewshot out."
        )
    config = _harness_config("humaneval", setup.task)
    how = setup.sanitize or ("fence" if setup.task == "humaneval_instruct" else "continue")

    def judge(answers: Iterable[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[bool]]:
        """All answers of all problems at once, several sandboxes at a time."""
        jobs, sizes = [], []
        for several, doc in zip(answers, docs, strict=True):
            sizes.append(len(several))
            jobs += [human_eval_job(doc, program(doc, answer, how)) for answer in several]
        verdicts = iter([result.ok for result in check_many(jobs)])
        return [[next(verdicts) for _ in range(size)] for size in sizes]

    def scores(doc: dict[str, Any], results: list[list[bool]]) -> dict[str, float]:
        return {"pass@1": pass_at_k(len(results[0]), sum(results[0]), 1)}

    config |= {
        **_changed(config, setup),
        "task": plan.name,
        "unsafe_code": False,  # what the harness warns of does not happen: the code runs in the sandbox
        "process_results": scores,
        "metric_list": [{"metric": "pass@1", "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [{"name": "create_test", "filter": [{"function": "custom", "filter_fn": judge}]}],
    }
    note = {"scored_by": "sinkscope's sandbox", "harness_task": setup.task, "sanitize": how}
    return _task(config, note, {"test": _find(plan.data, FILES["humaneval"])}, "humaneval")


def human_eval_job(doc: dict[str, Any], code: str) -> dict[str, Any]:
    """Arguments of the sandbox's `check`: the tests take one function from the program, helpers from the prompt."""
    return {
        "code": code,
        "tests": f"{doc['test']}\ncheck({doc['entry_point']})\n",
        "setup": doc["prompt"],
        "names": [doc["entry_point"]],
        "limits": LIMITS,
    }


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that one of k answers is right, when `correct` of n drawn ones were (unbiased)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


# ---- the harness's side


def load_harness_tasks(names: Sequence[str]) -> dict[str, Any]:
    """Any other tasks of the harness, by name; their data come from where the harness takes them."""
    from lm_eval.tasks import TaskManager

    found: dict[str, Any] = {}
    for name in names:
        try:
            with _fetching(name):
                found |= TaskManager().load([name])["tasks"]
        except KeyError:
            ours = ", ".join([*GSM8K, *HUMANEVAL, "sinkscope"])
            raise TaskError(f"Expected a task of lm-evaluation-harness or one of {ours}, got {name!r}.") from None
    return found


def _harness_config(folder: str, file: str) -> dict[str, Any]:
    """A task's YAML of the installed harness, its functions left as names: importing them would use the network."""
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    config: dict[str, Any] = load_yaml(
        Path(lm_eval.tasks.__file__).parent / folder / f"{file}.yaml", resolve_func=False
    )
    config.pop("tag", None)
    return config


def _task(
    config: dict[str, Any], note: dict[str, Any], splits: Mapping[str, Path | list[Any] | None], benchmark: str = ""
) -> Any:
    """A task of the harness; splits: rows, or the file that they are in; without any, the data are the harness's own."""
    from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]
    from lm_eval.api.task import ConfigurableTask

    def dataset(**_: Any) -> Any:
        rows = {name: _read(one, benchmark) if isinstance(one, Path) else one for name, one in splits.items() if one}
        return DatasetDict({name: Dataset.from_list(own) for name, own in rows.items()})

    source, extra = splits["test"], {}
    if source is not None:
        extra = {"custom_dataset": dataset, "dataset_path": None, "dataset_name": None}
    if isinstance(source, Path):
        note = {**note, "data": f"{source.name} sha256 {hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"}
    metadata = {**config.get("metadata", {}), **note, "prompts_of": f"lm_eval {version('lm_eval')}"}
    with _fetching(str(config["task"])):
        return ConfigurableTask(config={**config, **extra, "metadata": metadata})


@contextmanager
def _fetching(task: str) -> Iterator[None]:
    """Data that the Hub does not give are told in one sentence; its client raises a dozen types for that."""
    try:
        yield
    except (SinkscopeError, KeyError):
        raise
    except Exception as error:
        benchmark = benchmark_of(task)
        file = f"put {FILES[benchmark]}.jsonl into a folder and name it with --data" if benchmark else "fetch them"
        raise TaskError(
            f"The data of {task} are not on this machine and could not be fetched ({type(error).__name__}); {file}."
        ) from error


# ---- files


def _find(data: Path | None, name: str, needed: bool = True) -> Path | None:
    """The benchmark's file in a data folder; None without a folder, where the data are the harness's own."""
    if data is None:
        return None
    found = next((path for end in (".jsonl", ".jsonl.gz") if (path := data / (name + end)).is_file()), None)
    if found is None and needed:
        raise TaskError(f"Expected {name}.jsonl (or .jsonl.gz) in {data}, found none; download it there first.")
    return found


def _read(path: Path, benchmark: str) -> list[dict[str, Any]]:
    with report_damage(str(path), TaskError, "it must have one JSON object per line"):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not rows or any(not isinstance(row, dict) or not row.keys() >= FIELDS[benchmark] for row in rows):
        raise TaskError(f"Expected lines with {', '.join(sorted(FIELDS[benchmark]))} in {path}, and at least one.")
    return rows
