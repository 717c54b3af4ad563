"""Names of transformers and of the models' authors do what they do there, or are refused with ours named."""

from __future__ import annotations

import json
import shutil
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as sk
from made_models import make_causal, make_llada
from sinkscope.decoding import resolve_settings
from sinkscope.errors import CheckpointError, DecodeError
from sinkscope.validation import NAMES

TINY = {"length": 8, "block": 4, "steps": 4}


@pytest.fixture(scope="module")
def llada() -> Any:
    return sk.load("tiny-llada")


def test_generate_and_trace_take_their_names(llada: Any) -> None:
    ours = llada.generate("Tom has 12 apples.", **TINY, guidance=0.5, temperature=0.0, confidence="random", seed=3)
    theirs = llada.generate(
        "Tom has 12 apples.", gen_length=8, block_length=4, steps=4, cfg_scale=0.5, remasking="random",
        seed=3,
    )  # fmt: skip
    assert ours == theirs
    made = sk.trace(llada, "Tom has 12 apples.", max_new_tokens=8, block_length=4, steps=4)
    assert (made.settings.length, made.settings.block) == (8, 4)


def test_constructors_take_their_names() -> None:
    assert sk.Decode.llada(gen_length=8, block_length=4, remasking="low_confidence") == sk.Decode.llada(8, 4)
    assert sk.Decode.dream(max_new_tokens=8, alg="entropy", alg_temp=0.1, eps=1e-2) == sk.Decode.dream(
        8, algorithm="entropy", algorithm_temperature=0.1, epsilon=1e-2
    )
    assert sk.Decode.llada(8, logits_eos_inf=True, confidence_eos_eot_inf=True) == sk.Decode.llada(
        8, forbid_eos=True, late_eos=True
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gen_length": 8, "length": 8}, "length"), ({"gen_length": 8, "max_new_tokens": 8}, "length"),
        ({"remasking": "worst"}, "confidence"), ({"alg": "entropy"}, "algorithm"), ({"no_such_word": 3}, "no_such_word"),
    ],
)  # fmt: skip
def test_what_means_something_else_is_refused(llada: Any, words: dict[str, Any], said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        resolve_settings(llada.defaults, llada, 4, words)


def test_a_study_file_names_our_setting() -> None:
    values = {
        "name": "x",
        "models": ["tiny-llada"],
        "tasks": [{"name": "arithmetic", "problems": 1}],
        "conditions": ["none"],
    }
    with pytest.raises(sk.SinkscopeError, match="use length"):
        sk.Study.from_dict({**values, "decode": {"gen_length": 8}})


def test_load_takes_their_names(tmp_path: Path) -> None:
    folder = make_causal(tmp_path / "a")
    for words in ({"torch_dtype": torch.bfloat16}, {"dtype": "bf16"}, {"torch_dtype": "bfloat16", "device_map": "cpu"}):
        assert sk.load(folder, **words).dtype == torch.bfloat16
    assert sk.load(folder, dtype="fp16").dtype == torch.float16
    assert sk.load(folder, dtype="auto", device_map={"": "cpu"}).dtype == torch.float32
    refused: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "bf16", "torch_dtype": "bf16"}, "dtype"), ({"strange": 1}, "strange"), ({"revision": "main"}, "revision"),
        ({"quantization": "int3"}, "int8"), ({"device_map": {"": "nowhere"}}, "nowhere"),
    ]  # fmt: skip
    for words, said in refused:
        with pytest.raises(CheckpointError, match=said):
            sk.load(folder, **words)
    with pytest.raises(CheckpointError, match="revision"):
        sk.load("tiny-llada", revision="main")


def test_a_revision_of_the_hub_is_fetched_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = make_llada(tmp_path / "models--some--model" / "snapshots" / commit)
    asked: list[tuple[Any, ...]] = []

    def download(hub_id: str, **words: Any) -> str:
        asked.append((hub_id, words["revision"], words["token"]))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    one = sk.load("some/model", revision="v2", token="hf_secret")
    other = sk.load("some/model@v2")
    assert asked == [("some/model", "v2", "hf_secret"), ("some/model", "v2", None)]
    assert one.identity()["revision"] == other.identity()["revision"] == commit
    assert "hf_secret" not in json.dumps(one.identity())
    with pytest.raises(CheckpointError, match="one revision"):
        sk.load("some/model@v2", revision="v3")


def test_a_study_names_a_revision_and_run_json_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from sinkscope.models import hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--some--model" / "snapshots" / commit
    shutil.copytree(hub.FOLDER / "tiny-llada", folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda hub_id, **words: str(folder))
    study = sk.Study.from_dict(
        {
            "name": "own", "models": ["some/model@v2"], "tasks": [{"name": "arithmetic", "problems": 1}],
            "conditions": ["none"], "decode": {"length": 8, "steps": 4},
        }
    )  # fmt: skip
    sk.run(study, tmp_path / "run", workers=1)
    (model,) = json.loads((tmp_path / "run" / "run.json").read_text())["models"]
    assert (model["asked"], model["identity"]["revision"]) == ("some/model@v2", commit)


def test_messages_and_ids_wherever_text_goes(llada: Any, tmp_path: Path) -> None:
    text, messages = "Tom has 12 apples.", [{"role": "user", "content": "Tom has 12 apples."}]
    ids = llada.encode(text)
    assert torch.equal(llada.encode(messages), ids)  # the zoo has chat templates
    assert torch.equal(llada.encode(ids[0].tolist()), ids) and torch.equal(llada.encode(ids[0]), ids)
    answer = llada.generate(text, **TINY)
    assert (
        llada.generate(messages, **TINY)
        == llada.generate(ids, **TINY)
        == llada.generate(ids[0].tolist(), **TINY)
        == answer
    )
    assert llada.generate([text, messages, ids[0]], **TINY) == [answer] * 3
    assert sk.trace(llada, messages, **TINY).text == answer
    assert [one.text for one in sk.trace(llada, [messages, ids], **TINY)] == [answer] * 2
    for prompt in (text, messages, ids[0].tolist()):
        assert torch.equal(sk.lens(llada, prompt), sk.lens(llada, ids))
    several = sk.lens(llada, [text, "Tom."], layers=[-1])
    assert several.shape[:2] == (1, 2)
    one, other = (
        next(iter(sk.activations(llada, prompt, [0], out=tmp_path / name, max_new_tokens=4)))
        for name, prompt in (("text", text), ("messages", messages))
    )
    assert torch.equal(one["layers.0.resid_post"], other["layers.0.resid_post"])
    conversation = [*messages, {"role": "assistant", "content": "12"}, {"role": "user", "content": "And?"}]
    assert llada.encode(conversation).shape[1] > ids.shape[1]


def test_messages_without_a_template_and_other_prompts_are_refused(llada: Any) -> None:
    for prompt in (
        7,
        None,
        {"role": "user"},
        [[7.5]],
        [{"role": "user"}],
        [{"role": "user", "content": 7}],
        torch.zeros(1, 2, 3),
    ):
        with pytest.raises(sk.SinkscopeError):
            llada.generate(prompt)
    plain = replace(llada, tokenizer=copy(llada.tokenizer))
    plain.tokenizer.chat_template = None
    with pytest.raises(sk.SinkscopeError, match="chat template"):
        plain.encode([{"role": "user", "content": "Tom."}])


def test_options_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from sinkscope.cli.app import run
    from sinkscope.cli.options import canonical_option

    command = ["generate", "tiny-llada", "Tom has 12 apples.", "--json", "--steps", "4"]
    assert run([*command, "--gen-length", "8", "--block-length", "4", "--torch-dtype", "bf16"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["settings"]["length"], said["settings"]["block"], said["model"]["dtype"]) == (8, 4, "bfloat16")
    assert run([*command, "--revision", "main"]) != 0 and "revision" in capsys.readouterr().err
    assert tuple(map(canonical_option, ("max_new_tokens", "block-length", "torch_dtype"))) == (
        "length",
        "block",
        "dtype",
    )


def test_the_page_is_written_from_the_table() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    import generate

    page = generate.names_of_others()
    assert all(f"`{theirs}`" in page for theirs in NAMES)
    assert (generate.REFERENCE / "words.md").read_text() == page.rstrip() + "\n"
