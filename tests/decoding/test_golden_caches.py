"""Cache policies against their authors' code: canvases, forwards, which columns each layer computed, what was kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_golden_samplers import certainty

import sinkscope as sk
from golden_sets import CacheGolden, cache_cases
from sinkscope.decoding import Decoded, Step, decode


def run(found: CacheGolden, case: dict[str, Any], settings: sk.Decode) -> Decoded:
    """Decode the case; compare every canvas, and the columns that each forward and layer computed."""
    ids, mask = found.prompt(case)
    steps = list[Step]()
    done = decode(found.model, ids, settings, attention_mask=mask, on_step=steps.append)
    assert done.history is not None and done.cache is not None and done.cache.computed is not None
    unknown = case.get("recomputed_undetermined_at_forwards", [])
    computed, expected = done.cache.computed.clone(), found.found(case, "recomputed").bool()
    agreed = [step for step in range(min(len(computed), len(expected))) if step not in unknown]
    differ = [step for step in agreed if not torch.equal(computed[step], expected[step])]
    canvases = found.found(case, "canvas")
    wrong = [i for i in range(min(len(done.history), len(canvases))) if not torch.equal(done.history[i], canvases[i])]
    assert not differ, f"other columns were computed in forwards {differ}"
    assert not wrong, f"other canvases before forwards {wrong}"
    assert done.history.shape == canvases.shape
    assert torch.equal(done.tokens, found.found(case, "sequences"))
    assert done.forwards == len(steps) == case["forwards"] == len(expected)
    full = computed.flatten(2).all(-1).all(-1)
    assert case["batch"] > 1 or int(full.sum()) == case["forwards_full"]
    return done


def own_sampler(found: CacheGolden, case: dict[str, Any], policy: Any, **words: Any) -> sk.Decode:
    """The sampler that the authors of a cache run it with: LLaDA's quota, or Dream's own."""
    used = case["settings"]
    if found.family == "llada":
        confidence = "random" if used.get("remasking") == "random" else "probability"
        return sk.Decode.llada(
            length=used["gen_length"], block=used["block_length"], steps=used["steps"], cache=policy, seed=case["seed"] or 0,
            temperature=used.get("temperature", 0.0), confidence=confidence, **words,
        )  # fmt: skip
    return sk.Decode.dream(
        length=used["max_new_tokens"], steps=used["steps"], algorithm=used["alg"], seed=case["seed"] or 0, cache=policy,
        temperature=used.get("temperature", 0.0), top_p=used.get("top_p"), top_k=None, **words,
    )  # fmt: skip


@pytest.mark.parametrize(("found", "case"), cache_cases("prefix"))
def test_prefix_and_dual(found: CacheGolden, case: dict[str, Any]) -> None:
    kind = "dual" if case["settings"]["cache"]["use_dual"] else "prefix"
    run(found, case, certainty(case["settings"], cache={"name": kind, "moved": True}))


@pytest.mark.parametrize(("found", "case"), cache_cases("sparse_dllm"))
def test_sparse_dllm(found: CacheGolden, case: dict[str, Any]) -> None:
    used = case["settings"]
    policy = {"name": "sparse_dllm", "keep": used["keep_ratio"], "kernel": used["kernel_size"]}
    words = {} if found.family == "llada" else {"block": used["block_length"], "commit": "sparse_dllm"}
    done = run(found, case, own_sampler(found, case, policy, **words))
    assert done.cache is not None and done.cache.kept is not None
    expected = found.found(case, "kept_outside_block").bool()  # [block, layer, column]
    kept = done.cache.kept[1::2, :, 0].clone()  # every second look: the first of a block is not evicted after
    prompt, size = case["prompt_length"], used["block_length"]
    for block in range(len(expected)):
        kept[block, ..., prompt + block * size : prompt + (block + 1) * size] = False
    assert torch.equal(kept, expected[:, :, None].expand_as(kept))


@pytest.mark.parametrize(("found", "case"), cache_cases("dkv_cache_decode"))
def test_dkv_cache(found: CacheGolden, case: dict[str, Any]) -> None:
    used = case["settings"]
    if found.family == "llada":
        policy = {"name": "dkv_cache", "refresh": used["cache_reloading_step"]}
    else:
        kept = "prefill" if used["cache_type"] == "prefill" else used["shift_type"]
        policy = {"name": "dkv_cache", "refresh": used["cache_steps"], "kept": kept}
    run(found, case, own_sampler(found, case, policy))


@pytest.mark.parametrize(("found", "case"), cache_cases("d2cache"))
def test_d2cache(found: CacheGolden, case: dict[str, Any]) -> None:
    policy = {**case["settings"]["cache"], "shrinking": case["implementation"] == "d2cache_repository"}
    run(found, case, certainty(case["settings"], cache=policy))


@pytest.mark.parametrize(("found", "case"), cache_cases("dllm_cache"))
def test_dllm_cache(found: CacheGolden, case: dict[str, Any]) -> None:
    used = case["settings"]
    if "cfg_scale" in used:
        pytest.skip("guidance with a cache is not decoded here")
    if case["implementation"] != "original":
        words = used["cache"]
        policy = {
            "name": "dllm_cache",
            "prompt_interval": words["kp"],
            "answer_interval": words["kr"],
            "ratio": words["rou"],
        }
        run(found, case, certainty(used, cache=policy))
        return
    policy = {
        "name": "dllm_cache", "prompt_interval": used["prompt_interval_steps"],
        "answer_interval": used["gen_interval_steps"], "ratio": used["transfer_ratio"],
    }  # fmt: skip
    run(found, case, own_sampler(found, case, policy))
