"""Half precision × family × cache × trace × mask × padding: a pairwise cover for the tests, and all of it by a command.

python tests/precision_cases.py        # every combination; prints what fails, and ends with 1 if anything does
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

import sinkscope as sk
from golden_sets import newer
from made_models import make_fast_dllm, make_llada_moe, make_open_dcoder
from sinkscope.decoding import resolve_settings

SPARSE = sk.SparseCache(keep=0.5)
WHOLE: tuple[object, ...] = (None, "prefix", "dual", SPARSE)
BLOCKS: tuple[object, ...] = (None, "exact")
CACHES: dict[str, tuple[object, ...]] = {
    "tiny-llada": WHOLE, "tiny-mmada": WHOLE, "tiny-dream": WHOLE, "tiny-llama": (None,), "tiny-sdar": BLOCKS,
    "llada_moe": WHOLE, "open_dcoder": WHOLE, "fast_dllm": BLOCKS, "llada2": BLOCKS, "a2d": (None,),
}  # fmt: skip
MADE: dict[str, Callable[..., Path]] = {
    "llada_moe": make_llada_moe, "open_dcoder": make_open_dcoder, "fast_dllm": make_fast_dllm,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    family: str
    cache: object
    dtype: str
    traced: bool
    masked: bool
    padded: bool

    def __str__(self) -> str:
        kind = self.cache if isinstance(self.cache, str) or self.cache is None else "sparse"
        words = [name for name in ("traced", "masked", "padded") if getattr(self, name)]
        return "-".join([self.family, self.dtype, str(kind), *words])


def every() -> Iterator[Case]:
    for family, caches in CACHES.items():
        for values in itertools.product(caches, ("bfloat16", "float16"), *[(False, True)] * 3):
            yield Case(family, *values)


def pairwise() -> list[Case]:
    """Few cases in which every two values of two properties that go together occur together; chosen greedily."""
    cases, chosen = list(every()), []
    pairs = {case: _pairs(case) for case in cases}
    missing = set().union(*pairs.values())
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations([(name, str(value)) for name, value in vars(case).items()], 2))


@cache
def loaded(family: str, dtype: str) -> sk.Model:
    if family in MADE:
        with tempfile.TemporaryDirectory() as folder:
            return sk.load(MADE[family](Path(folder)), dtype=dtype)
    if family.startswith("tiny"):
        return sk.load(family, dtype=dtype)
    golden = newer(family)
    return sk.load(golden.folder, dtype=dtype, mask_id=golden.model.mask_id)


def settings_of(model: sk.Model, kind: object) -> sk.Decode:
    if kind in ("prefix", "dual"):
        return sk.Decode.parallel(length=8, block=4, threshold=0.9, cache=kind)
    words: dict[str, object] = {"length": 8, "temperature": 0.0}
    if model.defaults.steps is not None and model.defaults.layout == "answer":
        words["steps"] = 4
    return replace(resolve_settings(model.defaults, model, 6, words), cache=kind)


def run(case: Case) -> None:
    """Decode eight tokens of two prompts, and look at what came."""
    model = loaded(case.family, case.dtype)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 6, 7, 8, 9, 10]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1] if case.padded else [1] * 6, [1] * 6])
    settings = settings_of(model, case.cache)
    made = sk.MaskSinks(k=1, rows="last" if model.causal else "all")
    if case.traced:
        found = sk.trace(model, ids, settings, attention_mask=mask, interventions=[made] if case.masked else [])
        for trace in found:
            paid = trace.received.float().sum((3, 4))  # [step, layer, head]
            queries = trace.queries.sum(1).float()[:, None, None].expand_as(paid)
            torch.testing.assert_close(paid, queries, rtol=0.02, atol=0.1)
        return
    with sk.intervene(model, made) if case.masked else nullcontext() as active:
        done = sk.decode(model, ids, settings, attention_mask=mask)
    assert all(len(answer) > 0 for answer in done.returned)
    assert active is None or (active.effect.keys > 0 and active.effect.leak == 0)


def main() -> int:
    failed = 0
    for case in every():
        try:
            run(case)
        except Exception as error:
            failed += 1
            print(f"{case}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(list(every()))} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
