"""GSM8K, HumanEval and our suite end to end: exact scores of a scripted model, near-zero ones of a random model."""

import gzip
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from harness_models import FAMILIES, random_model, scripted_model

from sinkscope.errors import SandboxError, TaskError
from sinkscope.evals.store import Answers, key
from sinkscope.sandbox import execute as sandbox
from sinkscope.tasks import problems

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from sinkscope.evals.benchmarks import human_eval_job, load_tasks, pass_at_k
from sinkscope.evals.evaluation import Choices, evaluate
from sinkscope.evals.harness import HarnessLM

DATA = Path(os.environ.get("SINKSCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_gsm8k = pytest.mark.skipif(
    not (DATA / "gsm8k_test.jsonl").is_file(), reason=f"GSM8K's gsm8k_test.jsonl is not in {DATA}"
)
needs_humaneval = pytest.mark.skipif(
    not (DATA / "HumanEval.jsonl.gz").is_file(), reason=f"HumanEval.jsonl.gz is not in {DATA}"
)
FAST = {"commit": "threshold", "threshold": 0.9, "steps": None, "block": None}  # a sure model answers in one step


def gsm8k():
    return [json.loads(line) for line in (DATA / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()]


def human_eval():
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def right_answers(summary, task):
    """One verdict per problem, in the order of the benchmark."""
    entry = summary["tasks"][task]
    return entry["scores"][entry["metric"]]["right"]


@pytest.fixture(scope="module")
def walls():
    try:
        sandbox.require_sandbox()
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


# ---- GSM8K


@needs_gsm8k
def test_gsm8k_scores_are_exactly_what_the_script_says(tmp_path):
    docs = gsm8k()[:60]
    answers = {}
    for index, doc in enumerate(docs):
        number = doc["answer"].rpartition("#### ")[2]
        said = {
            0: f"Some work.\n#### {number}",  # right by both rules
            1: f"So it is {number}.",  # right by the flexible rule only
            2: "I think it is 123456789",  # wrong
            3: f"#### {number}\nQuestion: and 7 more?",  # right: what follows the stop string is cut off
            4: f"#### {number} or perhaps 987654321",  # the strict rule takes the first, the flexible one the last
        }[index % 5]
        answers[f"Question: {doc['question']}\nAnswer:"] = said
    model = scripted_model(answers, 200)
    summary = evaluate(
        model, ["gsm8k"], data=DATA, limit=60, fewshot=0, settings={"length": 200, **FAST}, out=tmp_path / "run"
    )
    scores = summary["tasks"]["gsm8k"]["scores"]
    assert scores["exact_match,strict-match"]["correct"] == 36
    assert scores["exact_match,flexible-extract"]["correct"] == 36
    assert scores["exact_match,flexible-extract"]["value"] == 0.6
    assert scores["exact_match,flexible-extract"]["low"] < 0.6 < scores["exact_match,flexible-extract"]["high"]
    assert right_answers(summary, "gsm8k") == [index % 5 in (0, 1, 3) for index in range(60)]
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written["tasks"] == summary["tasks"]
    assert written["sinkscope"]["settings"]["gsm8k"]["length"] == 200
    assert written["sinkscope"]["model"]["fingerprint"] == "test"
    assert written["sinkscope"]["versions"]["lm_eval"]
    assert "sha256" in written["tasks"]["gsm8k"]["metadata"]["data"]
    asked = model.module.asked
    again = evaluate(
        model, ["gsm8k"], data=DATA, limit=60, fewshot=0, settings={"length": 200, **FAST}, out=tmp_path / "run"
    )
    assert again["tasks"] == summary["tasks"]
    assert model.module.asked == asked, "a finished request was asked again"


@needs_gsm8k
def test_gsm8k_forms_and_their_examples(tmp_path):
    (tmp_path / "gsm8k_test.jsonl").symlink_to(DATA / "gsm8k_test.jsonl")  # alone: the examples of gsm8k are not here
    tasks = load_tasks(Choices(("gsm8k", "gsm8k_cot", "gsm8k_cot_zeroshot", "gsm8k_cot_llama"), data=tmp_path))
    assert [task.get_config("num_fewshot") for task in tasks.values()] == [0, 8, 0, 8]
    assert all(len(task.eval_docs) == 1319 for task in tasks.values())
    assert load_tasks(Choices(("gsm8k_cot",), data=tmp_path, fewshot=3))["gsm8k_cot"].get_config("num_fewshot") == 3
    with pytest.raises(TaskError, match="gsm8k_train"):
        load_tasks(Choices(("gsm8k",), data=tmp_path, fewshot=5))


def test_gsm8k_examples_come_from_a_training_file_beside_it(tmp_path):
    for name, count in (("gsm8k_test", 3), ("gsm8k_train", 9)):
        rows = [{"question": f"{name} {index}?", "answer": f"#### {index}"} for index in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (task,) = load_tasks(Choices(("gsm8k",), data=tmp_path, fewshot=2)).values()
    context = task.fewshot_context(task.eval_docs[0], 2)
    assert context.count("gsm8k_train") == 2
    assert context.endswith("Question: gsm8k_test 0?\nAnswer:")


# ---- HumanEval


@needs_humaneval
def test_humaneval_canonical_solutions_all_pass_through_the_adapter(walls):
    docs = human_eval()
    model = scripted_model({doc["prompt"]: doc["canonical_solution"] for doc in docs}, 1000)
    summary = evaluate(model, ["humaneval"], data=DATA, settings={"length": 1000, **FAST}, batch_size=16)
    score = summary["tasks"]["humaneval"]["scores"]["pass@1,create_test"]
    assert (score["correct"], summary["tasks"]["humaneval"]["n"]) == (164, 164)
    assert summary["tasks"]["humaneval"]["metadata"]["scored_by"] == "sinkscope's sandbox"


@needs_humaneval
def test_humaneval_broken_solutions_all_fail(walls):
    broken = ["    return None\n", "    import os\n    os._exit(0)\n", "    raise SystemExit(0)\n", "  oops(\n"]
    jobs = [human_eval_job(doc, doc["prompt"] + broken[index % 4]) for index, doc in enumerate(human_eval())]
    results = sandbox.check_many(jobs)
    assert sum(result.ok for result in results) == 0
    assert {result.reason for result in results} >= {"failed", "exit", "error"}


@needs_humaneval
def test_humaneval_partly_right_and_pass_at_k(walls):
    docs = human_eval()[:6]
    asked = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```\n"
    start = "Here is the completed function:\n```python\n{}\n"
    answers = {}
    for index, doc in enumerate(docs):
        body = doc["canonical_solution"] if index % 2 else "    return 'no'\n"
        answers[asked.format(doc["prompt"]) + start.format(doc["prompt"])] = body + "```\nThat was it."
    model = scripted_model(answers, 500)
    words = {"length": 500, **FAST}
    summary = evaluate(
        model, ["humaneval_instruct"], data=DATA, limit=6, settings=words, repeats=3, pass_at=(1, 2), chat=False
    )
    scores = summary["tasks"]["humaneval_instruct"]["scores"]
    assert scores["pass@1,create_test"]["value"] == scores["pass@2,create_test"]["value"] == 0.5
    assert right_answers(summary, "humaneval_instruct") == [False, True] * 3


def test_pass_at_k_is_the_chance_of_a_right_one_among_k():
    assert pass_at_k(1, 1, 1) == 1
    assert pass_at_k(4, 0, 2) == 0
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 3, 2) == 1
    with pytest.raises(TaskError, match="repeats"):
        load_tasks(Choices(("humaneval",), pass_at=(10,), repeats=5))


# ---- our suite, and plain use


def test_suite_through_the_harness_scores_the_worked_answers(walls):
    kinds = ["arithmetic", "programs", "recall"]
    answers = {}
    for kind in kinds:
        for index, problem in enumerate(problems(kind, n=6, split="test", seed=0)):
            answers[problem.prompt] = problem.answer if index != 2 else "nonsense"
    model = scripted_model(answers, 400)
    tasks = [f"sinkscope_{kind}" for kind in kinds]
    summary = evaluate(model, tasks, problems=6, settings={"length": 400, **FAST})
    for task in tasks:
        assert right_answers(summary, task) == [True, True, False, True, True, True]
    with pytest.raises(TaskError, match="sinkscope_cooking"):
        evaluate(model, ["sinkscope_cooking"])


@needs_gsm8k
@needs_humaneval
@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_random_models_run_end_to_end_and_score_near_zero(family, walls):
    model = random_model(FAMILIES[family](), context=512)
    lines = []
    summary = evaluate(
        model, ["gsm8k", "humaneval"], data=DATA, limit=2, settings={"length": 8}, batch_size=2, on_message=lines.append
    )
    assert [summary["tasks"][task]["n"] for task in ("gsm8k", "humaneval")] == [2, 2]
    assert summary["tasks"]["humaneval"]["scores"]["pass@1,create_test"]["correct"] == 0
    assert len(lines) == 3 and "harness is taken" in lines[0]
    assert "temperature=" in lines[1]


def test_simple_evaluate_of_the_harness_takes_the_adapter():
    import lm_eval

    answers = {problem.prompt: problem.answer for problem in problems("arithmetic", n=4, split="test", seed=0)}
    (task,) = load_tasks(Choices(("sinkscope_arithmetic",), problems=4)).values()
    lm = HarnessLM(scripted_model(answers, 300), settings={"length": 300, **FAST})
    from lm_eval.tasks import TaskManager

    results = lm_eval.simple_evaluate(
        model=lm, tasks=[task], bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    assert results["results"]["sinkscope_arithmetic"]["acc,none"] == 1.0
    assert results["config"]["sinkscope"]["model"]["family"] == "llada"


def test_wrong_words_are_told_in_one_sentence(tmp_path):
    model = random_model(FAMILIES["llada"]())
    with pytest.raises(TaskError, match="at least one task"):
        evaluate(model, [" "])
    with pytest.raises(TaskError, match="which is none"):
        evaluate(model, ["gsm8k"], data=tmp_path / "nowhere")
    with pytest.raises(TaskError, match=r"gsm8k_test\.jsonl"):
        evaluate(model, ["gsm8k"], data=tmp_path)
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(TaskError, match="answer, question"):
        evaluate(model, ["gsm8k"], data=tmp_path)


# ---- kill and resume


def small_run(folder, batch_size):
    model = random_model(FAMILIES["llada"](), context=384)
    words = {"length": 48, "block": 16}
    return evaluate(model, ["sinkscope_logic"], problems=10, settings=words, out=folder, batch_size=batch_size)


def test_kill_9_and_resume_gives_the_same_answers(tmp_path):
    folder = tmp_path / "killed"
    pid = os.fork()  # cheaper than a new interpreter, which would import the harness again
    if pid == 0:
        torch.set_num_threads(1)
        small_run(folder, 1)
        os._exit(0)
    requests = folder / "requests.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not requests.exists() or requests.read_bytes().count(b"\n") < 2):
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    before = requests.read_bytes().count(b"\n")
    assert 2 <= before < 10, "the run was not killed in the middle"
    assert not (folder / "results.json").exists()
    requests.write_bytes(requests.read_bytes() + b'{"key": "torn')
    resumed = small_run(folder, 3)
    assert resumed["sinkscope"]["requests"]["found"] == before
    whole = small_run(tmp_path / "whole", 4)
    assert whole["sinkscope"]["requests"].get("found") is None
    assert resumed["tasks"] == whole["tasks"]
    texts = [
        sorted(
            (json.loads(line)["key"], json.loads(line)["text"])
            for line in (f / "requests.jsonl").read_text().splitlines()
        )
        for f in (folder, tmp_path / "whole")
    ]
    assert texts[0] == texts[1]


def test_answers_are_tied_to_what_they_depend_on(tmp_path):
    path = tmp_path / "a" / "requests.jsonl"
    store = Answers(path)
    store.add_all([(key(prompt=[1], model="m"), {"text": "é"})])
    assert Answers(path).get(key(model="m", prompt=[1]))["text"] == "é"
    assert Answers(path).get(key(model="other", prompt=[1])) is None
    wrong = ["not json", "[]", '{"key": "a"}', '{"key": 1, "text": "a"}', '{"key": "a", "text": 1}', '{"text": "a"}',
             '{"key": "a", "value": 1.0}', '{"key": "a", "text": "a", "ids": ["a"]}', '{"key": "a", "leak": 0}']  # fmt: skip
    for line in wrong:
        path.write_text(line + "\n")
        with pytest.raises(TaskError, match="line 1"):
            Answers(path)
