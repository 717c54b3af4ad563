"""The plan against a pretend GPU: peak memory and operations of a step at the shapes of real checkpoints, without weights."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretend_cuda as pretend
import sinkscope as sk
from sinkscope.decoding.cost import KERNELS, Size, Workload, device_of
from sinkscope.models import Model
from sinkscope.models.load import load_config_only
from sinkscope.study.plan import forecast
from sinkscope.study.schema import Study
from sinkscope.tracing.states import AT_A_TIME

kernels = pytest.importorskip("sinkscope.attention.triton", reason="triton is there on Linux only")
pytestmark = pytest.mark.skipif(bool(pretend.REASON), reason=pretend.REASON)

CONFIGS: dict[str, dict[str, Any]] = {
    "LLaDA-8B": {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 32, "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464,
        "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "mask_token_id": 126336,
        "eos_token_id": 126081, "pad_token_id": 126081,
    },
    "Dream-7B": {
        "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "mask_token_id": 151666,
        "pad_token_id": 151643, "bos_token_id": 151643, "eos_token_id": 151643, "tie_word_embeddings": False,
    },
    "Llama-3.1-8B": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "eos_token_id": 128001,
        "bos_token_id": 128000, "tie_word_embeddings": False,
    },
}  # fmt: skip
LAYERS = 4  # of a model: its peak is one layer's, and what is kept of every layer is linear in them
LENGTH, BLOCK = 64, 32
MODES: dict[str, tuple[Any, bool]] = {
    "plain": (None, False), "traced": (None, True), "masked": (sk.MaskSinks(k=1), False),
}  # fmt: skip


class EnoughError(Exception): ...


def shallow(folder: Path, name: str) -> sk.Model:
    """The model at its own shapes, with a few layers."""
    config = CONFIGS[name]
    layers = "n_layers" if "n_layers" in config else "num_hidden_layers"
    (folder / "config.json").write_text(json.dumps({**config, layers: LAYERS}))
    return load_config_only(folder, dtype=torch.bfloat16)


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("output_kernel", "received_kernel"):
        monkeypatch.setattr(kernels, name, pretend.Kernel(getattr(kernels, name), pretend.count_only))


def steps_of(model: Model, mode: str, rows: int, prompt: int) -> list[tuple[int, int, dict[str, int]]]:
    """Peak bytes beside the weights, operations and counts of the first three steps."""
    intervention, traced = MODES[mode]
    settings = sk.Decode.autoregressive(length=16) if model.causal else replace(model.defaults, length=LENGTH, steps=8)
    if model.family.name == "llada":
        settings = replace(settings, block=BLOCK)
    gpu, found = pretend.PretendCuda(attends=False), []
    ids = torch.arange(rows * prompt).reshape(rows, prompt) % 100 + 5

    def on_step(_: object) -> None:
        found.append((gpu.most - weights, gpu.flops, gpu.counts()))
        gpu.forget()
        if len(found) == 3:
            raise EnoughError

    with gpu:
        pretend.put(model.module)
        weights = gpu.held
        try:
            if traced:
                sk.trace(model, ids, settings, on_step=on_step, keep=sk.Keep(budget=1 << 40))
            else:
                with sk.intervene(model, intervention) if intervention else nullcontext():
                    sk.decode(model, ids, settings, history=False, on_step=on_step)
        except EnoughError:
            pass
    return found


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "rows", "prompt"), [
    ("LLaDA-8B", 1, 256), ("LLaDA-8B", 16, 1216), ("Dream-7B", 4, 320), ("Dream-7B", 16, 1216), ("Llama-3.1-8B", 8, 960),
])  # fmt: skip
def test_memory_and_operations_within_ten_percent(name: str, rows: int, prompt: int, mode: str, tmp_path: Path) -> None:
    model = shallow(tmp_path, name)
    size = Size.of(model)
    found = steps_of(model, mode, rows, prompt)
    canvas = prompt if model.causal else prompt + LENGTH
    logits = 1 if model.causal else LENGTH if model.family.name == "dream" else BLOCK
    work = Workload(1, rows, canvas, canvas, logits)
    operations = size.flops(work) + (size.received_flops(work) if mode != "plain" else 0.0)
    assert found[0 if model.causal else 1][1] == pytest.approx(operations, rel=0.1)
    planned = size.activation_bytes(replace(work, logits=max(logits // 2, 1)), 2)
    watching = size.layers * rows * size.heads * canvas * 16  # what a trace and a mask add; a plain step has neither
    measured = max(peak for peak, *_ in found)
    assert planned - watching <= 1.1 * measured and planned >= 0.9 * measured
    if not model.causal:  # launches of a step: the layers', and those around them
        launched = found[1][2]["kernels"]
        assert LAYERS * KERNELS[mode] <= launched <= LAYERS * (KERNELS[mode] + 8) + 80


@pytest.mark.usefixtures("_kernels")
def test_a_lens_takes_little_beside_what_it_gives(tmp_path: Path) -> None:
    """LLaDA-8B's shape, 16 rows of 1280 positions: all logits of one layer at once would be 5 GB, as probabilities 26 GB."""
    model, gpu = shallow(tmp_path, "LLaDA-8B"), pretend.PretendCuda(attends=False)
    ids, part = torch.full((16, 1280), 5), 2 * AT_A_TIME
    settings, peaks = replace(model.defaults, length=LENGTH, block=BLOCK, steps=8), {}

    def on_step(_: object) -> None:
        raise EnoughError

    with gpu:
        pretend.put(model.module)
        weights = gpu.held
        found = sk.lens(model, ids)
        assert found.shape == (LAYERS, 16, 1280, 126464) and found.device.type == "cuda"
        states = LAYERS * 16 * 1280 * 4096 * 2
        assert gpu.most - weights <= found.nbytes + states + part + 0.2e9
        del found
        gpu.forget()
        sk.lens(model, ids, layers=[-1], positions=[-1])
        assert gpu.most - weights <= 3e9  # the forward's own
        for kept in (False, True):
            gpu.forget()
            with pytest.raises(EnoughError):
                sk.trace(model, ids[:, LENGTH:], settings, on_step=on_step, keep=sk.Keep(budget=1 << 40, lens=kept))
            peaks[kept] = gpu.most
    assert peaks[True] - peaks[False] <= 3 * part  # logits, and their probabilities in float32


def test_traces_and_masks_cost_time_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["LLaDA-8B"]))
    study = Study.load("quick").changed(models=[str(tmp_path)], problems=2)
    (model,) = forecast(study, "H100").models
    assert model.plain is not None and 0 < model.plain < model.seconds
    assert model.on_host and model.memory == model.weights + model.activations
    size, work = Size.of(load_config_only(tmp_path)), Workload(1, 1, 320, 320, 16)
    plain, masked = (device_of("H100").seconds(size, work, 2, mode) for mode in ("plain", "masked"))
    assert masked - plain >= size.layers * (KERNELS["masked"] - KERNELS["plain"]) * device_of("H100").launch
