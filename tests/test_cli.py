"""The command line: what it prints, its exit codes, and one sentence instead of a traceback."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from golden_sets import HERE
from made_models import make_causal, make_llada, save_tokenizer
from sinkscope.cli.app import run
from sinkscope.decoding import Step
from sinkscope.models import hub, load


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaDA checkpoint that can read and write words."""
    folder = tmp_path_factory.mktemp("talking")
    save_tokenizer(folder, eos_token="</s>", mask_token="<m>")
    return make_llada(folder, vocabulary=19, mask_token_id=18, eos_token_id=17, pad_token_id=17)


@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_check_passes_on_the_golden_models(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(HERE / family), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    found = {check["name"]: check["status"] for check in said["checks"]}
    assert found.pop("tokenizer") == "skipped"  # no tokenizer there: ids only
    assert set(found.values()) == {"ok"}
    assert {"loads", "keys", "direction", "mask token", "finite weights", "no-op", "took effect", "decodes"} <= set(
        found
    )


@pytest.mark.parametrize("name", sorted(hub.TINY))
def test_check_passes_on_the_tiny_family(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", name, "--json"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["tokenizer"]["status"] == "ok"
    assert found["loads"]["detail"].startswith({"tiny-long": "llada"}.get(name, name.removeprefix("tiny-")))


def test_check_of_a_causal_model_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tokenizer(tmp_path, eos_token="</s>")
    assert run(["check", str(make_causal(tmp_path, vocabulary=20))]) == 1
    captured = capsys.readouterr()
    # The made-up tokenizer does not know the sentence, and that is what the table and stderr say.
    assert "tokenizer       failed" in captured.out
    assert "causal: the last token" in captured.out
    assert captured.err.count("\n") == 1
    assert all(len(line) <= 80 for line in captured.out.splitlines())


def test_check_of_a_broken_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_llada(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])
    assert run(["check", str(folder), "--json"]) == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert [check["status"] for check in said["checks"]] == ["failed"]
    assert "model.safetensors" in captured.err and "Traceback" not in captured.err


BAD = [
    (["generate", "no-such-model", "hello"], "zoo name"),
    (["generate", "{talking}", "  "], "empty"),
    (["generate", "{talking}", "Tom has", "--length", "30", "--block", "8"], "block 8"),
    (["generate", "{talking}", "Tom has", "--length", "32", "--block", "8", "--steps", "6"], "4 blocks"),
    (["generate", "{talking}", "Tom has", "--length", "8", "--steps", "9"], "9 steps"),
    (["generate", "{talking}", "Tom has", "--length", "2000"], "128 positions"),
    (["generate", "{talking}", "Tom has", "--algorithm", "entropy"], "no effect"),
    (["generate", "{talking}", "Tom has", "--dtype", "float99"], "float32"),
    (["generate", str(HERE / "llada"), "Tom has"], "without a tokenizer"),
    (["generate", "nobody/nothing", "Tom has"], "HF_HUB_OFFLINE"),
    (["check", "nobody/nothing"], "HF_HUB_OFFLINE"),
    (["check", "{talking}/config.json"], "folder"),
    (["check", "{talking}", "--dtype", "float99"], "float32"),
    (["check", "{talking}", "--device", "cuda:99"], "device"),
    (["generate", "{talking}"], "Missing argument"),
    (["generate", "{talking}", "Tom", "--lenght", "8"], "No such option"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(case[0][:1] + case[0][2:]) for case in BAD])
def test_bad_input_is_one_sentence(
    talking: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code = run([argument.format(talking=talking) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2
    assert words in captured.err
    assert "Traceback" not in captured.err
    if captured.err.startswith("sinkscope: "):
        assert captured.err.count("\n") == 1


def test_generate_plain_when_piped(talking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["generate", str(talking), "Tom has", "--length", "8"]
    assert run(asked) == 0
    plain = capsys.readouterr()
    assert run([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert plain.out == said["text"] + "\n"
    assert plain.err == ""
    assert said["text"] == load(talking).generate("Tom has", length=8)
    assert (said["forwards"], len(said["tokens"]), said["settings"]["length"]) == (8, 8, 8)


def test_chat_messages_and_token_ids_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = [
        {"role": "user", "content": "Add 5 and 6."},
        {"role": "assistant", "content": "11"},
        {"role": "user", "content": "How many?"},
    ]
    model = load("tiny-llada")
    ids = model.encode(chat)
    assert not torch.equal(ids, model.encode(chat[-1:]))  # the turns before are not lost
    for name, prompt in (("chat", chat), ("ids", ids[0].tolist())):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(prompt))
        assert run(["generate", "tiny-llada", f"@{file}", "--length", "8", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["prompt"] == prompt and said["text"] == model.generate(chat, length=8)
        assert run(["trace", "tiny-llada", f"@{file}", "--length", "8", "-o", str(tmp_path / "a.trace"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == said["text"]
        assert run(["generate", "tiny-llada", f"@{file}", "--no-chat"]) == 2
        assert "--no-chat would have no effect" in capsys.readouterr().err
    file.write_text("[5, 9]")  # of a model that has no tokenizer
    assert run(["trace", str(HERE / "llada"), f"@{file}", "--length", "8", "-o", str(tmp_path / "a.trace")]) == 0
    assert run(["generate", "tiny-llada", "@home", "--length", "8"]) == 0  # text all the same


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "Expected chat messages"),
        ("{}", "Expected chat messages"),
        ("[]", "Expected chat messages"),
        ('["Tom has"]', "Expected chat messages"),
        ('[{"role": "user"}]', "Expected chat messages"),
        ("[true]", "Expected chat messages"),
        ("[" * 100_000, "Expected chat messages"),
        ('[{"role": "user", "content": " "}]', "empty"),
        ('[{"role": "user", "content": 5}]', "as text"),
        ("[99999]", "token ids from 0"),
        (None, "cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "trace"])
def test_a_bad_file_of_a_prompt_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: str | None, words: str
) -> None:
    file = tmp_path / "chat.json"
    if content is not None:
        file.write_text(content)
    assert run([command, "tiny-llada", f"@{file}", *(["-o", str(tmp_path / "a")] if command == "trace" else [])]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


def test_generate_in_parallel_from_stdin(
    talking: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Tom has"))
    assert run(["generate", str(talking), "-", "--length", "8", "--threshold", "0.1", "--cache", "dual", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["settings"]["family"] == "parallel"
    assert said["forwards"] < 8


def test_the_canvas_fills_in(talking: Path) -> None:
    from sinkscope.cli.generate import MASK, drawn, live_canvas

    model = load(talking)
    canvas = torch.tensor([[1, 2, 3, 18, 4, 18]])
    committed = torch.tensor([[False, False, True, False, False, False]])
    text = drawn(model, Step(0, canvas, torch.zeros(1, 6), committed, (2, 6)), prompt_length=2)
    assert text.plain == f"of{MASK}two{MASK}"
    assert [str(span.style) for span in text.spans] == ["bold green", "dim", "dim"]
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    with live_canvas(screen, model, 2) as show:
        show(Step(0, canvas, torch.zeros(1, 6), committed, (2, 6)))
        show(Step(1, torch.tensor([[1, 2, 3, 5, 4, 17]]), torch.zeros(1, 6), committed, (2, 6)))
    assert isinstance(screen.file, io.StringIO)
    assert "of and two" in screen.file.getvalue()


def test_generate_on_a_terminal(talking: Path) -> None:
    """A real terminal: the live display runs, and no escape sequence of a model's text can pass."""
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "sinkscope", "generate", str(talking), "Tom has", "--length", "4"]
    child = subprocess.Popen(
        command, stdin=secondary, stdout=secondary, stderr=secondary, env={**os.environ, "TERM": "xterm"}
    )
    os.close(secondary)
    shown = b""
    while True:
        try:
            part = os.read(primary, 4096)
        except OSError:  # Linux says so at the end of a terminal
            break
        if not part:
            break
        shown += part
    assert child.wait() == 0
    assert b"4 forwards in" in shown


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert "tiny-llada" in [row["name"] for row in said["models"]]
    assert {"llada", "dream", "mmada", "a2d", "llama"} <= set(said["families"])
    assert run(["models"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_every_command_has_json_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from sinkscope.cli.app import build

    commands = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    names = [name for name, command in commands.items() if not command.hidden]
    assert {"models", "check", "generate"} <= set(names)
    for name in names:
        assert run([name, "--help"]) == 0
        said = capsys.readouterr().out
        assert "--json" in said, name
        assert all(len(line) <= 80 for line in said.splitlines()), name


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "list_zoo", interrupted)
    assert run(["models"]) == 130
    captured = capsys.readouterr()
    assert captured.err.strip().splitlines()[-1] == "sinkscope: Interrupted."
    assert "Traceback" not in captured.err


def test_errors_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "list_zoo", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["models"])


def test_terminals_cannot_be_steered() -> None:
    from sinkscope.errors import printable

    assert printable("a\x1b[2Jb\tc\nd\u202e") == "a�[2Jb\tc\nd�"


def test_a_threshold_on_a_model_that_writes_left_to_right_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "tiny-llama", "2 + 2 =", "--threshold", "0.5"]) != 0
    assert "--threshold would have no effect on a model that writes left to right" in capsys.readouterr().err


def test_the_summary_of_a_trace_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"")
    assert run(["report", str(tmp_path / "one.safetensors"), "--text"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "a trace has no summary; leave --text out for its page" in said
