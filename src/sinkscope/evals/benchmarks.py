"""The benchmarks as harness tasks: the harness's own prompts and filters, our data where asked, our sandbox for code.

The harness's humaneval fetches its scorer from the hub as soon as it is imported, and runs generated code in its own
process. Ours takes prompt, stop strings and filter name from the installed harness and scores in the sandbox; the
task's metadata says so. With a data folder nothing is fetched: GSM8K and HumanEval are read from its JSON lines.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import SinkscopeError, TaskError
from sinkscope.evals.protocol import Setup, benchmark_of
from sinkscope.evals.sanitize import program
from sinkscope.sandbox import Limits, check_many

if TYPE_CHECKING:
    from sinkscope.evals.evaluation import Choices

PREFIX = "sinkscope_"  # of the tasks of our own suite
FILES = {"gsm8k": "gsm8k_test", "humaneval": "HumanEval"}
TRAIN = "gsm8k_train"
FIELDS = {"gsm8k": {"question", "answer"}, "humaneval": {"prompt", "test", "entry_point"}}
LIMITS = Limits(seconds=10.0)  # of one solution and all of its tests


def load_tasks(
    choices: Choices, setups: Mapping[str, Setup] | None = None, protocol: str = "harness"
) -> dict[str, Any]:
    """Harness tasks by name: gsm8k, humaneval and their forms, sinkscope_…, or any other that the harness has.

    `setups`: what the protocol of that name makes of a benchmark, by the benchmark's name.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(choices.names):
        setup = (setups or {}).get(name)
        if name == "sinkscope" or name.startswith(PREFIX):
            found |= _suite(name, choices.problems, choices.seed)
        elif name in HUMANEVAL:
            found[name] = _humaneval(name, setup or Setup("humaneval", name), choices)
        elif name in GSM8K:
            found[name] = _gsm8k(name, setup or Setup("gsm8k", name), choices, protocol)
        else:
            found |= _of_harness(name)
    fewshot = choices.fewshot
    if fewshot and all(task.get_config("num_fewshot") == 0 and name not in GSM8K for name, task in found.items()):
        raise TaskError(
            f"{next(iter(found))} takes no examples, so that {fewshot} would have no effect; leave fewshot out."
        )
    for task in found.values():
        shots = task.get_config("num_fewshot")
        if shots != 0 and (fewshot is not None or shots is None):
            task.set_config(key="num_fewshot", value=fewshot or 0)
        task.set_fewshot_seed(seed=1234)  # the harness's own
    return found


# ---- GSM8K

GSM8K = ("gsm8k", "gsm8k_cot", "gsm8k_cot_zeroshot", "gsm8k_cot_llama")


def _gsm8k(name: str, setup: Setup, choices: Choices, protocol: str) -> Any:
    config, data = _harness_config("gsm8k", setup.task.replace("_", "-")), choices.folder
    asked = choices.fewshot if choices.fewshot is not None else setup.examples
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
    config = {**config, **_changed(config, setup), "task": name, "num_fewshot": shots}
    if setup.worked and choices.fewshot != 0:
        worked = worked_examples(choices.examples, choices.fewshot or setup.examples or 0, protocol)
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
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise TaskError(f"Expected OpenCompass's {OPENCOMPASS} in {path}, got something else ({error}).") from None
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

HUMANEVAL = ("humaneval", "humaneval_instruct")


def _humaneval(name: str, setup: Setup, choices: Choices) -> Any:
    repeats, pass_at = choices.repeats, tuple(choices.pass_at)
    if max(pass_at) > repeats:
        raise TaskError(
            f"pass@{max(pass_at)} needs at least {max(pass_at)} answers per problem, got {repeats}; raise repeats."
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
        return {f"pass@{k}": pass_at_k(len(results[0]), sum(results[0]), k) for k in pass_at}

    config |= {
        **_changed(config, setup),
        "task": name,
        "repeats": repeats,
        "unsafe_code": False,  # what the harness warns of does not happen: the code runs in the sandbox
        "process_results": scores,
        "metric_list": [{"metric": f"pass@{k}", "aggregation": "mean", "higher_is_better": True} for k in pass_at],
        "filter_list": [{"name": "create_test", "filter": [{"function": "custom", "filter_fn": judge}]}],
    }
    note = {"scored_by": "sinkscope's sandbox", "harness_task": setup.task, "sanitize": how}
    return _task(config, note, {"test": _find(choices.folder, FILES["humaneval"])}, "humaneval")


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


# ---- our own suite


def _suite(name: str, size: int, seed: int) -> dict[str, Any]:
    """sinkscope_arithmetic and its siblings; `sinkscope` is all of the suite."""
    from sinkscope.tasks import KINDS, registered

    kinds = KINDS if name == "sinkscope" else (name.removeprefix(PREFIX),)
    if unknown := [kind for kind in kinds if kind not in registered()]:
        raise TaskError(f"Expected {PREFIX} and a kind out of {', '.join(registered())}, got {PREFIX}{unknown[0]}.")
    return {PREFIX + kind: _kind(kind, size, seed) for kind in kinds}


def _kind(kind: str, size: int, seed: int) -> Any:
    from sinkscope.tasks import problems

    drawn = list(problems(kind, n=size, split="test", seed=seed))
    rows = [{"index": index, "prompt": problem.prompt, "answer": problem.answer} for index, problem in enumerate(drawn)]

    def scores(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        return {"acc": float(drawn[doc["index"]].check(results[0]))}

    config = {
        "task": PREFIX + kind,
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "process_results": scores,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": ["<|endoftext|>"], "do_sample": False},
        "metadata": {"version": 1.0},
    }
    return _task(config, {"problems": f"test split, seed {seed}"}, {"test": rows})


# ---- the harness's side


def _of_harness(name: str) -> dict[str, Any]:
    """Any other task of the harness, by name; its data come from where the harness takes them."""
    from lm_eval.tasks import TaskManager

    try:
        with _fetching(name):
            tasks: dict[str, Any] = TaskManager().load([name])["tasks"]
    except KeyError:
        ours = ", ".join([*GSM8K, *HUMANEVAL, "sinkscope"])
        raise TaskError(f"Expected a task of lm-evaluation-harness or one of {ours}, got {name!r}.") from None
    return tasks


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
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, OSError, EOFError) as error:
        raise TaskError(f"Expected one JSON object per line in {path}, got something else ({error}).") from None
    if not rows or any(not isinstance(row, dict) or not row.keys() >= FIELDS[benchmark] for row in rows):
        raise TaskError(f"Expected lines with {', '.join(sorted(FIELDS[benchmark]))} in {path}, and at least one.")
    return rows
