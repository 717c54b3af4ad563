"""Checkpoints from elsewhere: every field of config.json changed, and the bytes of weights, indexes and GGUF files."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import answered, fuzz, told
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as sk
from golden_sets import HERE
from made_gguf import make_gguf
from made_models import make_causal, make_dream
from sinkscope.errors import SinkscopeError

DEEP: Any = 0
for _ in range(900):
    DEEP = [DEEP]
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 5, 7, 63, 10**6, 10**9, 2**31, 2**63, 10**30, 0.0, 0.5, -1.5, 1e-300, 1e300]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.integers(-4, 300),
)
VALUES = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.text(max_size=6), st.sampled_from(["", "\x1b[31m", "\udcff", "x" * 5000, "64"]),
    st.lists(NUMBERS, max_size=3), st.dictionaries(st.text(max_size=4), NUMBERS, max_size=2), st.just(DEEP),
)  # fmt: skip
# Fields that are in no golden config.json, and that transformers or a family would read if they were.
MORE = (
    "sinkscope_decode", "quantization_config", "rope_scaling", "head_dim", "torch_dtype", "dtype", "attn_implementation",
    "num_experts", "block_size", "bos_token_id", "tie_word_embeddings", "is_causal", "num_labels", "id2label",
    "layer_types", "sliding_window", "use_sliding_window", "attention_bias", "text_config", "new_vocab_size",
)  # fmt: skip


@pytest.fixture(scope="module", params=["llada", "dream", "causal"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param) / "model"
    if request.param == "llada":
        shutil.copytree(HERE / "llada", made)
    else:
        (make_dream if request.param == "dream" else make_causal)(made)
    config = made / "config.json"
    shutil.copy(config, made.parent / "original.json")
    return made


@fuzz
@given(data=st.data())
def test_a_changed_config_is_loaded_or_refused(data: st.DataObject, folder: Path) -> None:
    config = json.loads((folder.parent / "original.json").read_text())
    for field in data.draw(st.lists(st.sampled_from([*sorted(config), *MORE]), min_size=1, max_size=2)):
        if data.draw(st.integers(0, 5)):
            config[field] = data.draw(VALUES)
        else:
            config.pop(field, None)
    (folder / "config.json").write_text(json.dumps(config))
    found = answered(lambda: sk.load(folder))
    if isinstance(found, SinkscopeError):
        assert str(found).isprintable() and len(str(found)) < 600
    else:
        assert found.logits(torch.tensor([[1, 2]])).isfinite().all()


@fuzz
@given(cut=st.integers(0, 3000), junk=st.binary(max_size=40), place=st.integers(0, 3000))
def test_damaged_weights_are_refused_or_harmless(
    cut: int, junk: bytes, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = make_causal(tmp_path_factory.mktemp("weights"))
    file = made / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:place] + junk + data[place + len(junk) : len(data) - cut])
    assert _plain(answered(lambda: sk.load(made)))


ENTRY = st.fixed_dictionaries(
    {}, optional={"dtype": VALUES, "shape": VALUES, "data_offsets": st.one_of(VALUES, st.just([0, 10**15]))}
)


@fuzz
@given(
    header=st.one_of(VALUES, st.dictionaries(st.sampled_from(["__metadata__", "a", "\x1b[2J"]), ENTRY | VALUES)),
    length=st.one_of(st.none(), st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1])),
)
def test_made_up_headers_are_refused(header: Any, length: int | None, tmp_path: Path) -> None:
    made = make_causal(tmp_path)
    written = json.dumps(header).encode()
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(written) if length is None else length) + written)
    found = answered(lambda: sk.load(made))
    assert isinstance(found, SinkscopeError) and str(found).isprintable()


@fuzz
@given(
    index=st.one_of(
        VALUES,
        st.builds(lambda value: {"weight_map": value}, VALUES),
        st.builds(
            lambda name: {"weight_map": {"a": name}},
            st.one_of(
                st.text(max_size=9), st.sampled_from(["../x.safetensors", "/etc/passwd", "a\0b", "..", "x" * 5000])
            ),
        ),
    )
)
def test_made_up_indexes_are_refused(index: Any, tmp_path: Path) -> None:
    made = make_causal(tmp_path)
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    found = answered(lambda: sk.load(made))
    assert isinstance(found, SinkscopeError) and str(found).isprintable()


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


STUB = (
    b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + key("general.architecture", 8, struct.pack("<Q", 5) + b"llama")
    + key("llama.block_count", 4, struct.pack("<I", 1))
    + struct.pack("<Q", 1) + b"a" + struct.pack("<IQIQ", 1, 4, 0, 0) + b"\0" * 64
)  # fmt: skip


@fuzz
@given(junk=st.binary(max_size=12), place=st.integers(0, len(STUB)), cut=st.integers(0, len(STUB)))
def test_gguf_stubs_are_refused(junk: bytes, place: int, cut: int, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (extra: smollm)")
    file = tmp_path / "model.gguf"
    file.write_bytes((STUB[:place] + junk + STUB[place + len(junk) :])[: len(STUB) - cut])
    found = answered(lambda: sk.load(file))
    assert isinstance(found, SinkscopeError) and str(found).isprintable()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"GGML" + data[4:],
        lambda data: data[:4] + struct.pack("<IQQ", 3, 1 << 60, 1),
        lambda data: data[:4] + struct.pack("<IQQ", 3, 1, 1 << 60),
        lambda data: data[:4] + struct.pack("<IQQ", 3, 1, 1) + key("a", 9, struct.pack("<IQ", 0, 1 << 60)),
        lambda data: data[:4] + struct.pack("<IQQ", 3, 1, 1) + key("a", 8, struct.pack("<Q", 1 << 62)),
        lambda data: data[:30],
    ],
)
def test_counts_that_a_gguf_file_cannot_hold(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(spoil(STUB))
    assert "GGUF" in told("generate", str(file), "--", "hello").err


@fuzz
@given(junk=st.binary(min_size=1, max_size=12), place=st.integers(0, 6_000), cut=st.sampled_from([0, 0, 1, 5_000]))
def test_damaged_gguf_files_are_refused_or_harmless(
    junk: bytes, place: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (extra: smollm)")
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    make_gguf(file, "Q8_0", layers=1)
    data = file.read_bytes()
    file.write_bytes(data[:place] + junk + data[place + len(junk) : len(data) - cut])
    assert _plain(answered(lambda: sk.load(file)))


def _plain(found: Any) -> bool:
    return str(found).isprintable() if isinstance(found, SinkscopeError) else isinstance(found, sk.Model)
