"""Left-to-right decoding against transformers' own generate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from made_models import make_causal
from sinkscope.decoding import Decode, Step, decode
from sinkscope.errors import DecodeError
from sinkscope.models import Model, load, pad


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_causal(tmp_path_factory.mktemp("llama"), eos_token_id=[2, 7, 33], pad_token_id=0, kv_heads=2))


@pytest.mark.parametrize("seed", range(4))
def test_greedy_equals_transformers_generate(model: Model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(8, 64, (1, length), generator=generator) for length in (6, 3, 9)]
    ids, mask = pad(prompts, model)
    expected = model.module.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)
    done = decode(model, ids, Decode.autoregressive(length=20), attention_mask=mask)
    assert torch.equal(done.tokens[:, : expected.shape[1]], expected)
    assert (done.tokens[:, expected.shape[1] :] == 0).all()
    assert done.forwards == expected.shape[1] - ids.shape[1]


def test_some_rows_end_early(model: Model) -> None:
    """The comparison above would prove little if no row met an end token."""
    ids = torch.randint(8, 64, (12, 5), generator=torch.Generator().manual_seed(0))
    tokens = decode(model, ids, Decode.autoregressive(length=40)).tokens[:, 5:]
    ended = torch.isin(tokens, torch.tensor(model.eos_ids)).any(1)
    assert ended.any()


def test_steps_are_one_token_each(model: Model) -> None:
    ids = torch.randint(8, 64, (2, 5), generator=torch.Generator().manual_seed(1))
    steps: list[Step] = []
    done = decode(model, ids, Decode.autoregressive(length=6), on_step=steps.append)
    for index, step in enumerate(steps):
        assert step.block == (5 + index, 6 + index)
        assert step.committed.nonzero()[:, 1].unique().tolist() in ([5 + index], [])
        assert step.confidence[step.committed].gt(0).all()
    assert done.history is not None
    assert len(steps) == done.forwards == len(done.history) - 1


def test_top_k_one_is_greedy_at_any_temperature(model: Model) -> None:
    ids = torch.randint(8, 64, (2, 5), generator=torch.Generator().manual_seed(2))
    greedy = decode(model, ids, Decode.autoregressive(length=8)).tokens
    assert torch.equal(greedy, decode(model, ids, Decode.autoregressive(length=8, temperature=2.0, top_k=1)).tokens)


def test_each_kind_of_model_refuses_the_others_decoder(model: Model, tmp_path: Path) -> None:
    from made_models import make_llada

    ids = torch.randint(8, 60, (1, 4))
    with pytest.raises(DecodeError, match="no mask token"):
        decode(model, ids, Decode.llada(length=8))
    with pytest.raises(DecodeError, match="diffusion model"):
        decode(load(make_llada(tmp_path)), ids, Decode.autoregressive(length=8))
