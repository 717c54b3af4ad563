"""Who sees whom, as the decoder announces it and a trace keeps it: against a plain loop over the masks of the attention calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import golden, newer, newest
from sinkscope.attention.call import Call, Tap
from sinkscope.attention.patch import patched
from sinkscope.models import Model

PROMPT = torch.tensor([[7, 8, 9, 10, 11, 12]])
D = sk.Decode
LLADA, DREAM = D.llada(8, block=4, steps=8), D.dream(8, steps=8, algorithm="entropy", temperature=0.0)
CASES: dict[str, Any] = {
    "llada": ("llada", LLADA),
    "guidance": ("llada", replace(LLADA, guidance=1.5)),
    "mmada": ("mmada", D.mmada(8, block=4, steps=8)),
    "dream": ("dream", DREAM),
    "parallel": ("llada", D.parallel(8, block=4, threshold=0.5)),
    "prefix cache": ("llada", D.parallel(8, block=4, threshold=0.5, cache="prefix")),
    "dual cache": ("dream", D.parallel(8, block=4, threshold=0.5, cache="dual")),
    "sparse cache": ("llada", replace(LLADA, cache=sk.SparseCache(keep=0.5))),
    "left to right": ("tiny-llama", D.autoregressive(6)),
    "left to right, no cache": ("tiny-llama", D.autoregressive(6, recompute=True)),
    "llada2": ("llada2", D.llada2(8, block=4, steps=4)),
    "llada21": ("llada2", D.llada21(8, block=4)),
    "sdar": ("sdar", D.sdar(11, block=4, steps=2, rule="static", temperature=0.0)),
    "sdar, no cache": ("sdar", replace(D.sdar(11, block=4, steps=2, rule="static", temperature=0.0), cache=None)),
    "mdlm": ("a2d", D.mdlm(8, block=4, steps=8)),
    "bd3lm": ("a2d", D.bd3lm(8, block=4, steps=8, pad_id=0)),
    "illada": ("illada", D.llada(8, block=4, steps=8)),
    "rnd1": ("rnd1", D.rnd1(length=8, steps=4)),
    "wedlm": ("wedlm", D.wedlm(8, block=4)),
    "nemotron": ("nemotron_labs_diffusion", D.nemotron(8, block=4, stop="never")),
    "nemotron, no cache": ("nemotron_labs_diffusion", D.nemotron(8, block=4, cache=None, stop="never")),
    "self-speculation": ("nemotron_labs_diffusion", D.nemotron(8, block=4, mode="self_speculation", threshold=None)),
    "diffusion gemma": ("diffusion_gemma", None),
}


def model_of(name: str) -> Model:
    if name.startswith("tiny"):
        return sk.load(name)
    find = golden if name in ("llada", "dream", "mmada") else newer if name in ("llada2", "sdar", "a2d") else newest
    return find(name).model


@dataclass
class Masks(Tap):
    """Per step, the most queries of each group that any layer's mask lets look at each key, [batch, group, key]."""

    width: int
    counts: dict[int, Tensor] = field(default_factory=dict)

    def done(self, call: Call) -> None:
        forward = call.forward
        assert forward is not None
        if forward.kind != "denoise":
            return
        counts = torch.zeros(forward.rows, 3, self.width, dtype=torch.int64)
        for row in range(forward.rows):
            for query in range(call.queries):
                group = int(forward.labels[row, query])
                if group < 0:
                    continue
                sees = torch.ones(call.keys, dtype=torch.bool)
                if (
                    call.mask is not None and forward.kept is None
                ):  # a sparse cache leaves keys out for want of room only
                    assert call.visible is not None
                    sees = call.visible.expand(len(call.q), call.q.shape[1], call.queries, -1)[row, 0, query]
                if call.causal:
                    sees = sees & (torch.arange(call.keys) <= call.keys - call.queries + query)
                for key in sees.nonzero().flatten().tolist():
                    counts[row, group, key] += 1
        before = self.counts.get(forward.step)
        self.counts[forward.step] = counts if before is None else torch.maximum(before, counts)


def kept_counts(trace: sk.Trace) -> Tensor:
    """[step, group, key]: as the trace tells it."""
    if trace.seen is not None:
        return trace.seen.long()
    return trace.queries.long()[:, :, None].expand(-1, -1, trace.positions)


@pytest.mark.parametrize("case", CASES)
def test_a_trace_counts_what_the_masks_show(case: str) -> None:
    name, settings = CASES[case]
    model = model_of(name)
    if settings is None:
        settings = replace(model.defaults, steps=3, length=2 * int(model.module.config.canvas_length))
    masks = Masks(96)
    with patched(model.for_settings(settings).module, masks):
        trace = sk.trace(model, PROMPT, settings)
    assert isinstance(trace, sk.Trace)
    shown = torch.stack([masks.counts[step][0] for step in range(trace.steps)])
    padding = -PROMPT.shape[1] % 4 if settings.layout == "left" else 0  # whole blocks, which a trace is cut out of
    assert not shown[..., :padding].any()
    if settings.layout != "ahead":  # a draft goes beyond the length, where a trace ends
        assert not shown[..., padding + trace.positions :].any()
    shown = shown[..., padding : padding + trace.positions]
    assert torch.equal(kept_counts(trace), shown)
    assert torch.equal(trace.alive(), (shown > 0).any(1))
    for group, number in (("masked", 0), ("committed", 1), ("prompt", 2)):
        assert torch.equal(trace.seen_by(group), shown[:, number])
    assert torch.equal(trace.seen_by("all"), shown.sum(1))


@pytest.mark.parametrize("case", ["llada", "left to right", "left to right, no cache", "wedlm"])
def test_a_padded_row_counts_as_it_does_alone(case: str) -> None:
    name, settings = CASES[case]
    model = model_of(name)
    shorter = PROMPT[:, 2:]
    batch = torch.cat([PROMPT, torch.nn.functional.pad(shorter, (2, 0), value=model.pad_id or 0)])
    mask = torch.tensor([[1] * 6, [0, 0] + [1] * 4])
    rows = sk.trace(model, batch, settings, attention_mask=mask)
    for row, ids in zip(rows, (PROMPT, shorter), strict=True):
        alone = sk.trace(model, ids, settings)
        assert isinstance(row, sk.Trace) and isinstance(alone, sk.Trace)
        steps = min(row.steps, alone.steps)
        assert torch.equal(kept_counts(row)[:steps], kept_counts(alone)[:steps])


def test_the_counts_survive_a_file_and_follow_a_part(tmp_path: Any) -> None:
    name, settings = CASES["sdar"]
    trace = sk.trace(model_of(name), PROMPT, settings)
    assert isinstance(trace, sk.Trace) and trace.seen is not None
    again = sk.Trace.load(trace.save(tmp_path / "one.trace"))
    assert again.seen is not None and torch.equal(again.seen, trace.seen)
    assert torch.equal(trace.select(steps=slice(1, 3)).alive(), trace.alive()[1:3])
