"""Every field of every family's config.json, and of an adapter's files: each value of another kind, sign or size, or gone.

SINKSCOPE_FUZZ is the number of cases per family, spread evenly; from about 1,200 on every field meets every value.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_values import changed
from contract import CASES, answered, fuzz, told
from families import MAKERS, make_adapter
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as sk
from sinkscope.errors import SinkscopeError

GONE = object()
VALUES: list[Any] = [
    GONE, None, True, False, 0, -1, 1, 3, 10**6, 10**30, 0.5, 1e300, float("nan"), "", "64", "\x1b[31m", "x" * 5000, [], [1],
    {}, {"a": 1}, [[[]]] * 3,
]  # fmt: skip
# Fields that the made files do not have, and that transformers or a family would read if they were there.
MORE = (
    "sinkscope_decode", "quantization_config", "rope_scaling", "rope_parameters", "head_dim", "dtype",
    "attn_implementation", "num_experts", "block_size", "bd_size", "tie_word_embeddings", "is_causal", "id2label",
    "layer_types", "sliding_window", "use_sliding_window", "attention_bias", "text_config", "new_vocab_size",
    "mask_token_id", "pad_token_id", "architectures", "pruned_heads", "problem_type", "output_attentions",
    "partial_rotary_factor", "use_cache", "torchscript", "attention_dropout", "initializer_range", "mlp_only_layers",
)  # fmt: skip


@pytest.fixture(scope="module", params=sorted(MAKERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param) / "model")


def held_to(found: Any) -> None:
    """A sentence, or a model that gives numbers and decodes."""
    if isinstance(found, SinkscopeError):
        assert str(found).isprintable() and len(str(found)) < 600
        return
    assert found.logits(torch.tensor([[1, 2]])).isfinite().all()
    answered(lambda: sk.trace(found, torch.tensor([[1, 2, 4]]), length=4))


def test_every_field_and_every_value(folder: Path) -> None:
    path = folder / "config.json"
    original = path.read_text()
    config = json.loads(original)
    cases = list(itertools.product([*config, *(name for name in MORE if name not in config)], range(len(VALUES))))
    stride = max(1, len(cases) // (CASES or 12))
    for field, number in cases[random.randrange(stride) if CASES else 3 :: stride]:
        new = {name: value for name, value in config.items() if name != field}
        if VALUES[number] is not GONE:
            new[field] = VALUES[number]
        path.write_text(json.dumps(new))
        try:
            held_to(answered(lambda: sk.load(folder)))
        except BaseException as problem:
            problem.add_note(f"{field} = {str(new.get(field, 'gone'))[:80]}")
            raise
        finally:
            path.write_text(original)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_adapter(tmp_path_factory.mktemp("adapter"))
    assert isinstance(sk.load(made), sk.Model)
    return made


@pytest.mark.parametrize("name", ["adapter_config.json", "sinkscope.json"])
@fuzz
@given(data=st.data())
def test_a_changed_adapter_is_merged_or_refused(data: st.DataObject, name: str, adapter: Path) -> None:
    path = adapter / name
    original = path.read_text()
    try:
        path.write_text(json.dumps(changed(data, json.loads(original))))
        held_to(answered(lambda: sk.load(adapter)))
    finally:
        path.write_text(original)


@fuzz
@given(data=st.data())
def test_a_changed_tokenizer_is_used_or_refused(data: st.DataObject, adapter: Path) -> None:
    path = adapter.parent / "base" / data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    original = path.read_text()
    try:
        path.write_text(json.dumps(changed(data, json.loads(original))))
        found = told("generate", str(adapter.parent / "base"), "--length", "2", "--", "Tom has two")
        assert found.code in (0, 2)
    finally:
        path.write_text(original)
