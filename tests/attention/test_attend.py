"""attend against the formula, against torch's own attention, and against transformers' eager attention."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attend_cases import calls, check_against_reference
from hypothesis import given
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention import tiled as tiled_module
from sinkscope.attention.attend import attend, choose_backend
from sinkscope.errors import AttentionError

BACKENDS = ("reference", "tiled")
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


@given(words=calls(longest=40, dtypes=DTYPES))
def test_tiled_is_the_reference(words: dict[str, Any]) -> None:
    check_against_reference(words, "tiled")


# Many tiles a head, and chunks that end within the heads.
SMALL = {
    "MOST_ROWS": 7, "MOST_CAUSAL_ROWS": 5, "FEW_CAUSAL_ROWS": 3, "FEW_KEYS": 20, "LEAST_ROWS": 3, "TILE_SCORES": 200,
    "CHUNK_SCORES": 200,
}  # fmt: skip


@pytest.mark.parametrize(("whole_head", "threads"), [(1000, 1), (1000, 2), (1, 1), (1, 3)])
@given(words=calls(longest=40, dtypes=DTYPES))
def test_tiled_is_the_reference_in_small_tiles(whole_head: int, threads: int, words: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch, torch_threads(threads):
        for name, size in (SMALL | {"WHOLE_HEAD": whole_head}).items():
            patch.setattr(tiled_module, name, size)
        check_against_reference(words, "tiled")


@pytest.mark.parametrize(("whole_head", "chunk"), [(1000, 1 << 19), (1000, 200), (1, 200)])
@pytest.mark.parametrize("away", [10.0, 60.0, 200.0])
def test_what_a_dropped_key_leaves_is_exact_however_little(whole_head: int, chunk: int, away: float) -> None:
    q, k, v = made(1, 2, 30, 8), made(1, 1, 30, 8), made(1, 1, 30, 8)
    q[..., 0], k[..., 0], k[..., 4, 0] = 1.0, 0.0, away
    drop = torch.arange(30) == 4
    words = {"q": q, "k": k, "v": v, "scale": 1.0, "drop_keys": drop[None, None], "groups": torch.arange(30) % 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled_module, "WHOLE_HEAD", whole_head)
        patch.setattr(tiled_module, "WHOLE_SCORES", 0)
        patch.setattr(tiled_module, "CHUNK_SCORES", chunk)
        check_against_reference(words, "tiled")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("causal", [False, True])
def test_whole_heads_give_the_same_bits_on_any_number_of_threads(causal: bool) -> None:
    q, k, v = made(2, 4, 300, 16), made(2, 2, 300, 16), made(2, 2, 300, 16)
    found = []
    for threads in (1, 2, 3, 3):
        with torch_threads(threads):
            found.append(attend(q, k, v, causal=causal, groups=torch.arange(300) % 3, backend="tiled"))
            assert torch.get_num_threads() == threads
    for out, received in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(received, found[0][1])


def test_threads_take_the_callers_modes_with_them() -> None:
    q, k, v = made(1, 4, 200, 8), made(1, 4, 200, 8), made(1, 4, 200, 8)
    with torch_threads(2):
        expected = attend(q, k, v)
        with torch.inference_mode():
            found = attend(q, k, v)
        assert found[0].is_inference()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = attend(q, k, v)
        with torch.no_grad():
            without = attend(q.clone().requires_grad_(), k, v)
    assert not without[0].requires_grad
    for other in (found, cast, without):
        assert torch.equal(other[0], expected[0])


def test_a_forked_process_makes_its_own_threads() -> None:
    """Of calls that our own threads share; smaller ones are torch's, whose threads do not survive a fork at all."""
    script = (
        "import os, torch\n"
        "from sinkscope.attention.attend import attend\n"
        "torch.set_num_threads(2)\n"
        "q = torch.ones(1, 4, 600, 8)\n"
        "attend(q, q, q)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    torch.set_num_threads(2)\n"
        "    out, received = attend(q, q, q)\n"
        "    os._exit(0 if torch.allclose(out, q) and torch.allclose(received, q[:, :, :1, :1]) else 3)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["plain", "causal", "bool", "additive", "grouped", "scaled"])
def test_output_is_torchs_own(backend: str, dtype: torch.dtype, case: str) -> None:
    q, k, v = made(2, 4, 33, 16, dtype=dtype), made(2, 2, 33, 16, dtype=dtype), made(2, 2, 33, 16, dtype=dtype)
    mask = torch.rand(2, 1, 33, 33) < 0.7
    mask[..., 0] = True
    ours: dict[str, Any] = {
        "causal": {"causal": True},
        "bool": {"mask": mask},
        "additive": {"mask": made(2, 4, 33, 33, dtype=dtype)},
        "scaled": {"scale": 0.5},
    }.get(case, {})
    theirs = {"is_causal" if name == "causal" else {"mask": "attn_mask"}.get(name, name): x for name, x in ours.items()}
    out, received = attend(q, k, v, backend=backend, **ours)
    expected = scaled_dot_product_attention(q, k, v, enable_gqa=True, **theirs)
    torch.testing.assert_close(out, expected, atol=1e-5 if dtype == torch.float32 else 3e-2, rtol=1e-5)
    torch.testing.assert_close(received.sum(-1), torch.full((2, 4, 1), 33.0))  # every query gives away 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_cached_rows_are_the_last_rows_of_the_whole(backend: str) -> None:
    q, k, v = made(1, 2, 20, 8), made(1, 2, 20, 8), made(1, 2, 20, 8)
    whole, _ = attend(q, k, v, causal=True, backend=backend)
    rows = [
        attend(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], causal=True, backend=backend)[0]
        for i in range(20)
    ]
    torch.testing.assert_close(torch.cat(rows, dim=2), whole)


def block_mask(queries: int, keys: int, block: int, first: int) -> Tensor:
    """The same rule pair by pair: [1, 1, query, key]."""
    pairs = [[key // block <= (first + query) // block for key in range(keys)] for query in range(queries)]
    return torch.tensor(pairs)[None, None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys", "first"), [(23, 23, None), (7, 23, None), (7, 23, 9), (23, 7, None)])
@pytest.mark.parametrize("block", [1, 4, 5, 23, 100])
def test_a_block_is_its_mask(backend: str, queries: int, keys: int, first: int | None, block: int) -> None:
    q, k, v = made(2, 4, queries, 8), made(2, 2, keys, 8), made(2, 2, keys, 8)
    mask = block_mask(queries, keys, block, keys - queries if first is None else first)
    labels = torch.arange(queries) % 2
    expected = attend(q, k, v, mask=mask, groups=labels, backend="reference")
    found = attend(q, k, v, block=block, first=first, groups=labels, backend=backend)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    rows = mask[0, 0].any(-1)  # torch gives NaN where a query sees nothing
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found[0][:, :, rows], theirs[:, :, rows], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_one_are_causal_and_one_block_sees_all(backend: str) -> None:
    q, k, v = made(1, 2, 20, 8), made(1, 2, 20, 8), made(1, 2, 20, 8)
    for one, other in (({"block": 1}, {"causal": True}), ({"block": 20}, {})):
        expected = attend(q, k, v, backend=backend, **other)  # type: ignore[call-overload]
        found = attend(q, k, v, backend=backend, **one)  # type: ignore[call-overload]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_of_queries_is_a_part_of_the_whole(backend: str) -> None:
    q, k, v = made(1, 2, 20, 8), made(1, 2, 20, 8), made(1, 2, 20, 8)
    drop = torch.rand(1, 2, 20) < 0.3
    words: dict[str, Any] = {"block": 4, "drop_keys": drop, "keep_self": True, "backend": backend}
    labels = torch.arange(20)  # a group for each query: received is the whole map
    whole, received = attend(q, k, v, groups=labels, **words)
    window, part = attend(q[:, :, 8:14], k, v, groups=labels[:6], first=8, **words)
    torch.testing.assert_close(window, whole[:, :, 8:14])
    torch.testing.assert_close(part, received[:, :, 8:14])


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_part_the_whole(backend: str) -> None:
    q, k, v = made(2, 3, 30, 8), made(2, 3, 30, 8), made(2, 3, 30, 8)
    labels = torch.arange(30) % 3
    _, together = attend(q, k, v, backend=backend)
    _, parted = attend(q, k, v, groups=labels, backend=backend)
    assert parted.shape == (2, 3, 3, 30)
    torch.testing.assert_close(parted.sum(2, keepdim=True), together)
    labels[labels == 1] = -1
    _, without = attend(q, k, v, groups=labels, backend=backend)
    assert torch.equal(without[:, :, 1], torch.zeros(2, 3, 30))
    torch.testing.assert_close(without[:, :, [0, 2]], parted[:, :, [0, 2]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bool", "-inf", "finfo.min", "drop", "causal"])
def test_a_query_with_nothing_to_attend_to_gives_zeros(backend: str, kind: str) -> None:
    q, k, v = made(1, 2, 5, 8), made(1, 2, 5, 8), made(1, 2, 5, 8)
    barred = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    barred[:, :, 0] = True
    number = -torch.inf if kind == "-inf" else torch.finfo(torch.float32).min
    words: dict[str, Any] = {
        "bool": {"mask": ~barred},
        "drop": {"causal": True, "drop_keys": torch.tensor([True, False, False, False, False]).expand(1, 1, 5)},
        "causal": {"causal": True},
    }.get(kind, {"mask": torch.zeros(1, 1, 5, 5).masked_fill(barred, number)})
    if kind == "causal":  # four keys for five queries: the first query sits before the first key
        k, v = k[:, :, 1:], v[:, :, 1:]
    out, received = attend(q, k, v, backend=backend, **words)
    assert torch.equal(out[:, :, 0], torch.zeros(1, 2, 8))
    assert out[:, :, 1:].abs().min() > 0
    torch.testing.assert_close(received.sum(-1), torch.full((1, 2, 1), 4.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropped_keys_receive_nothing_but_from_themselves(backend: str) -> None:
    q, k, v = made(1, 2, 9, 8), made(1, 2, 9, 8), made(1, 2, 9, 8)
    drop = torch.zeros(1, 2, 9, dtype=torch.bool)
    drop[0, 0, 3] = drop[0, 1, 5] = True
    labels = torch.arange(9)  # a group a query: received is the whole map
    _, received, clean = attend(q, k, v, groups=labels, drop_keys=drop, clean=True, backend=backend)
    _, untouched = attend(q, k, v, groups=labels, backend=backend)
    assert received[0, 0, :, 3].abs().max() == 0
    assert received[0, 1, :, 5].abs().max() == 0
    torch.testing.assert_close(clean, untouched)
    _, kept = attend(q, k, v, groups=labels, drop_keys=drop, keep_self=True, backend=backend)
    assert kept[0, 0, 3, 3] > 0
    assert kept[0, 0, :, 3].count_nonzero() == 1
    assert kept[0, 1, :, 5].count_nonzero() == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("masked", [False, True])
def test_nan_is_not_hidden(backend: str, name: str, masked: bool) -> None:
    tensors = {"q": made(1, 1, 6, 4), "k": made(1, 1, 6, 4), "v": made(1, 1, 6, 4)}
    tensors[name][0, 0, 2, 1] = torch.nan
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril() if masked else None
    out, _ = attend(**tensors, mask=mask, backend=backend)
    assert out[0, 0, 2].isnan().any()
    assert out.isnan().any(-1).sum() == (1 if name == "q" else 4 if masked and name == "k" else 6)


def test_what_the_contract_names_may_come_by_position() -> None:
    q, k, v, labels = made(1, 2, 6, 4), made(1, 2, 6, 4), made(1, 2, 6, 4), torch.arange(6) % 2
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    expected = attend(q, k, v, mask=mask, causal=True, groups=labels, scale=0.3, backend="reference")
    found = attend(q, k, v, mask, True, labels, 0.3, "reference")
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_sums_are_fp32_where_probabilities_would_drown_in_half() -> None:
    q, k, v = (torch.zeros(1, 1, 4096, 8, dtype=torch.bfloat16) for _ in range(3))
    _, received = attend(q, k[:, :, :3], v[:, :, :3])
    torch.testing.assert_close(received, torch.full((1, 1, 1, 3), 4096 / 3), rtol=5e-5, atol=0)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation gave back."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for tensor in given if isinstance(given, tuple | list) else (given,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return given


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"causal": True},
        {"block": 32},
        {"block": 1000},
        {"drop_keys": torch.arange(2048)[None, None] < 4, "clean": True},
    ],
)
def test_tiled_never_holds_the_map(words: dict[str, Any]) -> None:
    q, k, v = made(1, 1, 2048, 8), made(1, 1, 2048, 8), made(1, 1, 2048, 8)
    with LargestTensor() as largest, torch_threads(1):  # it sees the operations of its own thread only
        attend(q, k, v, groups=torch.arange(2048) % 3, backend="tiled", **words)
    assert largest.numel < 2048 * 2048 / 3
    with LargestTensor() as largest:
        attend(q, k, v, backend="reference", **words)
    assert largest.numel == 2048 * 2048


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sides_give_zeros(backend: str) -> None:
    out, received = attend(made(1, 2, 3, 4), made(1, 2, 0, 4), made(1, 2, 0, 4), backend=backend)
    assert torch.equal(out, torch.zeros(1, 2, 3, 4))
    assert received.shape == (1, 2, 1, 0)
    out, received = attend(made(1, 2, 0, 4), made(1, 2, 3, 4), made(1, 2, 3, 4), backend=backend)
    assert out.shape == (1, 2, 0, 4)
    assert torch.equal(received, torch.zeros(1, 2, 1, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_does_not_blunt_it(backend: str) -> None:
    q, k, v = made(1, 4, 20, 8), made(1, 2, 20, 8), made(1, 2, 20, 8)
    sharp = attend(q, k, v, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(q, k, v, backend=backend)
    assert torch.equal(found[0], sharp[0])
    assert torch.equal(found[1], sharp[1])


def test_output_keeps_the_layout_of_q() -> None:
    q = made(1, 5, 2, 4).transpose(1, 2)
    out, _ = attend(q, q, made(1, 2, 5, 6))
    assert out.transpose(1, 2).is_contiguous()
    assert attend(q.contiguous(), q, q)[0].is_contiguous()


def test_gradients_need_the_reference() -> None:
    q, k, v = made(1, 2, 5, 4).requires_grad_(), made(1, 2, 5, 4), made(1, 2, 5, 4)
    assert choose_backend(q) == "reference"
    attend(q, k, v)[0].sum().backward()
    ours = q.grad
    q.grad = None
    scaled_dot_product_attention(q, k, v).sum().backward()
    torch.testing.assert_close(ours, q.grad)
    with pytest.raises(AttentionError, match="no gradients"):
        attend(q, k, v, backend="tiled")
    with torch.no_grad():
        assert choose_backend(q) == "tiled"
        assert not attend(q, k, v, backend="tiled")[0].requires_grad


Q, K = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 6, 8)
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("q must be", {"q": torch.zeros(4, 5, 8)}),
    ("one dtype and device", {"k": K.half()}),
    ("must be float32", {"q": Q.int(), "k": K.int(), "v": K.int()}),
    ("multiple of", {"q": Q[:1]}),
    ("multiple of", {"v": K[:, :, 1:]}),
    ("multiple of", {"q": Q[:, :3]}),
    ("multiple of", {"q": Q[..., 1:]}),
    ("mask must be bool", {"mask": torch.zeros(1, 1, 5, 6, dtype=torch.long)}),
    ("mask must be", {"mask": torch.zeros(5, 6)}),
    ("mask must be", {"mask": torch.zeros(1, 1, 5, 5)}),
    ("mask must be", {"mask": torch.zeros(1, 3, 5, 6)}),
    ("NaN", {"mask": torch.full((1, 1, 5, 6), torch.nan)}),
    ("NaN", {"mask": torch.zeros(1, 1, 5, 6).index_fill(3, torch.tensor([2]), torch.inf)}),
    ("mask must be a tensor", {"mask": [[True]]}),
    ("q must be a tensor", {"q": None}),
    ("scale", {"scale": torch.nan}),
    ("scale", {"scale": "wide"}),
    ("block", {"block": 1.5}),
    ("first", {"first": 10**30}),
    ("drop_keys must be bool", {"drop_keys": torch.zeros(2, 4, 6)}),
    ("drop_keys must be", {"drop_keys": torch.zeros(2, 4, 5, dtype=torch.bool)}),
    ("groups must be integer", {"groups": torch.zeros(5)}),
    ("groups must be", {"groups": torch.zeros(6, dtype=torch.long)}),
    ("groups must be labels", {"groups": torch.full((5,), -2)}),
    ("below group_count", {"groups": torch.full((5,), 3), "group_count": 3}),
    ("group_count", {"group_count": 0}),
    ("block", {"block": 0}),
    ("causal and block", {"block": 4, "causal": True}),
    ("backend must be", {"backend": "flash"}),
    ("needs tensors on CUDA", {"backend": "triton"}),
]


@pytest.mark.parametrize(("text", "change"), WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(text: str, change: dict[str, Any]) -> None:
    words: dict[str, Any] = {"q": Q, "k": K, "v": K} | change
    with pytest.raises(AttentionError, match=text) as raised:
        attend(**words)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("padded", [False, True])
def test_transformers_eager_says_the_same(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    ids, present = torch.randint(0, 50, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    if padded:
        present[0, :4] = 0
    with torch.no_grad():
        eager = model(ids, attention_mask=present, output_attentions=True)
        seen: list[Tensor] = []

        def ours(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any) -> Any:
            out, received = attend(q, k, v, mask=mask, scale=scaling, groups=present - 1)  # padded queries: −1
            seen.append(received)
            return out.transpose(1, 2), None

        monkeypatch.setattr(modeling_llama, "eager_attention_forward", ours)
        logits = model(ids, attention_mask=present).logits
    torch.testing.assert_close(logits[present > 0], eager.logits[present > 0], atol=1e-5, rtol=1e-5)
    assert len(seen) == 3
    for received, attention in zip(seen, eager.attentions, strict=True):
        counted = attention * present[:, None, :, None]
        torch.testing.assert_close(received[:, :, 0], counted.sum(2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 4, 9, 9, 8), (1, 2, 5, 17, 16), (1, 2, 300, 300, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cap_bends_scores_before_any_mask(sizes: tuple[int, ...], masked: bool) -> None:
    batch, heads, queries, keys, dim = sizes
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, size, dim) * 3 for size in (queries, keys, keys))
    mask = torch.rand(batch, 1, 1, keys) > 0.3 if masked else None
    scores = 5.0 * torch.tanh(q @ k.mT * dim**-0.5 / 5.0)
    weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
    for backend in ("tiled", "reference"):
        out, received = attend(q, k, v, mask=mask, cap=5.0, backend=backend)
        torch.testing.assert_close(out, weights @ v, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(received[:, :, 0], weights.sum(2), atol=1e-3, rtol=1e-4)
    with pytest.raises(AttentionError, match="cap"):
        attend(q, k, v, cap=0.0)
