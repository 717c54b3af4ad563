"""Random streams: the authors' to the last bit, in less memory; and one a row that nothing can disturb."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.attention.forward import GOLDEN, mix
from sinkscope.decoding import noise as noises
from sinkscope.decoding.noise import CounterNoise, ReferenceNoise, RowNoise


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


def counter(padding: list[int], positions: int, seed: int = 3) -> CounterNoise:
    return CounterNoise(seed, torch.tensor(padding), positions, torch.device("cpu"))


@given(padding=st.lists(st.integers(0, 3), min_size=1, max_size=4), words=st.integers(1, 20), steps=st.integers(1, 3))
def test_counted_numbers_know_neither_order_nor_neighbours(padding: list[int], words: int, steps: int) -> None:
    positions = 6
    together = counter(padding, positions)
    for _ in range(steps):
        together.begin_step()
    for row, padded in enumerate(padding):
        alone = counter([0], positions - padded)
        for _ in range(steps):
            alone.begin_step()
        where = torch.arange(positions - padded)
        flat = row * positions + padded + where
        assert torch.equal(together.token_uniform(flat, words), alone.token_uniform(where, words))
        assert torch.equal(together.token_uniform(flat.flip(0), words).flip(0), alone.token_uniform(where, words))
        assert torch.equal(together.uniform(flat), alone.uniform(where))


def test_counted_numbers_are_uniform_and_differ() -> None:
    noise = counter([0], 64)
    noise.begin_step()
    first = noise.token_uniform(torch.arange(64), 4096)
    noise.begin_step()
    second = noise.token_uniform(torch.arange(64), 4096)
    assert float(first.min()) >= 0 and float(first.max()) < 1
    shares = torch.histc(first.float(), 16, 0, 1) / first.numel()
    assert float((shares - 1 / 16).abs().max()) < 2e-3
    for one, other in ((first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.01
    # SplitMix64's published first outputs for the seed 1234567.
    numbers = mix(torch.tensor(1234567) + torch.arange(1, 3) * GOLDEN)
    assert [int(number) % 2**64 for number in numbers] == [6457827717110365317, 3203168211198807973]


def test_counted_draws_follow_the_probabilities() -> None:
    noise, shares = counter([0], 20_000), torch.tensor([0.5, 0.3, 0.2])
    drawn = noise.draw(shares.expand(20_000, 3), torch.arange(20_000))
    assert torch.allclose(torch.bincount(drawn, minlength=3) / 20_000, shares, atol=0.02)
    chosen = counter([0], 6).subset(torch.tensor([[0.0, 0.2, 0.2, 0.2, 0.2, 0.2]]), 3)
    assert len(set(chosen[0].tolist())) == 3 and 0 not in chosen
    many = [float(noise.binomial(0, torch.tensor(10.0), torch.tensor(0.3))) for _ in range(300)]
    assert abs(sum(many) / 300 - 3) < 0.3
