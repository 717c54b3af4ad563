"""A bad checkpoint gives one clear sentence: what was expected, what came, what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from golden_sets import HERE
from made_models import make_causal, make_llada, save_tokenizer
from sinkscope.errors import CheckpointError, SinkscopeError, TokenizerError, UnknownFamilyError
from sinkscope.models import load


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "REMOVED"}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llada"')


def config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def unknown_type(folder: Path) -> None:
    change_config(folder, model_type="gpt-nine")


def field_missing(folder: Path) -> None:
    change_config(folder, d_model="REMOVED")


def other_mathematics(folder: Path) -> None:
    change_config(folder, alibi=True)


def keys_missing(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("model.transformer.blocks.1.q_proj.weight"))


def keys_extra(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.transformer.blocks.0.lora.weight": torch.ones(3)}))


def wrong_shape(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.transformer.ln_f.weight": torch.ones(31)}))


def truncated(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def truncated_in_the_header(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:40])


def empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def not_a_number(folder: Path) -> None:
    change_weights(folder, lambda weights: weights["model.transformer.blocks.0.ff_out.weight"][3, 3].fill_(torch.nan))


def infinite(folder: Path) -> None:
    change_weights(folder, lambda weights: weights["model.transformer.wte.weight"][3, 3].fill_(torch.inf))


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_mask_token(folder: Path) -> None:
    change_config(folder, mask_token_id="REMOVED")


def no_mask_token_in_the_tokenizer_either(folder: Path) -> None:
    change_config(folder, mask_token_id="REMOVED")
    save_tokenizer(folder, eos_token="<e>")


def mask_token_beyond_the_head(folder: Path) -> None:
    change_config(folder, mask_token_id=64)


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def shard_missing(folder: Path) -> None:
    index = {"weight_map": {"model.transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def a_million_layers(folder: Path) -> None:
    change_config(folder, n_layers=10**6)


def more_layers_than_tensors(folder: Path) -> None:
    change_config(folder, n_layers=4000)


def wider_than_the_weights(folder: Path) -> None:
    change_config(folder, d_model=1 << 16, n_heads=4, n_kv_heads=4)


def heads_that_do_not_divide(folder: Path) -> None:
    change_config(folder, n_heads=5)


def a_size_in_words(folder: Path) -> None:
    change_config(folder, d_model="\x1b[31mwide")


def end_token_beyond_the_head(folder: Path) -> None:
    change_config(folder, eos_token_id=64)


def deep_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")


def a_number_of_many_digits(folder: Path) -> None:
    (folder / "config.json").write_text('{"d_model": ' + "9" * 10_000 + "}")


def header_of_many_gigabytes(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def header_is_deep(folder: Path) -> None:
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (folder / "model.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)


def header_without_places(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b'{"a":{}}')


def shard_elsewhere(folder: Path) -> None:
    index = {"weight_map": {"a": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def index_of_numbers(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": 7, "b": [1]}}))


def broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


CASES: list[tuple[Callable[[Path], None], type[SinkscopeError], str]] = [
    (no_config, CheckpointError, "config.json"),
    (broken_config, CheckpointError, "config.json"),
    (config_is_a_list, CheckpointError, "config.json"),
    (unknown_type, UnknownFamilyError, "gpt-nine"),
    (field_missing, CheckpointError, "d_model"),
    (other_mathematics, CheckpointError, "alibi"),
    (keys_missing, CheckpointError, r"1 missing keys.*layers\.1\.self_attn\.q_proj"),
    (keys_extra, CheckpointError, r"1 unexpected keys.*lora"),
    (wrong_shape, CheckpointError, r"\(32,\).*\(31,\)"),
    (truncated, CheckpointError, "model.safetensors"),
    (truncated_in_the_header, CheckpointError, "model.safetensors"),
    (empty_file, CheckpointError, "model.safetensors"),
    (not_a_number, CheckpointError, r"mlp\.down_proj"),
    (infinite, CheckpointError, "embed_tokens"),
    (only_pickle, CheckpointError, r"pickle.*pytorch_model\.bin"),
    (no_weights, CheckpointError, r"\.safetensors"),
    (no_mask_token, TokenizerError, "mask token"),
    (no_mask_token_in_the_tokenizer_either, TokenizerError, "mask token"),
    (mask_token_beyond_the_head, CheckpointError, "mask"),
    (broken_tokenizer, CheckpointError, "tokenizer"),
    (shard_missing, CheckpointError, "model-00001-of-00002"),
    (broken_index, CheckpointError, "weight_map"),
    (a_million_layers, CheckpointError, "n_layers"),
    (more_layers_than_tensors, CheckpointError, "n_layers"),
    (wider_than_the_weights, CheckpointError, "different checkpoints"),
    (heads_that_do_not_divide, CheckpointError, "llada"),
    (a_size_in_words, CheckpointError, "llada"),
    (end_token_beyond_the_head, CheckpointError, "64"),
    (deep_config, CheckpointError, "config.json"),
    (a_number_of_many_digits, CheckpointError, "config.json"),
    (header_of_many_gigabytes, CheckpointError, "model.safetensors"),
    (header_is_deep, CheckpointError, "model.safetensors"),
    (header_without_places, CheckpointError, "model.safetensors"),
    (shard_elsewhere, CheckpointError, "inside"),
    (index_of_numbers, CheckpointError, "llada"),
]


@pytest.mark.parametrize(("spoil", "error", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_one_clear_sentence(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[SinkscopeError], words: str
) -> None:
    folder = make_llada(tmp_path / "llada")
    spoil(folder)
    with pytest.raises(error, match=words) as caught:
        load(folder)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 600
    assert said[-1].isalnum() or said[-1] in ".?)"


def test_a_shard_cut_short_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "llada"
    shutil.copytree(HERE / "llada", folder)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=shard.name):
        load(folder)


def test_the_files_own_names_do_not_decide(tmp_path: Path) -> None:
    assert load(make_llada(tmp_path / "dream-7b-llama")).family.name == "llada"
    assert load(make_causal(tmp_path / "llada-8b")).family.name == "llama"


def test_a_word_that_is_nothing() -> None:
    with pytest.raises(CheckpointError, match="did you mean tiny-llada"):
        load("tiny-lada")


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    make_llada(tmp_path)
    with pytest.raises(CheckpointError, match="a folder"):
        load(tmp_path / "config.json")


def test_a_hub_id_while_offline_names_cache_and_flag() -> None:
    from huggingface_hub import constants

    assert constants.HF_HUB_OFFLINE
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE") as caught:
        load("sinkscope-tests/not-there")
    assert str(constants.HF_HUB_CACHE) in str(caught.value)


def test_a_dtype_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="float32"):
        load(make_llada(tmp_path), dtype="float99")


def test_float32_that_memory_does_not_hold_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are converted are copied; those that keep their dtype are mapped from the file and always fit."""
    folder = make_llada(tmp_path)
    (file,) = folder.glob("*.safetensors")
    save_file({name: part.to(torch.bfloat16) for name, part in load_file(file).items()}, file, {"format": "pt"})
    numbers = sum(part.numel() for part in load_file(file).values())
    monkeypatch.setattr("sinkscope.models.checkpoint.available_memory", lambda: 4 * numbers - 1)
    monkeypatch.setattr("sinkscope.models.weights.load_weights", lambda *_: pytest.fail("it was read all the same"))
    with pytest.raises(CheckpointError, match=r"GB in float32, and .* available; .*dtype=auto") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr("sinkscope.models.checkpoint.available_memory", lambda: 0)
    assert load(folder, dtype="bfloat16").dtype == torch.bfloat16
    monkeypatch.setattr("sinkscope.models.checkpoint.available_memory", lambda: 4 * numbers)
    assert load(folder).dtype == torch.float32


@pytest.mark.parametrize("device", ["x", "cuda:99", "cpu:one", "meta", ""])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(CheckpointError, match="device must be") as caught:
        load(HERE / "llada", device=device)
    assert repr(device) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_a_device_that_is_there(device: str | torch.device | None) -> None:
    assert load(HERE / "llada", device=device).family.name == "llada"


@pytest.mark.parametrize(
    "name", [7, None, b"tiny-llada", "", " ", "a\0b", "x" * 5000, "a/" + "x" * 300, ["tiny-llada"]]
)
def test_a_name_that_is_none(name: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "options", [{"dtype": 7}, {"dtype": torch.int8}, {"dtype": []}, {"mask_id": "x"}, {"mask_id": -1}]
)
def test_options_of_another_kind(options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(options))):
        load(HERE / "llada", **options)


def test_a_folder_whose_name_steers_terminals(tmp_path: Path) -> None:
    folder = make_llada(tmp_path / "\x1b[31mred")
    no_config(folder)
    with pytest.raises(CheckpointError, match="red") as caught:
        load(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("template", ["{{ raise_exception('\x1b[2Jno') }}", "{% for %}", "{{ 1 // 0 }}", "{{ a.b.c }}"])
def test_a_chat_template_that_fails(tmp_path: Path, template: str) -> None:
    folder = make_llada(save_tokenizer(tmp_path, mask_token="<m>"))
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match="chat template of") as caught:
        load(folder).encode("the sum")
    assert str(caught.value).isprintable()


def test_a_chat_template_gives_what_transformers_gives(tmp_path: Path) -> None:
    folder = make_llada(save_tokenizer(tmp_path, mask_token="<m>", bos_token="<s>"))
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %} {{ m['role'] }} {{ m['content'] | trim }}{% endfor %} Tom"
    )
    model = load(folder)
    tokenizer = model.require_tokenizer()
    for text in ("the sum", "two\nand three ?", "é\u202e"):
        written = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        plain = tokenizer(written, return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert torch.equal(model.encode(text), plain)


def test_code_that_config_json_names_is_not_chosen(tmp_path: Path) -> None:
    """An attention kernel named as owner/repository would be fetched from the Hub and run."""
    model = load(make_causal(tmp_path, attn_implementation="someone/kernel", _attn_implementation="someone/kernel"))
    assert model.config._attn_implementation == "sdpa"
