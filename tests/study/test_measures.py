"""What units measure, against the obvious way to measure it."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from made_conditions import make_condition
from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.forward import seeded
from sinkscope.attention.patch import patched
from sinkscope.decoding import resolve_settings
from sinkscope.errors import TraceError
from sinkscope.interventions import intervene
from sinkscope.study.problem_sets import ProblemSets, run_unit
from sinkscope.study.run import run
from sinkscope.study.schema import Study
from sinkscope.study.units import Unit
from sinkscope.study.units import trace_rows as traces
from sinkscope.study.units.likelihood import first_key_shares, held_out, windows
from sinkscope.study.units.mechanism import Dependence, Watch, with_threshold_commits
from sinkscope.study.units.worker import encode_batch, row_seeds
from sinkscope.tracing.recorder import Keep

PROMPT = "Ann has 3 apples. Then Ann finds 4.\nHow many apples are left?"


@dataclass
class Watched(Tap):
    """Column sums and dropped keys of every call."""

    clean: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    drop: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)

    def needs_sums_fused(self, call: Call) -> bool:
        return True

    def take(self, call: Call, outcome: CallResult) -> None:
        assert call.forward is not None
        self.clean[call.layer, call.forward.step] = outcome.clean.sum(2)[0]
        self.drop[call.layer, call.forward.step] = outcome.drop


@pytest.mark.parametrize("above", [None, sk.Threshold(0.2, unit="uniform"), sk.Threshold(3, unit="uniform")])
def test_columns_of_an_arm_add_up_all_rows_so_far(family: dict[str, str], above: sk.Threshold | None) -> None:
    model = sk.load(family["llama"])
    prompt = model.encode(PROMPT).shape[-1]
    watched = Watched()
    with intervene(model, sk.MaskSinks(k=2, above=above)), patched(model.module, watched):
        for _ in range(2):  # a second generation begins anew
            model.generate(PROMPT, length=6)
    steps = sorted({step for _, step in watched.clean})
    assert len(steps) > 2
    for layer in range(2):
        assert watched.drop[layer, 0] is None
        for step in steps[1:]:
            keys = watched.clean[layer, step].shape[-1]
            before = [torch.nn.functional.pad(watched.clean[layer, s], (0, keys - watched.clean[layer, s].shape[-1]))
                      for s in steps if s < step]  # fmt: skip
            total = torch.stack(before).sum(0)  # [head, key]
            drop = watched.drop[layer, step]
            assert drop is not None
            marked = total > 0 if above is None else above.marks(total, prompt + len(before) - 1, total > 0)
            for head in range(2):
                wanted = {key for key in total[head].topk(2).indices.tolist() if marked[head, key]}
                assert set(drop[0, head].nonzero().flatten().tolist()) == wanted


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_dependence_is_what_the_maps_say(family: dict[str, str], name: str) -> None:
    model = sk.load(family[name])
    heads = tuple((layer, head) for layer in range(2) for head in range(2))
    settings = sk.Decode.from_dict({**model.defaults.to_dict(), "length": 8, "steps": 8, "block": None})
    tap = Dependence(k=3)
    with patched(model.module, tap):
        made = sk.trace(model, PROMPT, settings, keep=Keep(maps=heads, dtype=torch.float32))
    assert made.maps is not None
    paid = torch.zeros(made.positions)
    for slot, (layer, head) in enumerate(heads):
        top = made.scores()[0, layer, head].topk(3).indices
        paid += made.maps[slot, 1][:, top].sum(-1)
    assert torch.allclose(tap.dependence()[0], paid / len(heads), atol=1e-5)


def test_mechanism_compares_the_same_canvas(study: Study, family: dict[str, str]) -> None:
    unit = Unit("mechanism", family["dream"], make_condition("mask_sinks", 2, "clean", "all"), task="arithmetic", last=3,
                decode=sk.Decode.dream(8, temperature=0.0, top_p=None, top_k=None, algorithm="maskgit_plus").to_dict())  # fmt: skip
    rows = run_unit(study, unit, Path())["rows"]
    assert [row["positions"] for row in rows] == [8, 8, 8]  # this schedule commits nothing at the first step
    assert all(row["dependence_high"] > row["dependence_low"] for row in rows)
    assert any(row["confidence_sinks_high"] != 0 for row in rows)
    assert all({"free_delay_sinks", "free_delay_random_low", "free_steps_sinks"} <= set(row) for row in rows)
    assert all(row["free_positions"] >= 2 for row in rows)


def test_delays_add_up_to_nothing_with_one_commit_per_step_and_are_free_by_a_threshold(
    study: Study, family: dict[str, str]
) -> None:
    decode = sk.Decode.llada(8, steps=8, noise="per_row").to_dict()
    unit = Unit("mechanism", family["llada"], make_condition("mask_sinks", 5, "clean", "all"), task="arithmetic", last=3,
                decode=decode)  # fmt: skip
    rows = run_unit(study, unit, Path())["rows"]
    for row in rows:
        # At the second forward 7 of 8 positions are open; the delays of all of them add up to 0, the middle one included.
        assert abs(row["delay_sinks_high"] + row["delay_sinks_low"]) * 3 <= 7
    free = with_threshold_commits(sk.Decode.from_dict(decode))
    assert (free.commit_rule, free.threshold, free.steps, free.length) == ("threshold", 0.99, None, 8)
    assert free.block is None
    model = sk.load(family["llada"])
    ids, mask = encode_batch(model, ProblemSets(study).make_job(unit).prompts)
    ends = []
    for change in (None, sk.MaskSinks(k=5)):
        watch = Watch()
        with intervene(model, change) if change is not None else nullcontext():
            sk.decode(model, ids, free, attention_mask=mask, history=False, on_step=watch)
        ends.append(watch.committed_at.max(1).values)
    assert [row["free_steps_sinks"] for row in rows] == (ends[1] - ends[0]).tolist()


def test_columns_so_far_are_means_over_the_rows_that_see_a_key(family: dict[str, str]) -> None:
    model = sk.load(family["llama"])
    heads = tuple((layer, head) for layer in range(2) for head in range(2))
    made = sk.trace(model, PROMPT, length=6, keep=Keep(maps=heads, dtype=torch.float32))
    assert made.maps is not None and made.received is not None
    seen = made.cumulative()
    assert seen.received is not None
    prompt = made.prompt_length
    for step in range(made.steps):
        rows = [(0, query) for query in range(prompt)] + [(later, prompt + later - 1) for later in range(1, step + 1)]
        for slot, (layer, head) in enumerate(heads):
            for key in range(made.positions):
                paid = [float(made.maps[slot, at, query, key]) for at, query in rows if query >= key]
                assert bool(seen.alive()[step, key]) == (len(paid) >= 4)
                if paid:
                    mean = float(seen.received[step, layer, head, 1, key]) / len(rows)
                    assert mean == pytest.approx(sum(paid) / len(paid), abs=1e-4)
    with pytest.raises(TraceError, match="autoregressive"):
        sk.trace(sk.load(family["llada"]), PROMPT, length=4, steps=4).cumulative()


def test_likelihood_without_masking_is_the_models_own(study: Study, family: dict[str, str]) -> None:
    model = sk.load(family["text"])
    plan = study.likelihood
    found = run_unit(study, Unit("likelihood", family["text"], make_condition("none")), Path())
    ids = windows(model, plan.texts, plan.read + plan.scored + 1)
    whole = model.logits(ids).log_softmax(-1)
    for row, result in enumerate(found["rows"]):
        places = range(plan.read, plan.read + plan.scored)
        twin = sum(float(whole[row, place, ids[row, place + 1]]) for place in places) / plan.scored
        assert result["value"] == pytest.approx(twin, abs=1e-5)


def test_share_of_the_first_key_is_what_transformers_says(family: dict[str, str]) -> None:
    model = sk.load(family["text"])
    ids = windows(model, 3, 20)
    found = first_key_shares(model, ids)
    model.module.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.inference_mode():
        maps = model.module(ids, output_attentions=True).attentions
    assert found == pytest.approx([float(one[:, :, 1:, 0].mean()) for one in maps], abs=1e-5)


def test_held_out_texts_are_many_and_long_enough() -> None:
    assert len(held_out()) == len(set(held_out())) >= 16
    assert min(len(text.split()) for text in held_out()) >= 85


def test_position_0_since_the_second_forward_leaves_the_prompt_alone(family: dict[str, str]) -> None:
    model = sk.load(family["llama"])
    for since, expected in (("first", True), ("second", False)):
        watched = Watched()
        change = make_condition("mask_positions", positions=(0,), since=since).seeded(0)
        assert change is not None
        with intervene(model, change), patched(model.module, watched):
            model.generate(PROMPT, length=3)
        first, second = watched.drop[0, 0], watched.drop[0, 1]
        assert (first is not None) == expected
        assert second is not None and bool(second[..., 0].all()) and not bool(second[..., 1:].any())


@pytest.mark.parametrize("name", ["llada", "llama"])
def test_random_keys_are_drawn_anew_for_every_problem_whatever_its_chunk(
    study: Study, family: dict[str, str], tmp_path: Path, name: str
) -> None:
    """Problems of one prompt are hidden different keys; in chunks of one or of three, the answers are the same."""
    seen = []
    model = sk.load(family[name])
    decode = resolve_settings(model.defaults, model, 0, {"length": 8, "noise": "per_row"}).to_dict()
    for chunk in (1, 3):
        plan = replace(study, chunk=chunk)
        units = [
            Unit("answers", family[name], make_condition("mask_random", 3, "clean", "all", "mass"), "", "arithmetic", first,
                 min(first + chunk, 3), index, decode, name)
            for index, first in enumerate(range(0, 3, chunk))
        ]  # fmt: skip
        rows = [row for unit in units for row in run_unit(plan, unit, tmp_path)["rows"]]
        seen.append([(row["problem"], row["tokens"]) for row in rows])
    assert seen[0] == seen[1]
    numbers = [row_seeds(study, units[0], [problem]) for problem in range(3)]
    assert len(set(numbers)) == 3
    assert row_seeds(study, replace(units[0], task="recall"), [0]) != numbers[0]  # another task, another draw


@dataclass
class Kept(Tap):
    """Hidden keys of every call that hides some."""

    drops: list[Tensor] = field(default_factory=list)

    def needs_sums_fused(self, call: Call) -> bool:
        return True

    def take(self, call: Call, outcome: CallResult) -> None:
        if outcome.drop is not None:
            self.drops.append(outcome.drop)


def test_rows_of_a_batch_have_draws_of_their_own(family: dict[str, str]) -> None:
    model = sk.load(family["llada"])
    ids = model.encode(PROMPT).repeat(2, 1)
    settings = sk.Decode.llada(8, steps=4)
    for seeds, alike in (((1, 1), True), ((1, 2), False)):
        kept = Kept()
        with intervene(model, sk.MaskRandom(k=2)), seeded(seeds), patched(model.module, kept):
            sk.decode(model, ids, settings, history=False)
        assert kept.drops and all(torch.equal(drop[0], drop[1]) for drop in kept.drops) == alike


def test_ctrl_c_stores_what_is_finished(study: Study, tmp_path: Path) -> None:
    said: list[str] = []

    def on_progress(done: int, total: int) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path, workers=1, on_message=said.append, on_progress=on_progress)
    assert len(list((tmp_path / "units").glob("*.json"))) == 3
    assert said[-1].startswith("stopped: 3 of ")


def test_shares_of_tokens_are_counted_over_generations() -> None:
    made = traces.Generations()
    made.vocabulary = {"1": ["a", "word"], "2": [".", "punctuation"], "3": ["b", "word"]}
    made.made = [{"tokens": {"1": [1.0, 2.0], "2": [3.0, 2.0]}}, {"tokens": {"2": [3.0, 1.0], "3": [1.0, 5.0]}}]
    study = Study.load("quick")
    rows = traces.token_shares(study, {("m", "", "none"): made})
    assert [(row.token, row.share, row.base) for row in rows] == [
        (".", 0.75, 0.3),
        ("b", 0.125, 0.5),
        ("a", 0.125, 0.2),
    ]
    kinds = traces.kind_shares(study, {("m", "", "none"): made})
    assert [(row.kind, row.share, row.enrichment) for row in kinds] == [
        ("punctuation", 0.75, pytest.approx(2.5)),
        ("word", 0.25, pytest.approx(0.25 / 0.7)),
    ]
