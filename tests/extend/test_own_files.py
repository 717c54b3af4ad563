"""Things of your own without a package: a file that is imported, a notebook's cells, a file of prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sinkscope as sk
from sinkscope import registry
from sinkscope.cli.app import run as command
from sinkscope.errors import PluginError, StudyError, TaskError
from sinkscope.extend import Problem, Task, register_task
from sinkscope.tasks.problem import read_prompts

OWN = '''
from typing import ClassVar

import torch
from sinkscope.extend import FromZero, InterventionError, Problem, Selector, Task, register_task, settings
from sinkscope.interventions.base import Intervention

PROMPTS = ["Tom has 3 apples.", "Ann has 4 books."]


def draw(source, difficulty):
    prompt = source.choice(PROMPTS)
    return Problem("{task}", prompt, "3", difficulty, prompt)


register_task(Task("{task}", draw, lambda problem, text: problem.answer in text))


@settings(InterventionError)
class MaskNth(Selector):
    """Hide one key from everyone."""

    name: ClassVar[str] = "{condition}"
    place: FromZero = 0

    def select(self, call, memory):
        picked = torch.zeros(call.q.shape[0], call.q.shape[1], call.keys, dtype=torch.bool, device=call.q.device)
        picked[..., self.place] = True
        return picked
'''


def write_own(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(OWN.replace("{task}", f"{name}_task").replace("{condition}", f"{name}_mask"))
    return file


def study_of(task: str, condition: str, problems: int = 2) -> dict[str, Any]:
    return {
        "name": "own", "models": ["tiny-llada"], "tasks": [{"name": task, "problems": problems}],
        "conditions": ["none", {"name": condition, "place": 1}], "decode": {"length": 16, "steps": 4}, "chunk": 1,
    }  # fmt: skip


def test_a_file_is_known_here_and_in_every_worker(tmp_path: Path) -> None:
    file = write_own(tmp_path, "owned_one")
    run = sk.run(study_of("owned_one_task", "owned_one_mask"), tmp_path / "run", workers=2, plugins=[str(file)])
    cells = {(cell.task, cell.condition["name"]) for cell in run.rows.cells}
    assert cells == {("owned_one_task", "none"), ("owned_one_task", "owned_one_mask")}
    again = sk.run(study_of("owned_one_task", "owned_one_mask"), tmp_path / "run", workers=2, plugins=[file])
    assert again.results == run.results


def test_the_command_line_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_own(tmp_path, "owned_two")
    study = tmp_path / "own.yaml"
    study.write_text(json.dumps(study_of("owned_two_task", "owned_two_mask")))
    words = ["study", str(study), "--workers", "2", "--no-report", "-o", str(tmp_path / "run")]
    assert command([*words, "--import", str(file)]) == 0
    assert (tmp_path / "run" / "results.json").is_file()


def test_a_file_that_is_imported_already_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    file = write_own(tmp_path, "owned_three")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("owned_three")
    registry.import_file(file)
    registry.import_file(file)
    assert len([one for one in registry.imported_files() if one["name"] == "owned_three"]) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "Expected a Python file"), ("1 / 0\n", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("def\n", "SyntaxError"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "broken_own.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(PluginError, match=said):
        registry.import_file(file)


def register_here(name: str) -> None:
    """As a cell of a notebook does."""
    prompts = ["Tom has 3 apples.", "Ann has 4 books."]

    def draw(source: Any, difficulty: int) -> Problem:
        prompt = source.choice(prompts)
        return Problem(name, prompt, "3", difficulty, prompt)

    draw.__module__ = "__main__"
    register_task(Task(name, draw, lambda problem, text: problem.answer in text))


def test_what_a_notebook_registered_runs_here_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    register_here("in_a_cell")
    study = study_of("in_a_cell", "mask_positions")
    study["conditions"] = ["none"]
    lines: list[str] = []
    done = sk.run(study, tmp_path / "run", on_message=lines.append)
    assert done.cells().height == 1
    assert any(
        "task in_a_cell is known to this process only" in line and 'plugins=["FILE.py"]' in line for line in lines
    )
    with pytest.raises(StudyError, match=r'plugins=\["FILE.py"\]'):
        sk.run(study, tmp_path / "more", workers=2)
    with pytest.raises(StudyError, match="every worker knows"):
        sk.run(study, tmp_path / "more", engine="ray")


def test_a_cell_that_moved_into_a_file_takes_its_own_place(tmp_path: Path) -> None:
    register_here("owned_four_task")
    registry.import_file(write_own(tmp_path, "owned_four"))
    assert registry.session_only({"owned_four_task"}) == []


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_two_fixed_prompts_are_in_every_split(split: str) -> None:
    register_here("two_prompts")
    found = {one.prompt for one in sk.tasks.problems("two_prompts", n=2, split=split)}
    assert found == {"Tom has 3 apples.", "Ann has 4 books."}


@pytest.mark.parametrize("task", sk.tasks.TASKS.names())
def test_a_kind_of_ours_is_still_split(task: str) -> None:
    if task in ("in_a_cell", "two_prompts") or task.endswith("_task"):
        pytest.skip("made by these tests")
    for difficulty in (1, 2, 3):
        parts = [
            {one.key for one in sk.tasks.problems(task, n=30, split=split, difficulty=difficulty)}
            for split in ("train", "test")
        ]
        assert not parts[0] & parts[1]


# ---- a file of prompts

LINES = [
    {"prompt": "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?", "answer": "7"},
    {"prompt": "Write a word.", "check": "[a-z]+"},
    {"prompt": "Anything."},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return file


def test_answers_and_checks_judge(prompts: Path) -> None:
    sums, word, anything = read_prompts(prompts)
    assert [sums.check(text) for text in ("#### 7", "so it is 7.", "17", "7.5", "#### 8 and 7")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert word.check("abc") and not word.check("123")
    assert not anything.check("abc") and not anything.is_judged


def test_a_study_asks_the_prompts_of_a_file(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompts", str(prompts), "--models", "tiny-llada", "--no-report", "--workers", "2"]
    assert command(["study", "quick", *words, "-o", str(tmp_path / "run")]) == 0
    assert "1 of 3 prompts have no answer" in capsys.readouterr().err
    found = sk.Run.load(tmp_path / "run")
    assert set(found.cells()["task"]) == {"mine"} and set(found.cells()["n"]) == {3}
    prompts.write_text(json.dumps({"prompt": "Another one."}) + "\n" * 3)
    assert command(["study", "quick", *words, "-o", str(tmp_path / "run")]) == 2
    assert command(["study", "quick", *words, "--task", "arithmetic", "-o", str(tmp_path / "run")]) == 2


def test_a_study_file_names_prompts(prompts: Path, tmp_path: Path) -> None:
    study = {
        "name": "mine", "models": ["tiny-llada"], "tasks": [{"name": "mine", "prompts": str(prompts)}],
        "conditions": ["none"],
    }  # fmt: skip
    assert sk.run(study, tmp_path / "run", workers=1).cells()["n"].to_list() == [3]
    study["tasks"] = [{"name": "arithmetic", "prompts": str(prompts)}]
    with pytest.raises(StudyError, match="name of its own"):
        sk.Study.from_dict(study)


def test_table1_asks_them(prompts: Path, tmp_path: Path) -> None:
    words = ["--prompts", str(prompts), "--models", "tiny-llada", "--ks", "1", "--traced", "1"]
    assert command(["table1", *words, "--set", "length=16", "-o", str(tmp_path / "run")]) == 0
    assert "mine" in (tmp_path / "run" / "table1.md").read_text()


def test_a_trace_for_each_prompt(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "tiny-llada", "--prompts", str(prompts), "--length", "8", "--steps", "4"]
    assert command([*words, "-o", str(tmp_path / "traces"), "--json"]) == 0
    assert [one["prompt"] for one in json.loads(capsys.readouterr().out)] == [line["prompt"] for line in LINES]
    assert len(list((tmp_path / "traces").glob("prompt-*.trace"))) == 3
    assert command([*words, "and a prompt"]) == 2
    assert command(["trace", "tiny-llada"]) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is damaged"), ('{"prompt": 3}', "prompt"), ('{"prompt": " "}', "prompt"),
        ('{"prompt": "a", "anser": "b"}', "did you mean answer"), ("", "got none"),
        ('{"prompt": "a", "check": "("}', "check"), ('{"prompt": "a", "check": "b", "answer": "c"}', "beside a check"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(line)
    with pytest.raises(TaskError, match=said):
        read_prompts(file)
