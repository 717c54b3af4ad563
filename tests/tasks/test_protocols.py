"""Protocols: read, chosen by the exact checkpoint, rendered with the real tokenizers; programs taken out of answers."""

# ruff: noqa: E501 - answers of models stand on one line each

import json
import os
import re
from pathlib import Path

import pytest
from harness_models import FAMILIES, random_model

from sinkscope.errors import TaskError
from sinkscope.tasks.protocol import (
    BENCHMARKS,
    PROTOCOLS,
    checkpoint_of,
    protocol_for,
    read_protocol,
    settings_for,
    setup_for,
)
from sinkscope.tasks.sanitize import program

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from sinkscope.models.load import load_config_only
from sinkscope.sandbox import check_many, require_sandbox
from sinkscope.study.table1 import eval_study, first_prompts
from sinkscope.tasks.benchmarks import Benchmark, BenchmarkPlan, human_eval_job, worked_examples

DATA = Path(os.environ.get("SINKSCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
LLADA, DREAM = "GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Instruct-7B"
WORKED = [{"user": f"Question: {n} and 1?\nLet's think step by step\nAnswer:", "assistant": f"The answer is {n + 1}\n"}
          for n in range(4)]  # fmt: skip


@pytest.fixture
def examples(tmp_path):
    path = tmp_path / "gsm8k_gen_1d7fe4.py"
    rounds = "".join(
        f"dict(role='HUMAN', prompt={row['user']!r}), dict(role='BOT', prompt={row['assistant']!r}), " for row in WORKED
    )
    path.write_text(
        f"raise SystemExit\nx = dict(round=[{rounds}dict(role='HUMAN', prompt='Question: {{question}}')])\n"
    )
    return path


@pytest.fixture
def data(tmp_path):
    """A benchmark of three problems, with training examples."""
    for name, count in (("gsm8k_test", 3), ("gsm8k_train", 9)):
        rows = [{"question": f"{name} {index}?", "answer": f"#### {index}"} for index in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


# ---- reading and choosing


def test_the_protocols_that_ship():
    assert set(PROTOCOLS) == {
        "paper", "llada-authors", "llada-pure", "llada15-authors", "llada-base", "dream-authors", "dream-base",
        "mmada-authors", "llama-authors", "fast-dllm", "harness",
    }  # fmt: skip
    taken = [one for name in sorted(PROTOCOLS) if (found := read_protocol(name)).default
             for one in {checkpoint for setup in found.setups for checkpoint in setup.checkpoints}]  # fmt: skip
    assert len(taken) == len(set(taken)), "two protocols are the default of one checkpoint"
    assert read_protocol("paper").assumptions
    for name in sorted(PROTOCOLS):
        assert all(setup.checkpoints and setup.family for setup in read_protocol(name).setups) or name == "harness"


@pytest.mark.parametrize(
    ("checkpoint", "protocol"),
    [
        (LLADA, "llada-authors"),
        (LLADA.lower(), "llada-authors"),
        ("GSAI-ML/LLaDA-1.5", "llada15-authors"),
        ("GSAI-ML/LLaDA-8B-Base", "llada-base"),
        (DREAM, "dream-authors"),
        ("Dream-org/Dream-v0-Base-7B", "dream-base"),
        ("Gen-Verse/MMaDA-8B-MixCoT", "mmada-authors"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-authors"),
        ("/home/me/.cache/hub/models--Dream-org--Dream-v0-Instruct-7B/snapshots/05334cb", "dream-authors"),
        ("apple/DiffuCoder-7B-Instruct", "harness"),  # Dream's family, and not Dream
        ("smollm2-135m", "harness"),
        ("somebody/LLaDA-8B-Instruct-mine", "harness"),
        ("tiny-llada", "harness"),
    ],
)
def test_a_protocol_is_chosen_by_the_exact_checkpoint(checkpoint, protocol):
    assert protocol_for(checkpoint).name == protocol


def test_decode_settings_are_the_protocols():
    big = random_model(FAMILIES["llada"](), context=4096)
    words = {
        name: settings_for(big, "gsm8k", None, None, read_protocol(name))
        for name in sorted(PROTOCOLS)
        if "llada" in name
    }
    assert [(one.length, one.steps, one.block, one.late_eos) for one in words.values()] == [
        (256, 256, 8, False), (1024, 1024, 1024, False), (512, 512, 512, True), (256, 256, 16, True)
    ]  # fmt: skip
    code = settings_for(big, "humaneval", None, None, read_protocol("llada-authors"))
    assert (code.length, code.block, code.forbid_eos, code.noise) == (512, 512, True, "per_row")
    dream = random_model(FAMILIES["dream"](), context=4096)
    found = settings_for(dream, "humaneval", None, None, read_protocol("dream-authors"))
    assert (found.length, found.steps, found.temperature, found.top_p, found.confidence, found.top_k) == (
        768, 768, 0.1, 0.9, "entropy", None
    )  # fmt: skip
    # Without a protocol of its own: the harness's lengths over the model's own settings, fitted to its context.
    assert settings_for(big, "gsm8k_cot").length == 256
    assert settings_for(big, "humaneval_instruct").steps == 512
    changed = settings_for(big, "gsm8k", {"length": 64, "steps": 32})
    assert (changed.length, changed.steps, changed.block) == (64, 32, 32)
    assert settings_for(big, "other", None, 48).length == 48 - 48 % (big.defaults.block or 1)
    small = settings_for(
        random_model(FAMILIES["llada"](), context=256), "humaneval", None, None, read_protocol("paper")
    )
    assert (small.length, small.steps, small.block) == (128, 128, 32)
    # A form of the benchmark that the protocol does not run is the harness's, whatever the checkpoint.
    dream.name = DREAM
    assert setup_for(dream, "gsm8k_cot").examples == 0
    assert setup_for(dream, "gsm8k_cot_llama").examples is None
    assert settings_for(dream, "gsm8k_cot_llama").temperature == 0


def test_scores_are_shown_for_exactly_that_checkpoint_and_protocol(data):
    model = random_model(FAMILIES["dream"](), context=4096, chat=True)

    def shown(name, **words):
        model.name = name
        return [one["score"] for one in Benchmark(BenchmarkPlan("gsm8k", data=data, **words), model).published]

    assert shown(DREAM) == [81.0]
    assert shown(DREAM, protocol="paper") == [82.0]
    for name, words in (
        ("apple/DiffuCoder-7B-Instruct", {}),
        ("tiny-dream", {"protocol": "dream-authors"}),
        (DREAM, {"protocol": "harness"}),
        (DREAM, {"decode": {"length": 32}}),
        (DREAM, {"fewshot": 2}),
        (DREAM, {"chat": False}),
    ):
        assert shown(name, **words) == []


def test_wrong_protocols_are_one_sentence(tmp_path, data):
    with pytest.raises(TaskError, match="name of a protocol"):
        read_protocol("authors")
    own = tmp_path / "mine.yaml"
    head = "about: a\nsource: b\nsetups:\n  - {benchmark: gsm8k, task: gsm8k"
    for tail, wrong in ((", turn: multi}", "turn"), (", turns: many}", "turns"), (", decode: {lenght: 3}}", "lenght"),
                        (", examples: -1}", "examples"), ("", "not YAML")):  # fmt: skip
        own.write_text(head + tail)
        read_protocol.cache_clear()
        with pytest.raises(TaskError, match=wrong):
            read_protocol(str(own))
    own.write_text(head + ", examples: 3, turns: plain}")
    read_protocol.cache_clear()
    model = random_model(FAMILIES["llama"](), context=4096)
    asked = Benchmark(BenchmarkPlan("gsm8k", str(own), data), model)
    assert asked.messages()[0]["content"].count("gsm8k_train") == 3
    with pytest.raises(TaskError, match="does not say how"):
        Benchmark(BenchmarkPlan("gsm8k", "dream-authors", data), model)
    with pytest.raises(TaskError, match="no chat template"):
        _ = Benchmark(BenchmarkPlan("gsm8k", "llama-authors", data), model).turns
    with pytest.raises(TaskError, match="leave it out"):
        eval_study("tiny-llada", ["sinkscope_logic"], protocol="paper")


def test_data_that_are_not_there_are_told_before_a_model_is_loaded(tmp_path, monkeypatch):
    import datasets

    def offline(*_, **__):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(TaskError, match="--data"):
        Benchmark(BenchmarkPlan("gsm8k"), load_config_only("tiny-llada"))
    with pytest.raises(TaskError, match=r"gsm8k_test\.jsonl"):
        Benchmark(BenchmarkPlan("gsm8k", data=tmp_path), load_config_only("tiny-llada"))


# ---- worked examples of another package


def test_worked_examples_are_read_and_never_run(tmp_path, examples, monkeypatch):
    wanted = [{"user": row["user"], "target": row["assistant"]} for row in WORKED]
    assert worked_examples(examples, 4, "llada-authors") == wanted
    with pytest.raises(TaskError, match="got 4"):
        worked_examples(examples, 5, "llada-authors")
    with pytest.raises(TaskError, match=r"opencompass.*--examples.*--protocol paper"):
        worked_examples(None, 4, "llada-authors")
    package = tmp_path / "opencompass"
    (package / "configs" / "datasets" / "gsm8k").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit\n")
    examples.rename(package / "configs" / "datasets" / "gsm8k" / examples.name)
    monkeypatch.syspath_prepend(tmp_path)
    assert worked_examples(None, 4, "llada-authors") == wanted
    examples.write_text("[1\n")
    with pytest.raises(TaskError, match=rf"{re.escape(str(examples))} is damaged"):
        worked_examples(examples, 4, "llada-authors")


# ---- prompts with the real tokenizers

START, END, HEADER = "<|start_header_id|>", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"
ANSWER = "<|im_start|>assistant\n"


def real(family):
    folder = DATA / "tokenizers" / family
    for path in (folder, DATA / "gsm8k_train.jsonl", DATA / "HumanEval.jsonl.gz"):
        if not path.exists():
            pytest.skip(f"the real tokenizer or data are not there: {path}")
    return str(folder)


def prompts(family, protocol, examples=None):
    found = read_protocol(protocol)
    tasks = tuple(name for name in BENCHMARKS if found.setup(name, "", family) is not None)
    words = {"protocol": protocol, "data": DATA, "examples": examples}
    return {one["task"]: one for one in first_prompts(real(family), tasks, **words)}


@pytest.mark.parametrize("protocol", ["llada-authors", "llada-pure", "llada15-authors"])
def test_opencompass_prompts_of_llada(protocol, examples):
    found = prompts("llada", protocol, examples)
    text = found["gsm8k"]["text"]
    turns = found["gsm8k"]["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 4 + ["user"]
    assert [turn["content"] for turn in turns[:2]] == [WORKED[0]["user"], WORKED[0]["assistant"]]
    assert turns[-1]["content"].startswith("Question: Janet’s ducks lay 16 eggs per day.")
    assert text.startswith("<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nQuestion: 0 and 1?\n")
    assert text.endswith(f"\nLet's think step by step\nAnswer:{END}{HEADER}")
    assert (text.count(START), text.count(END), text.count("<|startoftext|>")) == (10, 9, 1)
    assert found["gsm8k"]["stops"] == ["Question:"]
    if "humaneval" in found:
        code = found["humaneval"]
        assert [turn["role"] for turn in code["turns"]] == ["user"] and code["stops"] == []
        assert "\n\nComplete the following python code:\nfrom typing import List\n" in code["text"]
        assert code["text"].endswith(END + HEADER)


def test_prompts_of_llada_under_the_harness_fast_dllm_and_the_paper():
    fast, paper = prompts("llada", "fast-dllm"), prompts("llada", "paper")
    one_turn, several = fast["gsm8k"]["turns"], paper["gsm8k"]["turns"]
    assert [turn["role"] for turn in one_turn] == ["user"]
    assert one_turn[0]["content"].count("Question: ") == 6 and one_turn[0]["content"].endswith("\nAnswer:")
    assert [turn["role"] for turn in several] == ["user", "assistant"] * 5 + ["user"]
    assert fast["gsm8k"]["text"].endswith(f"Answer:{END}{HEADER}") and fast["gsm8k"]["text"].count(END) == 1
    assert fast["humaneval"]["stops"] == []
    code = paper["humaneval"]
    assert [turn["role"] for turn in code["turns"]] == ["user", "assistant"]
    begun = code["text"].partition(HEADER)[2]
    assert (
        begun.startswith("Here is the completed function:\n```python\nfrom typing import List\n") and END not in begun
    )
    base = prompts("llada", "llada-base")
    assert base["gsm8k"]["text"].count("Question: ") == 6 and START not in base["gsm8k"]["text"]
    assert base["humaneval"]["text"].startswith("from typing import List")


def test_prompts_of_dream():
    found = prompts("dream", "dream-authors")
    assert [turn["role"] for turn in found["gsm8k"]["turns"]] == ["user"]
    assert found["gsm8k"]["turns"][0]["content"].startswith("Q: Janet’s ducks")
    text = found["gsm8k"]["text"]
    assert text.count("<|im_start|>user\n") == 1 and text.endswith("\nA:<|im_end|>\n" + ANSWER)
    begun = found["humaneval"]["text"].partition(ANSWER)[2]
    assert begun.startswith("Here is the completed function:\n```python\nfrom typing import List\n")
    assert prompts("dream", "paper")["gsm8k"]["text"] == text
    base = prompts("dream", "dream-base")
    assert base["gsm8k"]["text"].count("\nA:") == 9 and "<|im_start|>" not in base["gsm8k"]["text"]
    begin = base["humaneval"]["text"].partition("from typing import List")[0]
    assert begin == base["gsm8k"]["text"].partition("Q: ")[0] != "" and base["humaneval"]["stops"] == []


# ---- programs out of answers

DOC = {
    "prompt": 'from typing import List\n\n\ndef helper(x):\n    return x + 1\n\n\ndef total(xs: List[int]) -> int:\n    """Add. """\n',
    "entry_point": "total",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
}
RIGHT = "def total(xs):\n    return sum(xs)\n"
ANSWERS = {
    "a continuation": "    return sum(xs)\n",
    "a continuation and a fence": "    return sum(xs)\n```\nThat adds them.",
    "a continuation and prose": "    return sum(xs)\n\nThis function adds them up (quickly).\n",
    "a fence": f"```python\n{RIGHT}```",
    "a fence that is not closed": f"```python\n{RIGHT}",
    "prose before a fence": f"Sure! Here's the code:\n\n```python\n{RIGHT}```\nHope that helps.",
    "prose before plain code": f"The function below adds.\n{RIGHT}It's done.",
    "several functions": "```python\ndef add(a, b):\n    return a + b\n\ndef total(xs):\n    n = 0\n    for x in xs:\n        n = add(n, x)\n    return n\n\nprint(total(input()))\n```",
    "a helper of the stub": "```python\ndef total(xs):\n    return helper(sum(xs)) - 1\n```",
    "a class": "```python\nclass Adder:\n    def go(self, xs):\n        return sum(xs)\n\ndef total(xs):\n    return Adder().go(xs)\n```",
    "imports": "```python\nimport functools\nfrom operator import add as plus\n\ndef total(xs):\n    return functools.reduce(plus, xs)\n```",
    "a constant": "```python\nZERO = 0\ndef total(xs):\n    return sum(xs, ZERO)\n```",
    "the second of two blocks": f"First some tests:\n```python\nassert True\n```\nand then\n```python\n{RIGHT}```",
    "code that breaks off after it": f"```python\n{RIGHT}\ndef broken(:\n    x = (\n",
    "tabs": "```python\ndef total(xs):\n\treturn sum(xs)\n```",
}  # fmt: skip
WRONG = {
    "no code": "I cannot do that.",
    "broken code": "```python\ndef total(xs:\n    return sum(xs)\n```",
    "another function": "```python\ndef sums(xs):\n    return sum(xs)\n```",
    "nothing": "",
    "a null byte": "    return sum(xs)\x00\n",
}


def test_the_program_is_taken_out_by_its_entry_point():
    try:
        require_sandbox()
    except Exception as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    jobs = [human_eval_job(DOC, program(DOC, text, "entry_point")) for text in (ANSWERS | WRONG).values()]
    verdicts = dict(zip(ANSWERS | WRONG, (result.ok for result in check_many(jobs)), strict=True))
    assert verdicts == dict.fromkeys(ANSWERS, True) | dict.fromkeys(WRONG, False)


def test_what_nobody_calls_is_left_out():
    code = program(DOC, ANSWERS["several functions"], "entry_point")
    assert "print" not in code and "helper" not in code and "def add" in code
    assert program(DOC, f"```python\n{RIGHT}```", "block") == DOC["prompt"] + RIGHT
    assert program(DOC, "    return 1\n```\nso", "fence") == DOC["prompt"] + "    return 1\n"
    assert program(DOC, "    return 1\n```\nso", "continue") == DOC["prompt"] + "    return 1\n```\nso"


def test_a_protocols_stops_and_extraction_reach_the_task(data, examples):
    model = random_model(FAMILIES["llada"](), context=4096, chat=True)
    model.name = LLADA
    task = Benchmark(BenchmarkPlan("gsm8k", data=data, examples=examples), model).task
    assert task.get_config("generation_kwargs")["until"] == ["Question:"]
    assert task.get_config("num_fewshot") == 4 and task.config.task == "gsm8k"
    (data / "gsm8k_train.jsonl").unlink()
    with pytest.raises(TaskError, match="gsm8k_train"):
        Benchmark(BenchmarkPlan("gsm8k", "fast-dllm", data), model)
    assert checkpoint_of("tiny-llada") == "tiny-llada"


def test_the_page_of_protocols_is_what_its_command_writes(monkeypatch):
    import importlib.util

    path = Path(__file__).parents[2] / "docs" / "protocols.py"
    spec = importlib.util.spec_from_file_location("docs_protocols", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    real("llada"), real("dream")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(DATA), "run: python docs/protocols.py --data DATA"
