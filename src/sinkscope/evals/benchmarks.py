"""The benchmarks as harness tasks: the harness's own prompts and filters, our data where asked, our sandbox for code.

The harness's humaneval fetches its scorer from the hub as soon as it is imported, and runs generated code in its own
process. Ours takes prompt, stop strings and filter name from the installed harness and scores in the sandbox; the
task's metadata says so. With a data folder nothing is fetched: GSM8K and HumanEval are read from its JSON lines.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.sandbox import Limits, check_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PREFIX = "sinkscope_"  # of the tasks of our own suite
FILES = {"gsm8k": ("gsm8k_test", "test"), "humaneval": ("HumanEval", "humaneval")}
TRAIN = ("gsm8k_train", "train")
FIELDS = {"gsm8k": {"question", "answer"}, "humaneval": {"prompt", "test", "entry_point"}}
ENDINGS = (".jsonl", ".jsonl.gz", ".json")
SECONDS = 10.0  # on the wall clock, for one solution and all of its tests


def load_tasks(
    names: Sequence[str],
    *,
    data: Path | None = None,
    fewshot: int | None = None,
    repeats: int = 1,
    pass_at: Sequence[int] = (1,),
    problems: int = 100,
    seed: int = 0,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Harness tasks by name: ours (gsm8k and humaneval with `data`, humaneval always, sinkscope_…), else the harness's.

    `repeats` answers per problem are drawn for humaneval and pass@k is estimated for each k of `pass_at`; `problems` is
    the size of each task of our own suite.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        if name == "sinkscope" or name.startswith(PREFIX):
            found |= _suite(name, problems, seed)
        elif name in HUMANEVAL:
            found[name] = _humaneval(name, data, repeats, tuple(pass_at), limits or Limits(seconds=SECONDS))
        elif name in GSM8K and data is not None:
            found[name] = _gsm8k(name, data, fewshot)
        else:
            found |= _of_harness(name)
    if fewshot and all(task.get_config("num_fewshot") == 0 and name not in GSM8K for name, task in found.items()):
        raise TaskError(
            f"{next(iter(found))} takes no examples, so that {fewshot} would have no effect; leave fewshot out."
        )
    for task in found.values():
        shots = task.get_config("num_fewshot")
        if fewshot is not None and shots != 0:
            task.set_config(key="num_fewshot", value=fewshot)
        elif shots is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=1234)  # the harness's own
    return found


# ---- GSM8K

GSM8K = {
    "gsm8k": "gsm8k.yaml",
    "gsm8k_cot": "gsm8k-cot.yaml",
    "gsm8k_cot_zeroshot": "gsm8k-cot-zeroshot.yaml",
    "gsm8k_cot_llama": "gsm8k-cot-llama.yaml",
}


def _gsm8k(name: str, data: Path, fewshot: int | None) -> Any:
    config = _harness_config("gsm8k", GSM8K[name])
    source = _find(data, FILES["gsm8k"])
    train = None
    if config.get("training_split") is not None:
        wanted = fewshot if fewshot is not None else config["num_fewshot"]
        train = _find(data, TRAIN, needed=False)
        if train is None:
            if fewshot:
                raise TaskError(
                    f"{name} takes its {wanted} examples from {TRAIN[0]}.jsonl, which {data} does not hold; put it "
                    "there, use 0 examples, or take gsm8k_cot, which carries its own."
                )
            config |= {"num_fewshot": 0, "training_split": None, "fewshot_split": None}

    def dataset(**_: Any) -> Any:
        return _dataset(test=_read(source, "gsm8k"), **({"train": _read(train, "gsm8k")} if train else {}))

    note = {"data": _fingerprint(source), "examples": config["num_fewshot"] if fewshot is None else fewshot}
    return _task(config, dataset, note)


# ---- HumanEval

HUMANEVAL = {"humaneval": "humaneval.yaml", "humaneval_instruct": "humaneval_instruct.yaml"}


def _humaneval(name: str, data: Path | None, repeats: int, pass_at: tuple[int, ...], limits: Limits) -> Any:
    if max(pass_at) > repeats:
        raise TaskError(
            f"pass@{max(pass_at)} needs at least {max(pass_at)} answers per problem, got {repeats}; raise repeats."
        )
    config = _harness_config("humaneval", HUMANEVAL[name])
    cut_at_fence = name == "humaneval_instruct"

    def judge(answers: Iterable[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[bool]]:
        """All answers of all problems at once, several sandboxes at a time."""
        jobs, sizes = [], []
        for several, doc in zip(answers, docs, strict=True):
            sizes.append(len(several))
            for answer in several:
                body = answer.partition("```")[0] if cut_at_fence else answer
                jobs.append(human_eval_job(doc, body, limits))
        verdicts = iter([result.ok for result in check_many(jobs)])
        return [[next(verdicts) for _ in range(size)] for size in sizes]

    def scores(doc: dict[str, Any], results: list[list[bool]]) -> dict[str, float]:
        return {f"pass@{k}": pass_at_k(len(results[0]), sum(results[0]), k) for k in pass_at}

    config |= {
        "repeats": repeats,
        "unsafe_code": False,  # what the harness warns of does not happen: the code runs in the sandbox
        "process_results": scores,
        "metric_list": [{"metric": f"pass@{k}", "aggregation": "mean", "higher_is_better": True} for k in pass_at],
        "filter_list": [{"name": "create_test", "filter": [{"function": "custom", "filter_fn": judge}]}],
    }
    note: dict[str, Any] = {"scored_by": "sinkscope's sandbox"}
    if data is None:
        return _task(config, None, note)
    source = _find(data, FILES["humaneval"])
    return _task(config, lambda **_: _dataset(test=_read(source, "humaneval")), note | {"data": _fingerprint(source)})


def human_eval_job(doc: dict[str, Any], body: str, limits: Limits | None = None) -> dict[str, Any]:
    """Arguments of the sandbox's `check`: the tests take one function from the candidate, helpers from the prompt."""
    return {
        "code": doc["prompt"] + body,
        "tests": f"{doc['test']}\ncheck({doc['entry_point']})\n",
        "setup": doc["prompt"],
        "names": [doc["entry_point"]],
        "limits": limits or Limits(seconds=SECONDS),
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
    return _task(config, lambda **_: _dataset(test=rows), {"problems": f"test split, seed {seed}"})


# ---- the harness's side


def _of_harness(name: str) -> dict[str, Any]:
    """Any other task of the harness, by name; its data come from where the harness takes them."""
    from lm_eval.tasks import TaskManager

    try:
        tasks: dict[str, Any] = TaskManager().load([name])["tasks"]
    except KeyError:
        ours = ", ".join([*GSM8K, *HUMANEVAL, "sinkscope"])
        raise TaskError(f"Expected a task of lm-evaluation-harness or one of {ours}, got {name!r}.") from None
    return tasks


def _harness_config(folder: str, file: str) -> dict[str, Any]:
    """A task's YAML of the installed harness, its functions left as names: importing them would use the network."""
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    config: dict[str, Any] = load_yaml(Path(lm_eval.tasks.__file__).parent / folder / file, resolve_func=False)
    config.pop("tag", None)
    return config


def _task(config: dict[str, Any], dataset: Any, note: dict[str, Any]) -> Any:
    from lm_eval.api.task import ConfigurableTask

    metadata = {**config.get("metadata", {}), **note, "prompts_of": f"lm_eval {version('lm_eval')}"}
    extra = {} if dataset is None else {"custom_dataset": dataset, "dataset_path": None, "dataset_name": None}
    return ConfigurableTask(config={**config, **extra, "metadata": metadata})


def _dataset(**splits: list[dict[str, Any]]) -> Any:
    from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]

    return DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})


# ---- files


def _find(data: Path, stems: Sequence[str], needed: bool = True) -> Path | None:
    for stem in stems:
        for ending in ENDINGS:
            if (path := data / (stem + ending)).is_file():
                return path
    if needed:
        raise TaskError(f"Expected {stems[0]}.jsonl (or .jsonl.gz) in {data}, found none; download it there first.")
    return None


def _read(path: Path | None, benchmark: str) -> list[dict[str, Any]]:
    assert path is not None
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, OSError, EOFError) as error:
        raise TaskError(f"Expected one JSON object per line in {path}, got something else ({error}).") from None
    if not rows or any(not isinstance(row, dict) or not row.keys() >= FIELDS[benchmark] for row in rows):
        raise TaskError(f"Expected lines with {', '.join(sorted(FIELDS[benchmark]))} in {path}, and at least one.")
    return rows


def _fingerprint(path: Path | None) -> str:
    assert path is not None
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
