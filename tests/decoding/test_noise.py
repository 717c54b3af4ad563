"""Random streams: the authors' to the last bit, in less memory; and one a row that nothing can disturb."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.decoding import choose as noises
from sinkscope.decoding.choose import ReferenceNoise, RowNoise


@given(
    batch=st.integers(1, 3),
    positions=st.integers(1, 6),
    vocabulary=st.integers(1, 40),
    seed=st.integers(0, 1000),
    steps=st.integers(1, 3),
    chunk=st.integers(1, 97),
    data=st.data(),
)
def test_walking_the_stream_equals_one_whole_draw(
    batch: int, positions: int, vocabulary: int, seed: int, steps: int, chunk: int, data: st.DataObject
) -> None:
    walked = ReferenceNoise(seed, batch, positions)
    whole = torch.Generator().manual_seed(seed)
    usual, noises.CHUNK = noises.CHUNK, chunk
    try:
        for _ in range(steps):
            wanted = sorted(data.draw(st.sets(st.integers(0, batch * positions - 1))))
            parts = data.draw(st.integers(1, 3))
            walked.begin_step()
            pieces = [
                walked.token_uniform(part, vocabulary)
                for part in torch.tensor(wanted, dtype=torch.int64).tensor_split(parts)
            ]
            walked.end_step(vocabulary)
            drawn = torch.rand(batch, positions, vocabulary, dtype=torch.float64, generator=whole)
            assert torch.equal(torch.cat(pieces), drawn.flatten(0, 1)[wanted])
            some = torch.tensor(wanted, dtype=torch.int64)
            assert torch.equal(
                walked.canvas_uniform(some), torch.rand(batch, positions, generator=whole).flatten()[some]
            )
    finally:
        noises.CHUNK = usual


@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), words=st.integers(2, 30))
def test_a_reference_draw_is_a_draw_of_categorical(seed: int, rows: int, words: int) -> None:
    probabilities = torch.rand(rows, words, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        expected = torch.distributions.Categorical(probs=probabilities).sample()
    assert torch.equal(ReferenceNoise(seed, rows, 1).draw(probabilities, torch.arange(rows)), expected)


@given(seed=st.integers(0, 1000), padding=st.lists(st.integers(0, 3), min_size=2, max_size=4), words=st.integers(1, 20))
def test_a_rows_numbers_do_not_depend_on_its_neighbours(seed: int, padding: list[int], words: int) -> None:
    positions = 6
    together = RowNoise(seed, torch.tensor(padding), positions)
    where = torch.tensor(
        [row * positions + column for row, pad in enumerate(padding) for column in range(pad, positions, 2)]
    )
    tokens, uniform = together.token_uniform(where, words), together.uniform(where)
    weights = torch.rand(len(padding), positions) + 0.1
    subset = together.subset(weights, 2)
    for row, pad in enumerate(padding):
        alone = RowNoise(seed, torch.tensor([0]), positions - pad)
        mine = where // positions == row
        here = where[mine] - row * positions - pad
        assert torch.equal(alone.token_uniform(here, words), tokens[mine])
        assert torch.equal(alone.uniform(here), uniform[mine])
        assert torch.equal(alone.subset(weights[row : row + 1, pad:], 2) + pad, subset[row : row + 1])


def test_a_rows_draws_have_the_right_shares() -> None:
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    count = 20_000
    drawn = RowNoise(0, torch.zeros(1, dtype=torch.int64), count).draw(shares.expand(count, 4), torch.arange(count))
    found = torch.bincount(drawn, minlength=4) / count
    torch.testing.assert_close(found, shares, atol=0.012, rtol=0)  # 3.4 standard deviations of the largest share
