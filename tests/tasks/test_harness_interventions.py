"""The harness's adapter under interventions: same answers in a batch and alone, effects told, conditions as words."""

import pytest
import torch
from harness_models import FAMILIES, random_model, tokens

from sinkscope.conditions import Condition
from sinkscope.errors import InterventionError
from sinkscope.interventions import MaskRandom, MaskSinks

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from lm_eval.api.instance import Instance

from made_conditions import make_condition
from sinkscope.decoding.stop_strings import generate_until
from sinkscope.tasks.harness import HarnessLM
from sinkscope.tasks.protocol import settings_for

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


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("noop", make_condition("noop")),
        ("mask_sinks:k=5,rank=as_run", make_condition("mask_sinks", 5, "as_run", "all")),
        ("mask_positions: positions=[0, 1], since=second", make_condition("mask_positions", positions=(0, 1), since="second")),
        ("mask_sinks:k=2,above={rule: threshold, epsilon: 3.0, unit: sum}", None),
        ("mask_sinks:k=1,kinds='structural'", None),
    ],
)  # fmt: skip
def test_a_condition_on_the_command_line(text, condition):
    found = Condition.parse(text)
    if condition is not None:
        assert found.seeded(0) == condition.seeded(0)
    assert Condition.read({"name": found.name, **found.entry()}) == [found]


@pytest.mark.parametrize(
    "text",
    ["", ":", "mask_sinks:", "mask_sinks:k", "mask_sinks:k=", "mask_sinks:k=[1,2]", "mask_sinks:k=1,k=2", "mask_sinks:k={",
     "mask_sinks:k=1,,", "mask_sinks:k=1,name=noop", "nothing:k=1", "mask_positions:positions=0", "mask_sinks:k=&a [*a]"],
)  # fmt: skip
def test_a_wrong_condition_is_one_sentence(text):
    with pytest.raises(InterventionError):
        Condition.parse(text)


def test_answers_do_not_depend_on_the_batch_they_were_made_in():
    """Ids and steps are cut where the answer ends: a longer neighbour lets a row go on."""
    model = random_model(FAMILIES["llada"]())
    lm = HarnessLM(model)
    prompts = [torch.tensor([lm.tok_encode(text)]) for text in PROMPTS]
    settings = settings_for(model, "t", {"length": 32, "block": 8})
    stops = [("e", "a")] * len(prompts)
    together = generate_until(model, prompts, settings, stops)
    assert together == [generate_until(model, [prompt], settings, stops[:1])[0] for prompt in prompts]
    assert all(len(one.ids) == len(one.steps) <= 32 for one in together)
