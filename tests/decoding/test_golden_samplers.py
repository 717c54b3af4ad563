"""KLASS, WINO and PC-Sampler, token for token as their authors' code and d2Cache's versions decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import CacheGolden, cache_cases
from sinkscope.decoding import Step, decode


def run(found: CacheGolden, case: dict[str, Any], settings: sk.Decode) -> tuple[Any, list[Step]]:
    """Decode the case and compare every canvas, what was committed and what was taken back."""
    ids, mask = found.prompt(case)
    steps = list[Step]()
    done = decode(found.model, ids, settings, attention_mask=mask, on_step=steps.append)
    expected = found.found(case, "canvas")
    assert done.history is not None
    assert torch.equal(done.history, expected)
    assert torch.equal(done.tokens, found.found(case, "sequences"))
    assert done.forwards == len(steps) == case["forwards"]
    assert torch.equal(stacked(steps, "committed"), found.found(case, "committed").bool())
    if "remasked" in case["tensors"]:
        assert torch.equal(stacked(steps, "reopened"), found.found(case, "remasked").bool())
    return done, steps


def stacked(steps: list[Step], name: str) -> Tensor:
    return torch.stack([getattr(step, name) for step in steps])


@pytest.mark.parametrize(("found", "case"), cache_cases("klass"))
def test_klass(found: CacheGolden, case: dict[str, Any]) -> None:
    used, port = case["settings"], case["implementation"] != "original"
    rule = "klass_port" if port else "klass" if found.family == "llada" else "klass_dream"
    settings = sk.Decode.klass(
        length=used.get("gen_length") or used["max_new_tokens"], block=used.get("block_length"), steps=used.get("steps"),
        threshold=used.get("threshold") if port else used["conf_threshold"], kl_threshold=used["kl_threshold"],
        history=used.get("kl_history_length", 2), take=used.get("unmask_strategy", "all"), commit=rule,
        at_least=used.get("num_transfer_tokens", 1), temperature=used.get("temperature", 0.0), top_p=used.get("top_p"),
        seed=case["seed"] or 0,
    )  # fmt: skip
    run(found, case, settings)


@pytest.mark.parametrize(("found", "case"), cache_cases("wino/original", "wino/copied_mask"))
def test_wino(found: CacheGolden, case: dict[str, Any]) -> None:
    used, port = case["settings"], case["implementation"] != "original"
    settings = sk.Decode.wino(
        length=used["gen_length"], block=used["block_length"], commit="wino_port" if port else None,
        threshold=used["wide_in_thres" if port else "threshold"],
        threshold_back=used["narrow_out_thres" if port else "threshold_back"],
        at_least=used.get("num_transfer_tokens", 1), temperature=used.get("temperature", 0.0), seed=case["seed"] or 0,
    )  # fmt: skip
    run(found, case, settings)


@pytest.mark.parametrize(("found", "case"), cache_cases("pc_sampler/original"))
def test_pc_sampler(found: CacheGolden, case: dict[str, Any], tmp_path: Path) -> None:
    used = case["settings"]
    settings = sk.Decode.pc_sampler(
        length=used["gen_length"], block=used["block_length"], steps=used["steps"], decay=used["lambd"], clip=used["alpha"],
        frequencies=counts_file(found, tmp_path), temperature=used.get("temperature", 0.0), seed=case["seed"] or 0,
    )  # fmt: skip
    run(found, case, settings)


@pytest.mark.parametrize(("found", "case"), cache_cases("pc_sampler/d2cache", "vanilla"))
def test_certainty(found: CacheGolden, case: dict[str, Any], tmp_path: Path) -> None:
    run(found, case, certainty(case["settings"], counts_file(found, tmp_path)))


def certainty(used: dict[str, Any], frequencies: str | None = None, cache: Any = None) -> sk.Decode:
    """d2Cache's own sampler."""
    debias = {"frequencies": frequencies, "clip": float(used["clip_alpha"])} if used.get("debias") else {}
    settings: sk.Decode = sk.Decode.certainty(
        length=used["gen_length"], block=used["block_length"], threshold=used.get("threshold"), sigma=used.get("sigma"),
        at_least=used.get("num_transfer_tokens", 1), top_p=used.get("top_p"), cache=cache, **debias,
    )  # fmt: skip
    return settings


def counts_file(found: CacheGolden, folder: Path) -> str:
    """The background table as PC-Sampler's authors write it."""
    words = found.facts.get("pc_baseline_counts")
    if words is None:
        shares = found.tensor("pc_background_frequency").double().tolist()
        words = {"num_token": 1, "p_baseline_dict": dict(enumerate(shares))}
    path = folder / "counts.json"
    path.write_text(json.dumps(words))
    return str(path)
