"""Half precision × family × cache × trace × mask × padding: a pairwise cover for the tests, and all of it by a command.

python tests/precision_cases.py            # every combination; prints what fails, and ends with 1 if anything does
python tests/precision_cases.py --write    # … and writes lab/results/precision.md
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

import sinkscope as sk
from golden_sets import NEWER, newer, newest
from made_models import make_fast_dllm, make_llada_moe, make_open_dcoder
from sinkscope.decoding import resolve_settings

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "precision.md"
SPARSE = sk.SparseCache(keep=0.5)
CANVAS: tuple[object, ...] = (None, "prefix", "dual")
WHOLE: tuple[object, ...] = (*CANVAS, SPARSE)
BLOCKS: tuple[object, ...] = (*CANVAS, "exact")
# Every family with the caches that it takes; the others are refused in a sentence (test_the_others_are_refused).
CACHES: dict[str, tuple[object, ...]] = {
    "tiny-llada": WHOLE, "tiny-mmada": WHOLE, "tiny-dream": WHOLE, "tiny-llama": (None,), "tiny-sdar": BLOCKS,
    "llada_moe": WHOLE, "open_dcoder": WHOLE, "fast_dllm": BLOCKS, "llada2": BLOCKS, "a2d": CANVAS, "illada": WHOLE,
    "tiny-nemotron": (None, "exact"), "wedlm": (None,), "rnd1": CANVAS, "diffusion_gemma": ("exact",),
}  # fmt: skip
EVERY: tuple[object, ...] = (*CANVAS, SPARSE, "exact")
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
        kind = "sparse" if self.cache is SPARSE else self.cache
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
    golden = (newer if family in NEWER else newest)(family)
    return sk.load(golden.folder, dtype=dtype, mask_id=golden.model.mask_id)


def settings_of(model: sk.Model, kind: object) -> sk.Decode:
    if kind in ("prefix", "dual"):
        if "tiny" not in model.name:  # random weights may choose the mask token again and again
            return sk.Decode.llada(length=8, block=4, steps=4, cache=kind)
        return sk.Decode.parallel(length=8, block=4, threshold=0.9, cache=kind)
    words: dict[str, object] = {"length": 8, "temperature": 0.0}
    if model.defaults.steps is not None and model.defaults.layout == "answer":
        words["steps"] = 4
    return replace(resolve_settings(model.defaults, model, 6, words), cache=kind)


def run(case: Case) -> None:
    """Decode eight tokens of two prompts, and look at what came."""
    model = loaded(case.family, case.dtype)
    ids = torch.tensor([[20, 21, 22, 23, 24, 25], [31, 21, 22, 23, 24, 25]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1] if case.padded else [1] * 6, [1] * 6])
    settings = settings_of(model, case.cache)
    made = sk.MaskSinks(k=1, rows="last" if model.causal else "all")
    if case.traced:
        found = sk.trace(model, ids, settings, attention_mask=mask, interventions=[made] if case.masked else [])
        for trace in found:
            paid = trace.received.float().sum((3, 4))  # [step, layer, head]
            queries = trace.queries.sum(1).float()[:, None, None].expand_as(paid)
            lost = queries - paid  # where the only key that a query sees is masked, it pays nothing
            torch.testing.assert_close(lost, lost.round().clamp(0, int(case.masked)), rtol=0, atol=0.2)
        return
    with sk.intervene(model, made) if case.masked else nullcontext() as active:
        done = sk.decode(model, ids, settings, attention_mask=mask)
    assert all(len(answer) > 0 for answer in done.returned)
    assert active is None or (active.effect.keys > 0 and active.effect.leak == 0)


def main() -> int:
    failed: Counter[tuple[str, object]] = Counter()
    for case in every():
        try:
            run(case)
        except Exception as error:
            failed[case.family, case.cache] += 1
            print(f"{case}: {type(error).__name__}: {error}", flush=True)
    said = f"{len(list(every()))} cases, {failed.total()} failed"
    print(said)
    if "--write" in sys.argv:
        RESULTS.write_text(page(said, failed))
    return int(failed.total() > 0)


def page(said: str, failed: Counter[tuple[str, object]]) -> str:
    cells = {
        family: [f"{16 - failed[family, kind]} of 16" if kind in CACHES[family] else "refused" for kind in EVERY]
        for family in CACHES
    }
    return "\n".join([
        "# Half precision with every family and every cache", "",
        f"`python tests/precision_cases.py --write` on a CPU, torch {torch.__version__.split('+')[0]}: {said}.", "",
        "A cell counts the cases that passed: bfloat16 and float16 × traced or not × masked (top key) or not × padded or not. Each "
        "decodes eight tokens of two prompts. A traced case checks that every query's attention adds up to 1; a masked one that "
        "keys were masked, and received nothing. The models are small: those of the package, and random weights in a family's own "
        "format. The tests run a part in which every two properties meet.", "",
        "| family | no cache | prefix | dual | sparse | exact |", "|---|---|---|---|---|---|",
        *(f"| {family} | {' | '.join(row)} |" for family, row in cells.items()), "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
