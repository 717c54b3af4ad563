"""What a GPU would be asked for, on a machine without one: same tokens, no mixed devices, and no wait of the host per layer."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import pretend_cuda as pretend
import sinkscope as sk
from sinkscope.attention.attend import attend
from sinkscope.cli.app import run
from sinkscope.errors import CaptureError

kernels = pytest.importorskip("sinkscope.attention.triton", reason="triton is there on Linux only")
pytestmark = pytest.mark.skipif(bool(pretend.REASON), reason=pretend.REASON)

MODES: dict[str, tuple[Any, bool]] = {
    "plain": (None, False), "traced": (None, True), "masked": (sk.MaskSinks(k=1), False),
    "both": (sk.MaskSinks(k=1), True), "random": (sk.MaskRandom(k=1), False),
    "cut": (sk.CutContext(1, 2), False),
    "attenuated": (sk.Attenuate(sk.MaskSinks(k=1), by=0.5), False),
    "channels": (sk.AblateChannels(channels=(1, 2)), False), "heads": (sk.ZeroAttention(((0, 1), (1, 0))), False),
    "first": (sk.MaskPositions((0, -1)), False), "layer": (sk.MaskSinks(k=1, per="layer", heads=(0, 1)), False),
}  # fmt: skip
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 10]])
PADDING = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, compute in (("output_kernel", pretend.output), ("received_kernel", pretend.received)):
        monkeypatch.setattr(kernels, name, pretend.Kernel(getattr(kernels, name), compute))


class Ran:
    """Tokens of a run, its trace, and what each step cost."""

    def __init__(self, name: str, mode: str, place: str, padded: bool = True, dtype: str = "float32", **words: Any):
        intervention, traced = MODES[mode]
        model = sk.load(name, dtype=dtype)
        settings = replace(model.defaults, **{"length": 8, "block": 8, "steps": 4, **words})
        if model.causal:
            settings = sk.Decode.autoregressive(length=6)
        elif model.block is not None:
            settings = replace(model.defaults, length=8)
        gpu, self.steps, self.effect = pretend.PretendCuda(), [], None
        mask = PADDING if padded else None
        with nullcontext() if place == "cpu" else gpu:
            if place != "cpu":
                (pretend.split if place == "two" else pretend.put)(model.module)

            def on_step(_: object) -> None:
                self.steps.append((gpu.counts(), gpu.waits.copy()))
                gpu.forget()

            if traced:
                found = sk.trace(
                    model, IDS, settings, attention_mask=mask, interventions=[intervention] if intervention else [],
                    on_step=on_step,
                )  # fmt: skip
                self.tokens = torch.cat([one.canvas[-1] for one in found])
                return
            with sk.intervene(model, intervention) if intervention else nullcontext() as active:
                done = sk.decode(model, IDS, settings, attention_mask=mask, history=False, on_step=on_step)
            self.tokens = pretend.host(done.tokens)
            self.effect = active.effect if active else None


@pytest.mark.parametrize("mode", MODES)
def test_same_tokens_as_on_the_cpu(mode: str) -> None:
    gpu, cpu = (Ran("tiny-llada", mode, place) for place in ("one", "cpu"))
    assert torch.equal(gpu.tokens, cpu.tokens)
    if gpu.effect is not None and cpu.effect is not None:
        assert (gpu.effect.keys, gpu.effect.keys_seen) == (cpu.effect.keys, cpu.effect.keys_seen)
        assert gpu.effect.mass_share == pytest.approx(cpu.effect.mass_share, rel=1e-4)
        assert gpu.effect.moved_share == pytest.approx(cpu.effect.moved_share, rel=1e-4)


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-sdar", "tiny-llama", "tiny-mmada"])
@pytest.mark.parametrize("mode", ["both", "masked"])
def test_other_families(name: str, mode: str) -> None:
    gpu, cpu = (Ran(name, mode, place, block=None if name == "tiny-dream" else 8) for place in ("one", "cpu"))
    assert torch.equal(gpu.tokens, cpu.tokens)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_host_waits_and_kernels(mode: str, padded: bool) -> None:
    def per_layer(kind: str, which: str) -> float:
        two, six = (Ran(name, which, "one", padded).steps[2][0][kind] for name in ("planted-none", "tiny-llada"))
        return (six - two) / 4

    two, six = (Ran(name, mode, "one", padded).steps[2] for name in ("planted-none", "tiny-llada"))
    assert six[0]["waits"] <= two[0]["waits"], six[1] - two[1]
    assert six[0]["to_device"] <= two[0]["to_device"]
    if mode in ("attenuated", "channels"):
        return  # these compute what masking does not: whole maps, and all activations
    assert six[0]["kernels"] - two[0]["kernels"] <= 4 * 1.25 * per_layer("kernels", "plain")


@pytest.mark.parametrize("cache", ["prefix", "dual", "sparse"])
def test_host_waits_with_a_cache(cache: Any) -> None:
    words: dict[str, Any] = {"cache": sk.SparseCache(keep=0.5, by="received") if cache == "sparse" else cache}
    two, six = (Ran(name, "both", "one", **words).steps for name in ("planted-none", "tiny-llada"))
    for step in (0, 1, 2):  # the first fills the cache, and ranks what a sparse one keeps
        assert six[step][0]["waits"] <= two[step][0]["waits"], six[step][1] - two[step][1]


@pytest.mark.parametrize("form", ["full", "summary"])
def test_a_trace_is_one_copy_per_step(form: str) -> None:
    model, gpu, seen = sk.load("tiny-llada"), pretend.PretendCuda(), []
    with gpu:
        pretend.put(model.module)

        def on_step(_: object) -> None:
            seen.append(gpu.counts())
            gpu.forget()

        settings = replace(model.defaults, length=8, block=8, steps=4)
        plain: list[dict[str, int]] = []
        sk.decode(model, IDS, settings, history=False, on_step=lambda _: (plain.append(gpu.counts()), gpu.forget()))
        found = sk.trace(model, IDS, settings, keep=sk.Keep(form=form), on_step=on_step)  # type: ignore[arg-type]
    assert seen[2]["to_host"] == plain[2]["to_host"] + 1
    received = 6 * 2 * 4 * 3 * 14 * 4  # layers, rows, heads, groups, keys, bytes
    assert seen[2]["bytes_to_host"] <= received * (1 if form == "full" else 4) + 2000
    cpu = sk.trace(sk.load("tiny-llada"), IDS, settings, keep=sk.Keep(form=form))  # type: ignore[arg-type]
    for one, other in zip(found, cpu, strict=True):
        assert torch.equal(one.canvas, other.canvas) and torch.equal(one.queries, other.queries)
        assert torch.equal(one.committed_at, other.committed_at)
        torch.testing.assert_close(one.scores("all"), other.scores("all"), atol=5e-3, rtol=1e-2)


def test_tracing_has_the_bits_of_plain_decoding() -> None:
    plain, traced = [], []

    def kept(into: list[Tensor]) -> Any:
        return lambda step: into.append(pretend.host(step.confidence).clone())

    model, settings = sk.load("tiny-dream", dtype="bfloat16"), sk.Decode.dream(length=8, steps=4)
    with pretend.PretendCuda():
        pretend.put(model.module)
        sk.decode(model, IDS, settings, on_step=kept(plain))
        sk.trace(model, IDS, settings, on_step=kept(traced))
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(plain, traced, strict=True))


@pytest.mark.parametrize("cache", [None, "prefix", "dual", "sparse"])
@pytest.mark.parametrize("mode", ["plain", "traced", "masked", "random"])
def test_two_devices(mode: str, cache: Any) -> None:
    words: dict[str, Any] = {"cache": sk.SparseCache(keep=0.5) if cache == "sparse" else cache, "block": 4}
    one, two = (Ran("tiny-llada", mode, place, **words) for place in ("one", "two"))
    assert torch.equal(one.tokens, two.tokens)


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-sdar", "tiny-llama"])
def test_two_devices_of_other_families(name: str) -> None:
    one, two = (Ran(name, "both", place, block=None if name == "tiny-dream" else 8) for place in ("one", "two"))
    assert torch.equal(one.tokens, two.tokens)


def test_triton_is_launched_on_the_device_of_its_tensors() -> None:
    with pretend.PretendCuda(), torch.inference_mode():
        q = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16, device="cuda:1")
        found = attend(q, q, q, drop_keys=torch.zeros(1, 2, 8, dtype=torch.bool, device="cuda:1"), clean=True)
        assert {one.device.index for one in found} == {1}


@pytest.mark.parametrize("noise", ["reference", "per_row"])
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_sampled_tokens_are_those_of_the_cpu(name: str, noise: str) -> None:
    words = {"temperature": 0.7, "noise": noise, "block": None if name == "tiny-dream" else 8}
    gpu, cpu = (Ran(name, "plain", place, **words) for place in ("one", "cpu"))
    assert torch.equal(gpu.tokens, cpu.tokens)


def test_observed_sums_are_on_the_host() -> None:
    model = sk.load("tiny-llada")
    expected = _observed(model)
    with pretend.PretendCuda():
        pretend.put(model.module)
        for one, other in zip(_observed(model), expected, strict=True):
            assert one.device.type == "cpu"
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def _observed(model: sk.Model) -> list[Tensor]:
    with sk.observe(model) as seen:
        model.logits(IDS)
    return seen.received


def test_cuda_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    model = sk.load("tiny-llada")
    with pytest.raises(CaptureError, match="CUDA graph"), sk.observe(model):
        model.logits(IDS)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bench_and_check_write_json(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkup = import_module("sinkscope.checkup")  # sk.checkup is the function

    def load(name: str, dtype: Any = None, **_: Any) -> sk.Model:
        model = loaded(name, dtype=dtype)
        if device == "cuda":
            pretend.put(model.module)
        return model

    loaded = sk.load
    monkeypatch.setattr(sk, "load", load)
    monkeypatch.setattr(checkup, "load", load)
    words = ["--length", "4", "--prompt", "4", "--repeats", "1", "--lengths", "16", "--json"]
    with nullcontext() if device == "cpu" else pretend.PretendCuda():
        assert run(["bench", "planted-none", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["check", "planted-none", "--all", "--json"]) == 0
        checked = json.loads(capsys.readouterr().out)
    assert {one["backend"] for one in found["errors"]} == {"tiled"} | ({"triton"} if device == "cuda" else set())
    assert all(one["holds"] for one in found["errors"]) and found["attention"] and found["machine"]["torch"]
    assert checked["machine"] == found["machine"]
    checks = {one["name"]: one for one in checked["checks"]}
    assert checks["caches"]["detail"].endswith("none, prefix, dual, sparse")
    assert checks["backends"]["status"] == "ok" and checks["several GPUs"]["status"] == "skipped"
