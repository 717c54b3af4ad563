"""Benchmarks under interventions: same answers in a batch and alone, effects told, Table 1 as a grid that resumes."""

import itertools
import json

import pytest
import torch
from harness_models import FAMILIES, random_model, tokens

from sinkscope.errors import StudyError, TaskError
from sinkscope.evals.masking import grid, label, parse_condition
from sinkscope.interventions import MaskRandom, MaskSinks
from sinkscope.interventions.conditions import Condition, read_entry

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from lm_eval.api.instance import Instance

from sinkscope.evals.harness import HarnessLM
from sinkscope.evals.protocol import settings_for
from sinkscope.evals.shift import divergences, shift
from sinkscope.evals.table1 import OTHER_SEED, Stopping, as_markdown, table1

PROMPTS = ["a", "The quick brown fox", "0123456789" * 4, "def f(x):\n    return"]


@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
@pytest.mark.parametrize("mask", [MaskSinks(k=2), MaskSinks(k=2, rank="as_run", rows="last"), MaskRandom(k=2)])
def test_batch_is_one_by_one_under_an_intervention(family, mask):
    model = random_model(FAMILIES[family]())
    settings = settings_for(model, "t", {"length": 12})
    lm, plain = HarnessLM(model, mask), HarnessLM(model)
    prompts = [torch.tensor([lm.tok_encode(text)]) for text in PROMPTS]
    together = tokens(lm, prompts, settings)
    assert together == [tokens(lm, [prompt], settings)[0] for prompt in prompts]
    assert together != tokens(plain, prompts, settings)
    lm.generate_until([Instance("generate_until", {}, (PROMPTS[1], {"until": []}), 0, ("t", 0, 1))], disable_tqdm=True)
    effect = lm.get_model_info()["sinkscope"]["effect"]
    assert effect["leak"] == 0
    assert 0 < effect["key_share"] < 0.5
    assert 0 < effect["mass_share"] < 1
    assert plain.get_model_info()["sinkscope"]["effect"] is None
    assert plain.get_model_info()["sinkscope"]["backend"] == "sdpa"
    assert lm.get_model_info()["sinkscope"]["backend"] in ("tiled", "triton")


def test_an_intervention_that_masks_nothing_changes_nothing():
    model = random_model(FAMILIES["llada"]())
    settings = settings_for(model, "t", {"length": 12})
    prompt = [torch.tensor([HarnessLM(model).tok_encode("abc def")])]
    assert tokens(HarnessLM(model, MaskSinks(k=0)), prompt, settings) == tokens(HarnessLM(model), prompt, settings)


@pytest.mark.parametrize("family", ["llada", "llama"])
def test_likelihood_is_taken_under_the_intervention(family):
    model = random_model(FAMILIES[family]())
    request = Instance("loglikelihood", {}, ("the cat sat", " on"), 0)
    values = [
        HarnessLM(model, mask).loglikelihood([request], disable_tqdm=True)[0][0]
        for mask in (None, MaskSinks(k=0), MaskSinks(k=3))
    ]
    assert values[0] == values[1] != values[2]


def test_answers_of_one_condition_are_not_taken_for_another(tmp_path):
    model = random_model(FAMILIES["llada"]())
    request = Instance("generate_until", {}, ("abc def ghi", {"until": []}), 0, ("t", 0, 1))
    store = tmp_path / "requests.jsonl"
    texts = [
        HarnessLM(model, mask, {"length": 16}, store=store).generate_until([request], disable_tqdm=True)[0]
        for mask in (None, MaskSinks(k=3), None)
    ]
    assert texts[0] == texts[2] != texts[1]
    records = [json.loads(line) for line in store.read_text().splitlines()]
    assert sum("text" in record for record in records) == 2


def test_words_of_a_command_line_become_interventions():
    model = random_model(FAMILIES["llada"]())
    assert HarnessLM(model, mask_sinks=0).intervention is None
    request = Instance("generate_until", {}, (PROMPTS[1], {"until": []}), 0, ("t", 0, 1))
    by_words = HarnessLM(model, mask_sinks=2, length=8, batch_size="auto")
    by_objects = HarnessLM(model, MaskSinks(k=2), {"length": 8})
    plain = HarnessLM(model, settings={"length": 8})
    texts = [lm.generate_until([request], disable_tqdm=True) for lm in (by_words, by_objects, plain)]
    assert texts[0] == texts[1] != texts[2]
    told, same = (lm.get_model_info()["sinkscope"] for lm in (by_words, by_objects))
    assert told["settings"]["t"]["length"] == 8
    assert told["effect"] == same["effect"] and told["effect"]["key_share"] > 0


def test_grid_has_every_control():
    labels = [(one.name, one.k, one.rank, one.rows) for one in grid(False, (1, 5))]
    each = [("mask_sinks", "clean"), ("mask_sinks", "as_run"), ("mask_random", "clean")]
    assert labels == [("none", 0, None, None), *((name, k, rank, "all") for k in (1, 5) for name, rank in each)]
    causal = grid(True, (1,))
    first_keys = [one for one in causal if one.name == "mask_positions"]
    assert [(one.positions, one.since) for one in first_keys] == [((0,), "second"), ((0,), "first")]
    assert [label(one) for one in first_keys] == [
        "mask position 0 after the prefill",
        "mask position 0 from the first row on",
    ]
    assert {one.rows for one in causal if one.name == "mask_sinks"} == {"all", "last"}
    assert len({one.key for one in causal}) == len(causal) == 9
    with pytest.raises(TaskError, match="at least 1"):
        grid(False, (0,))


def test_position_0_after_the_prefill_leaves_the_reading_of_the_prompt_alone():
    """The test that the paper makes of an autoregressive model: its prompt was read with the sink in place."""
    model = random_model(FAMILIES["llama"]())
    settings = settings_for(model, "t", {"length": 12})
    prompt = [torch.tensor([HarnessLM(model).tok_encode("The quick brown fox")])]
    after, start = (one.intervention(0) for one in grid(True, (1,)) if one.name == "mask_positions")
    (plain,), (late,), (early,) = (tokens(HarnessLM(model, one), prompt, settings) for one in (None, after, start))
    assert late[0] == plain[0] and late != plain  # the first token comes from the prefill
    assert early != late
    request = Instance("loglikelihood", {}, ("the cat sat", " on"), 0)
    values = [HarnessLM(model, one).loglikelihood([request], disable_tqdm=True)[0][0] for one in (None, after)]
    assert values[0] != values[1], "an intervention from the second forward on was never in force"


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("noop", Condition("noop")),
        ("mask_sinks:k=5,rank=as_run", Condition("mask_sinks", 5, "as_run", "all")),
        ("mask_positions: positions=[0, 1], since=second", Condition("mask_positions", positions=(0, 1), since="second")),
        ("mask_sinks:k=2,above={rule: threshold, epsilon: 3.0, unit: sum}", None),
        ("mask_sinks:k=1,kinds='structural'", None),
    ],
)  # fmt: skip
def test_a_condition_on_the_command_line(text, condition):
    found = parse_condition(text)
    if condition is not None:
        assert found.intervention(0) == condition.intervention(0)
    assert read_entry({"name": found.name, **found.entry()}) == [found]


@pytest.mark.parametrize(
    "text",
    ["", ":", "mask_sinks:", "mask_sinks:k", "mask_sinks:k=", "mask_sinks:k=[1,2]", "mask_sinks:k=1,k=2", "mask_sinks:k={",
     "mask_sinks:k=1,,", "mask_sinks:k=1,name=noop", "nothing:k=1", "mask_positions:positions=0", "mask_sinks:k=&a [*a]"],
)  # fmt: skip
def test_a_wrong_condition_is_one_sentence(text):
    with pytest.raises(TaskError):
        parse_condition(text)


def test_table1_runs_the_grid_and_resumes(tmp_path):
    models = [random_model(FAMILIES[family](), context=384) for family in ("llama", "llada")]
    words = {"tasks": ["sinkscope_logic"], "ks": (1,), "problems": 3, "settings": {"length": 16}, "traced": 1}
    own = [parse_condition("mask_positions:positions=[0,1],since=second")]
    lines, ticks = [], []
    results = table1(
        models, tmp_path / "t", conditions=own, on_message=lines.append, on_progress=lambda *t: ticks.append(t), **words
    )
    assert len(results["cells"]) == 5 + 10
    for cell in results["cells"]:
        assert cell["n"] == 3
        assert cell["low"] <= cell["accuracy"] <= cell["high"]
        assert {"difference", "p", "label", "shift"} <= cell.keys()
        assert cell["paper"] is None and cell["published"] == [] and cell["protocol"] is None
    assert results["tokens"]
    assert sum(row["heads"] for row in results["dynamics"] if row["model"] == "test-llada") == 8
    assert [row["commits"] for row in results["order"]] == [16, 16]
    written = json.loads((tmp_path / "t" / "results.json").read_text())
    assert written["cells"] == results["cells"]
    table = (tmp_path / "t" / "table1.md").read_text()
    assert table == as_markdown(results)
    machine = results["run"]["machine"]
    assert (machine["batch_size"], machine["device"], machine["dtype"]) == (8, "cpu", ["float32"])
    assert {"cuda", "torch", "transformers", "lm_eval"} <= machine.keys() and "batch_size 8" in table
    assert any("temperature=" in line for line in lines)
    assert [line for line in lines if "condition" in line][:2] == [
        "test-llama: condition 1 of 10, none",
        "test-llama: condition 2 of 10, mask position 0 after the prefill",
    ]
    assert ticks[-1][0] == ticks[-1][1] and all(a[0] <= b[0] for a, b in itertools.pairwise(ticks))
    stores = sorted((tmp_path / "t").rglob("requests.jsonl"))
    before = [store.read_bytes() for store in stores]
    assert len(stores) == 15
    again = table1(models, tmp_path / "t", conditions=own, **words)
    assert again["cells"][3]["effect"]["leak"] == 0
    assert [store.read_bytes() for store in stores] == before
    assert again["cells"] == results["cells"]
    from sinkscope.runs.compare import compare

    folder = tmp_path / "t"
    same = compare(folder, folder)
    assert len(same["cells"]) == 15 and all(row["paired"] == 3 and row["difference"] == 0 for row in same["cells"])
    pair = compare(folder, folder, {"test-llama": "test-llada"})["cells"]
    assert {row["model"] for row in pair} == {"test-llama → test-llada"} and pair[0]["paired"] == 3
    (folder / results["cells"][0]["folder"] / "samples_sinkscope_logic.jsonl").unlink()
    with pytest.raises(StudyError, match="damaged"):
        compare(folder, folder)


def test_the_noise_of_sampling_is_measured_where_there_is_any(tmp_path):
    model = random_model(FAMILIES["llada"](), context=384)
    words = {"tasks": ["sinkscope_logic"], "ks": (), "problems": 3, "traced": 0}
    still = table1([model], tmp_path / "still", settings={"length": 16}, **words)
    noisy = table1([model], tmp_path / "noisy", settings={"length": 16, "temperature": 1.0}, **words)
    assert [cell["label"] for cell in still["cells"]] == ["none"]
    assert [cell["label"] for cell in noisy["cells"]] == ["none", OTHER_SEED]
    assert noisy["cells"][1]["condition"]["name"] == "noop"
    assert noisy["cells"][1]["shift"]["changed"] > 0


def test_a_comparison_stops_when_it_is_decided(tmp_path):
    """A random model is always wrong: after a few rounds no difference above 20 points is possible."""
    model = random_model(FAMILIES["llama"](), context=384)
    words = {"tasks": ["sinkscope_logic"], "ks": (1,), "problems": 100, "settings": {"length": 1}, "traced": 0}
    results = table1([model], tmp_path / "t", sequential=Stopping(margin=20.0, round=20), **words)
    none, *others = results["cells"]
    assert none["n"] == max(cell["n"] for cell in others) and "sequential" not in none
    for cell in others:
        assert cell["sequential"]["decision"] == "inside" and 20 <= cell["n"] < 100
        assert -0.2 < cell["sequential"]["low"] <= cell["difference"] <= cell["sequential"]["high"] < 0.2
    with pytest.raises(TaskError, match="margin"):
        Stopping(margin=0)


def test_fast_decoding_must_agree_first(tmp_path):
    model = random_model(FAMILIES["llada"](), context=384)
    words = {"tasks": ["sinkscope_logic"], "ks": (), "settings": {"length": 16}, "traced": 0}
    with pytest.raises(TaskError, match="does not agree"):  # three problems cannot show it
        table1([model], tmp_path / "few", fast=3, problems=3, **words)
    results = table1([model], tmp_path / "many", fast=80, problems=80, batch_size=40, **words)
    (run,) = results["run"]["runs"]
    assert run["settings"]["sinkscope_logic"]["commit"] == "threshold"


def test_shift_of_answers():
    def made(text, ids, steps=None):
        return {"text": text, "ids": ids, **({} if steps is None else {"steps": steps})}

    before = [made("ab", [1, 2, 3, 4], [0, 1, 2, 3]), made("c", [7, 8], [0, 1])]
    same = shift(before, before, [(True, True), (False, False)])
    assert (same["changed"], same["first_change"], same["reordered"], same["same_verdict"]) == (0, 1, 0, 0)
    after = [made("ax", [1, 2, 9, 4], [3, 2, 1, 0]), made("c", [7, 8], [0, 1])]
    found = shift(before, after, [(True, True), (False, False)])
    assert (found["changed"], found["first_change"], found["same_verdict"]) == (0.125, 0.75, 0.5)
    assert found["reordered"] == 0.5  # all pairs of the first, none of the second
    assert shift([made("", [])], [made("a", [1])], [(False, True)])["changed"] == 1
    assert shift([made("a", [1])], [made("b", [2])], [(False, True)])["reordered"] is None


@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_divergence_is_nothing_without_masking_and_something_with_it(family):
    model = random_model(FAMILIES[family]())
    settings = settings_for(model, "t", {"length": 8})
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13]]
    still = divergences(model, MaskSinks(k=0), prompts, settings)
    assert all(one == {"kl": 0.0, "flipped": 0.0, "commits": 8} or one["commits"] < 8 for one in still)
    moved = divergences(model, MaskSinks(k=2), prompts, settings)
    assert all(one["kl"] > 0 for one in moved)
    cached = settings_for(model, "t", {"length": 8, "cache": "prefix"}) if family == "llada" else None
    if cached is not None:
        assert divergences(model, MaskSinks(k=2), prompts, cached)[0]["kl"] is None


def test_answers_do_not_depend_on_the_batch_they_were_made_in(tmp_path):
    """Ids and steps are cut where the answer ends: a longer neighbour lets a row go on."""
    model = random_model(FAMILIES["llada"]())
    requests = [
        Instance("generate_until", {}, (text, {"until": ["e", "a"]}), n, ("t", n, 1)) for n, text in enumerate(PROMPTS)
    ]
    found = []
    for size in (1, 4):
        lm = HarnessLM(model, None, {"length": 32, "block": 8}, batch_size=size)
        lm.generate_until(requests, disable_tqdm=True)
        found.append(lm.answered("t"))
    assert found[0] == found[1]
    assert all(len(one["ids"]) == len(one["steps"]) <= 32 for one in found[0][0])
