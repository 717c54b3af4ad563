"""Trace files: every tensor and every field of the header missing, of another kind, or of another size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import answered, fuzz, told
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import sinkscope as sk
from golden_sets import HERE

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.just([[[[]]]] * 3), st.just({"0": None}),
)  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("original") / "one.trace"
    model = sk.load(str(HERE / "llada"))
    keep = sk.Keep(value_norms=True, maps=((0, 0),))
    sk.trace(model, torch.tensor([[5, 9, 2]]), length=8, keep=keep).save(file)
    return file


def parts(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(str(file), framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, dict(opened.metadata())  # noqa: SIM118


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "gone": lambda tensor: None,
    "one less": lambda tensor: tensor[:-1],
    "one less at the end": lambda tensor: tensor[..., :-1],
    "one more": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "another rank": lambda tensor: tensor[None],
    "flat": lambda tensor: tensor.flatten(),
    "empty": lambda tensor: tensor[:0],
    "a number": lambda tensor: tensor.flatten()[0],
    "bytes": lambda tensor: tensor.to(torch.uint8),
    "truth": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "far": lambda tensor: torch.full_like(tensor, 30_000),
    "negative": lambda tensor: torch.full_like(tensor, -7),
}


@fuzz
@given(data=st.data())
def test_a_changed_trace_is_used_or_refused(data: st.DataObject, original: Path, tmp_path: Path) -> None:
    tensors, metadata = parts(original)
    header: dict[str, Any] = json.loads(metadata["header"])
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        made = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))](tensors.pop(name))
        tensors |= {} if made is None else {name: made.contiguous().clone()}
    else:
        place = data.draw(st.sampled_from(["gone", "field", "settings", "vocabulary", "schema", "whole", "deep"]))
        field = data.draw(st.sampled_from(sorted(header)))
        if place == "gone":
            header.pop(field)
        elif place == "field":
            header[field] = data.draw(PLAIN)
        elif place in ("settings", "vocabulary"):
            header[place][data.draw(st.sampled_from(sorted(header[place])))] = data.draw(PLAIN)
        metadata["header"] = json.dumps(header)
        if place == "schema":
            metadata["schema"] = str(data.draw(st.one_of(st.integers(), st.text(max_size=3))))
        elif place == "whole":
            metadata["header"] = json.dumps(data.draw(PLAIN))
        elif place == "deep":
            metadata["header"] = DEEP
    file = tmp_path / "changed.trace"
    save_file(tensors, str(file), metadata)
    told("sinks", str(file), "--json")
    loaded = answered(lambda: sk.Trace.load(file))
    if isinstance(loaded, sk.Trace):
        for use in (loaded.sinks, loaded.heads, loaded.tokens, loaded.scores):
            answered(use)


@fuzz
@given(cut=st.integers(0, 4000), junk=st.binary(max_size=64), place=st.integers(0, 4000))
def test_damaged_bytes_are_refused_or_harmless(
    cut: int, junk: bytes, place: int, original: Path, tmp_path: Path
) -> None:
    data = original.read_bytes()
    file = tmp_path / "damaged.trace"
    file.write_bytes(data[:place] + junk + data[place + len(junk) : len(data) - cut])
    told("sinks", str(file))
