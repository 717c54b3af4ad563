"""A batch of prompts of different lengths gives, row by row, what each prompt gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from golden_sets import golden
from made_models import make_causal
from sinkscope.decoding import Decode, Step, decode
from sinkscope.models import Model, load, pad

LENGTHS = (5, 8, 3, 8)


def prompts(model: Model, lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    below = min(model.mask_id or 60, 60)
    return [torch.randint(4, below, (1, length), generator=generator) for length in lengths]


def assert_rows_equal_alone(model: Model, given_prompts: list[Tensor], chosen: Decode) -> None:
    ids, mask = pad(given_prompts, model)
    together = decode(model, ids, chosen, attention_mask=mask).tokens[:, ids.shape[1] :]
    for row, prompt in enumerate(given_prompts):
        alone = decode(model, prompt, chosen).tokens[0, prompt.shape[1] :]
        assert together[row].tolist() == alone.tolist(), f"row {row}"


SETTINGS = {
    "llada": [
        Decode.llada(length=16, block=8, steps=8),
        Decode.llada(length=16, steps=6, guidance=1.0),
        Decode.llada(length=16, block=8, steps=8, confidence="random", noise="per_row", seed=5),
        Decode.llada(length=16, block=4, steps=8, temperature=0.8, noise="per_row", seed=5),
        Decode.llada(length=16, block=4, steps=8, temperature=0.8, confidence="random", noise="per_row", seed=5),
        Decode.parallel(length=16, block=8, threshold=0.6),
        Decode.parallel(length=16, block=8, threshold=0.6, cache="prefix"),
        Decode.parallel(length=16, block=8, threshold=0.6, cache="dual"),
        Decode.parallel(length=16, block=8, factor=1.2, cache="prefix"),
        Decode.parallel(length=16, block=8, factor=1.2, cache="dual", temperature=0.5, noise="per_row"),
        Decode.parallel(length=16, block=8, threshold=0.7, confidence="random", noise="per_row"),
        Decode.parallel(length=16, block=8, threshold=None, steps=8, cache="dual"),
    ],
    "mmada": [
        Decode.mmada(length=16, block=8, steps=8),
        Decode.mmada(length=16, steps=8, temperature=0.5, noise="per_row"),
    ],
    "dream": [
        Decode.dream(length=12, steps=7, algorithm="entropy", temperature=0.0, top_k=None),
        Decode.dream(length=12, steps=7, algorithm="maskgit_plus", temperature=0.4, top_p=0.9, noise="per_row"),
        Decode.dream(
            length=12, steps=7, algorithm="topk_margin", temperature=0, algorithm_temperature=0.3, noise="per_row"
        ),
        Decode.dream(length=12, steps=7, algorithm="origin", noise="per_row"),
        Decode.parallel(length=12, block=4, threshold=0.6, cache="prefix"),
        Decode.parallel(length=12, block=4, threshold=0.6, cache="dual"),
    ],
}  # fmt: skip
NAMED = [
    pytest.param(family, chosen, id=f"{family}-{number}")
    for family in SETTINGS
    for number, chosen in enumerate(SETTINGS[family])
]


@pytest.mark.parametrize(("family", "chosen"), NAMED)
def test_rows_equal_alone(family: str, chosen: Decode) -> None:
    model = golden(family).model
    assert_rows_equal_alone(model, prompts(model), chosen)


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0, 0.7]),
)
def test_rows_equal_alone_for_any_lengths(lengths: list[int], seed: int, temperature: float) -> None:
    model = golden("llada").model
    chosen = Decode.llada(length=8, block=4, steps=4, temperature=temperature, noise="per_row", seed=seed)
    assert_rows_equal_alone(model, prompts(model, tuple(lengths), seed), chosen)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("causal")
    return load(make_causal(folder, eos_token_id=[2, 7], pad_token_id=0))


@pytest.mark.parametrize(
    "chosen",
    [
        Decode.autoregressive(length=24),
        Decode.autoregressive(length=24, temperature=0.9, top_p=0.9, top_k=20, noise="per_row", seed=4),
    ],
    ids=["greedy", "sampled"],
)
def test_autoregressive_rows_equal_alone(causal: Model, chosen: Decode) -> None:
    assert_rows_equal_alone(causal, prompts(causal), chosen)


def test_same_seed_same_tokens_and_another_seed_others() -> None:
    model = golden("llada").model
    prompt = prompts(model)[0]

    def tokens(seed: int, noise: str) -> list[int]:
        chosen = Decode.llada(length=16, temperature=1.0, seed=seed, noise=noise)  # type: ignore[arg-type]
        return decode(model, prompt, chosen).tokens[0].tolist()

    for noise in ("reference", "per_row"):
        assert tokens(1, noise) == tokens(1, noise)
        assert tokens(1, noise) != tokens(2, noise)


def test_seeded_decoding_leaves_the_users_random_state_alone() -> None:
    model = golden("dream").model
    before = torch.get_rng_state()
    decode(model, prompts(model)[0], Decode.dream(length=8, steps=4, seed=3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("family", "chosen"),
    [
        ("llada", Decode.llada(length=12, block=4, steps=6)),
        ("llada", Decode.parallel(length=12, block=4, threshold=0.6, cache="dual")),
        ("dream", Decode.dream(length=12, steps=7, algorithm="entropy", temperature=0.0)),
    ],
)
def test_every_step_reports_what_it_did(family: str, chosen: Decode) -> None:
    model = golden(family).model
    ids, mask = pad(prompts(model), model)
    steps: list[Step] = []
    done = decode(model, ids, chosen, attention_mask=mask, on_step=steps.append)
    assert [step.index for step in steps] == list(range(done.forwards))
    assert done.history is not None
    assert done.history.shape == (done.forwards + 1, *done.tokens.shape)
    seen = torch.zeros_like(done.tokens, dtype=torch.bool)
    for step, before, after in zip(steps, done.history, done.history[1:], strict=False):
        assert torch.equal(step.canvas, after)
        # Committed is exactly what changed from a mask to a token, and each such place had a candidate.
        assert torch.equal(step.committed, (before == model.mask_id) & (after != model.mask_id))
        assert torch.equal(before[~step.committed], after[~step.committed])
        assert not step.confidence[step.committed].isnan().any()
        assert step.confidence[before != model.mask_id].isnan().all()
        assert step.confidence[:, step.block[1] :].isnan().all()
        assert not (seen & step.committed).any()
        seen |= step.committed
    assert torch.equal(seen, torch.arange(done.tokens.shape[1]).expand_as(seen) >= ids.shape[1])
    assert torch.equal(steps[-1].canvas, done.tokens)


def test_history_is_kept_only_when_wanted() -> None:
    model = golden("llada").model
    done = decode(model, prompts(model)[0], Decode.llada(length=8), history=False)
    assert done.history is None
    assert done.forwards == 8


def test_stop_at_end_of_turn_spares_the_blocks_after_it() -> None:
    model = golden("mmada").model
    prompt = prompts(model)[1]
    whole = decode(model, prompt, Decode.mmada(length=16, block=4, steps=16))
    width = prompt.shape[1]
    last_of_second_block = int(whole.tokens[0, width + 7])
    stopped = decode(model, prompt, Decode.mmada(length=16, block=4, steps=16, stop="eot", eot_id=last_of_second_block))
    first = next(b for b in range(4) if int(whole.tokens[0, width + 4 * b + 3]) == last_of_second_block)
    assert stopped.forwards == 4 * (first + 1)
    assert torch.equal(stopped.tokens[0, : width + 4 * (first + 1)], whole.tokens[0, : width + 4 * (first + 1)])
    assert (stopped.tokens[0, width + 4 * (first + 1) :] == model.mask_id).all()


def test_nothing_is_left_in_the_model() -> None:
    model = golden("llada").model

    def parts() -> dict[str, tuple[int, list[int], list[int]]]:
        # Another test may have asked transformers for its attention maps, which leaves hooks of its own for good.
        return {
            name: (id(part), list(part._forward_hooks), list(part._forward_pre_hooks))
            for name, part in model.module.named_modules()
        }

    before = parts()
    decode(model, prompts(model)[0], Decode.parallel(length=8, block=4, threshold=0.5, cache="dual"))
    assert before == parts()
