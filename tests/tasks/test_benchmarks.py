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

from sinkscope import sandbox
from sinkscope.errors import SandboxError, StudyError, TaskError
from sinkscope.study.table1 import evaluate
from sinkscope.tasks import problems

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from made_conditions import make_condition
from sinkscope.tasks.benchmarks import Benchmark, BenchmarkPlan, human_eval_job, pass_at_k
from sinkscope.tasks.harness import HarnessLM

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
    return summary["tasks"][task]["scores"]["accuracy"]["right"]


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
    score = summary["tasks"]["gsm8k"]["scores"]["accuracy"]  # by the flexible rule, as the harness has it
    assert score["correct"] == 36 and score["value"] == 0.6 and score["low"] < 0.6 < score["high"]
    assert right_answers(summary, "gsm8k") == [index % 5 in (0, 1, 3) for index in range(60)]
    assert summary["settings"]["gsm8k"]["length"] == 200 and summary["model"]["fingerprint"] == "test"
    assert "sha256" in summary["tasks"]["gsm8k"]["data"]
    asked = model.module.asked
    again = evaluate(
        model, ["gsm8k"], data=DATA, limit=60, fewshot=0, settings={"length": 200, **FAST}, out=tmp_path / "run"
    )
    assert again["tasks"] == summary["tasks"]
    assert model.module.asked == asked, "a finished request was asked again"


@needs_gsm8k
def test_gsm8k_forms_and_their_examples(tmp_path):
    (tmp_path / "gsm8k_test.jsonl").symlink_to(DATA / "gsm8k_test.jsonl")  # alone: the examples of gsm8k are not here
    model = random_model(FAMILIES["llada"]())

    def made(name, **words):
        return Benchmark(BenchmarkPlan(name, data=tmp_path, **words), model)

    forms = [made(name) for name in ("gsm8k", "gsm8k_cot", "gsm8k_cot_zeroshot", "gsm8k_cot_llama")]
    assert [one.task.get_config("num_fewshot") for one in forms] == [0, 8, 0, 8]
    assert all(one.size == 1319 for one in forms)
    assert made("gsm8k_cot", fewshot=3).task.get_config("num_fewshot") == 3
    with pytest.raises(TaskError, match="gsm8k_train"):
        made("gsm8k", fewshot=5)


def test_gsm8k_examples_come_from_a_training_file_beside_it(tmp_path):
    for name, count in (("gsm8k_test", 3), ("gsm8k_train", 9)):
        rows = [{"question": f"{name} {index}?", "answer": f"#### {index}"} for index in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Benchmark(BenchmarkPlan("gsm8k", data=tmp_path, fewshot=2), random_model(FAMILIES["llada"]())).task
    context = task.fewshot_context(task.eval_docs[0], 2)
    assert context.count("gsm8k_train") == 2
    assert context.endswith("Question: gsm8k_test 0?\nAnswer:")


# ---- HumanEval


@needs_humaneval
def test_humaneval_canonical_solutions_all_pass_through_the_adapter(walls):
    docs = human_eval()
    model = scripted_model({doc["prompt"]: doc["canonical_solution"] for doc in docs}, 1000)
    summary = evaluate(model, ["humaneval"], data=DATA, settings={"length": 1000, **FAST}, batch_size=16)
    score = summary["tasks"]["humaneval"]["scores"]["accuracy"]
    assert (score["correct"], summary["tasks"]["humaneval"]["n"]) == (164, 164)
    assert summary["tasks"]["humaneval"]["scored_by"] == "sinkscope's sandbox"


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
    assert scores["pass@1"]["value"] == scores["pass@2"]["value"] == scores["accuracy"]["value"] == 0.5
    assert right_answers(summary, "humaneval_instruct") == [False, True] * 3


def test_pass_at_k_is_the_chance_of_a_right_one_among_k():
    assert pass_at_k(1, 1, 1) == 1
    assert pass_at_k(4, 0, 2) == 0
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 3, 2) == 1
    with pytest.raises(TaskError, match="repeats"):
        evaluate("tiny-llada", ["humaneval"], pass_at=(10,), repeats=5)


# ---- our suite, and plain use


def test_suite_through_the_harness_scores_the_worked_answers(walls):
    kinds = ["arithmetic", "programs", "recall"]
    answers = {}
    for kind in kinds:
        for index, problem in enumerate(problems(kind, n=6, split="test", seed=0)):
            answers[problem.prompt] = problem.answer if index != 2 else "nonsense"
    model = scripted_model(answers, 400)
    tasks = [f"sinkscope_{kind}" for kind in kinds]
    summary = evaluate(model, tasks, limit=6, settings={"length": 400, **FAST})
    for kind in kinds:
        assert right_answers(summary, kind) == [True, True, False, True, True, True]
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
    assert summary["tasks"]["humaneval"]["scores"]["accuracy"]["correct"] == 0
    told = [line for line in lines if "protocol harness" in line]
    assert len(told) == 2 and all("temperature=" in line for line in told)


@needs_gsm8k
def test_simple_evaluate_of_the_harness_takes_the_adapter():
    import lm_eval

    docs = gsm8k()[:4]
    answers = {f"Question: {doc['question']}\nAnswer:": f"#### {doc['answer'].rpartition('#### ')[2]}" for doc in docs}
    model = scripted_model(answers, 300)
    task = Benchmark(BenchmarkPlan("gsm8k", data=DATA, fewshot=0), model).task
    lm = HarnessLM(model, settings={"length": 300, **FAST})
    from lm_eval.tasks import TaskManager

    results = lm_eval.simple_evaluate(
        model=lm, tasks=[task], limit=4, bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    assert results["results"]["gsm8k"]["exact_match,flexible-extract"] == 1.0
    assert results["config"]["sinkscope"]["model"]["family"] == "llada"


def test_wrong_words_are_told_in_one_sentence(tmp_path):
    model = random_model(FAMILIES["llada"]())
    with pytest.raises(TaskError, match="got ' '"):
        evaluate(model, [" "])
    with pytest.raises(TaskError, match="which is none"):
        evaluate(model, ["gsm8k"], data=tmp_path / "nowhere")
    with pytest.raises(TaskError, match=r"gsm8k_test\.jsonl"):
        evaluate(model, ["gsm8k"], data=tmp_path)
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(TaskError, match="answer, question"):
        evaluate(model, ["gsm8k"], data=tmp_path)


# ---- kill and resume


def small_run(folder, name="test-llada"):
    model = random_model(FAMILIES["llada"](), context=384)
    return evaluate(
        model, ["sinkscope_logic"], limit=10, settings={"length": 48, "block": 16}, out=folder, batch_size=2
    )


def test_kill_9_and_resume_gives_the_same_answers(tmp_path):
    folder = tmp_path / "killed"
    pid = os.fork()  # cheaper than a new interpreter, which would import the harness again
    if pid == 0:
        torch.set_num_threads(1)
        small_run(folder)
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(folder.glob("units/*.json"))) < 2:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    before = {path.name: path.read_bytes() for path in folder.glob("units/*.json")}
    assert 2 <= len(before) < 5, "the run was not killed in the middle"
    resumed, whole = small_run(folder), small_run(tmp_path / "whole")
    assert resumed["tasks"] == whole["tasks"]
    after = {path.name: path.read_bytes() for path in folder.glob("units/*.json")}
    assert after == {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("units/*.json")}
    assert before.items() <= after.items()


@needs_gsm8k
def test_answers_are_tied_to_what_they_depend_on(tmp_path):
    """Another condition has other answers in the same folder, a larger limit goes on, and other data are another run."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "gsm8k_test.jsonl").write_text("".join((DATA / "gsm8k_test.jsonl").read_text().splitlines(True)[:6]))
    model = random_model(FAMILIES["llada"](), context=1024)
    words = {"data": data, "fewshot": 0, "settings": {"length": 8}, "batch_size": 2, "out": tmp_path / "run"}
    plain = evaluate(model, ["gsm8k"], limit=4, **words)
    masked = evaluate(
        model, ["gsm8k"], make_condition("mask_sinks", 3), limit=4, **{**words, "out": tmp_path / "masked"}
    )
    assert masked["tasks"]["gsm8k"]["mass_share"] > 0 and plain["tasks"]["gsm8k"]["mass_share"] is None
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run" / "units").iterdir()}
    assert evaluate(model, ["gsm8k"], limit=6, **words)["tasks"]["gsm8k"]["n"] == 6
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run" / "units").iterdir()}
    assert kept.items() < now.items()
    (data / "gsm8k_test.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n' * 6)
    with pytest.raises(StudyError, match="of another run"):
        evaluate(model, ["gsm8k"], limit=6, **words)
