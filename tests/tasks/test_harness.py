"""Likelihoods, batches, stop strings, chats: what the adapter asks of a model, on small random ones."""

import itertools
import math
import os
from pathlib import Path

import pytest
import torch
from harness_models import FAMILIES, random_model, tokens

from sinkscope.decoding.likelihood import chain_likelihoods, masked_likelihood
from sinkscope.decoding.stop_strings import read_answer
from sinkscope.tasks.protocol import settings_for

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from lm_eval.api.instance import Instance  # noqa: E402

from sinkscope.tasks.harness import HarnessLM  # noqa: E402

DATA = Path(os.environ.get("SINKSCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def request(text, until=(), task="t", **words):
    return Instance("generate_until", {}, (text, {"until": list(until), **words}), 0, (task, 0, 1))


def scored(context, answer):
    return Instance("loglikelihood", {}, (context, answer), 0, ("t", 0, 1))


# ---- likelihoods


def predictions(model, canvas):
    """log p of the token at each position, the slow and obvious way."""
    logits = model.logits(canvas)
    if model.shift:
        logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    if model.valid_vocab_size is not None:
        logits[..., model.valid_vocab_size :] = -torch.inf
    return logits.float().log_softmax(-1)


def over_all_orders(model, context, answer):
    """Chain rule averaged over every order in which the tokens can be unmasked."""
    total = 0.0
    for order in itertools.permutations(range(len(answer))):
        canvas = torch.tensor([context + [model.mask_id] * len(answer)])
        for index in order:
            total += float(predictions(model, canvas)[0, len(context) + index, answer[index]])
            canvas[0, len(context) + index] = answer[index]
    return total / math.factorial(len(answer))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_masked_likelihood_is_the_chain_rule_over_all_orders(family):
    model = random_model(FAMILIES[family]())
    context, answer = [5, 6, 7], [30, 40, 50, 60]
    expected = over_all_orders(model, context, answer)
    exact = masked_likelihood(model, context, answer, samples=15)
    assert exact.value == pytest.approx(expected, abs=1e-4)
    assert (exact.error, exact.forwards, exact.tokens) == (0.0, 15, 4)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_estimate_is_unbiased_and_its_error_is_honest(family):
    model = random_model(FAMILIES[family]())
    context, answer = [5, 6, 7], [30, 40, 50, 60, 70]
    exact = masked_likelihood(model, context, answer, samples=31).value
    runs = [
        masked_likelihood(model, context, answer, samples=24, batch_size=24, seed=seed, greedy=False)
        for seed in range(60)
    ]
    values = torch.tensor([run.value for run in runs])
    told = math.sqrt(sum(run.error**2 for run in runs) / len(runs))
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / math.sqrt(len(runs))
    assert 0.5 < told / float(values.std()) < 2.0
    assert all(run.error > 0 for run in runs)


def test_chain_rule_is_exact_in_padded_batches():
    model = random_model(FAMILIES["llama"]())
    pairs = [([5], [9, 10]), ([5, 6, 7, 8, 9, 1, 2], [3]), ([4, 4], [7, 8, 9, 10, 11])]
    found = chain_likelihoods(model, pairs)
    for (context, answer), one in zip(pairs, found, strict=True):
        scores = predictions(model, torch.tensor([context + answer]))[0, len(context) :]
        assert one.value == pytest.approx(sum(float(scores[i, token]) for i, token in enumerate(answer)), abs=1e-4)
        assert one.greedy == (scores.argmax(-1).tolist() == answer)


@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_greedy_flag_is_what_greedy_decoding_says(family):
    model = random_model(FAMILIES[family]())
    lm = HarnessLM(model, batch_size=2)
    settings = settings_for(model, "t", {"length": 3})
    (own,) = tokens(lm, [torch.tensor([[5, 6, 7]])], settings)
    if family == "llama":
        likely = chain_likelihoods(model, [([5, 6, 7], own), ([5, 6, 7], [own[0], own[1], (own[2] + 1) % 99])])
    else:
        likely = [masked_likelihood(model, [5, 6, 7], answer) for answer in (own, [own[0], own[1], (own[2] + 1) % 99])]
    assert [one.greedy for one in likely] == [True, False]


def test_likelihood_requests_and_rolling_windows():
    model = random_model(FAMILIES["llama"](), context=24)
    lm = HarnessLM(model, batch_size=4)
    one, empty = lm.loglikelihood([scored("the cat", " sat"), scored("", "sat")], disable_tqdm=True)
    assert one[0] < 0
    assert empty[0] < 0
    text = "a text that is much longer than the twenty-four positions of this model"
    (rolled,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)
    short = "a text of this"
    (whole,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (short,), 0)], disable_tqdm=True)
    ids = lm.tok_encode(short, add_special_tokens=False)
    assert whole == pytest.approx(chain_likelihoods(model, [([lm.prefix_token_id], ids)])[0].value, abs=1e-4)
    assert rolled < whole < 0
    info = lm.get_model_info()["sinkscope"]["likelihood"]
    assert info["largest_standard_error"] == 0.0
    diffusion = HarnessLM(random_model(FAMILIES["llada"]()), samples=16)
    diffusion.loglikelihood([scored("the cat", " sat on the mat")], disable_tqdm=True)
    assert diffusion.get_model_info()["sinkscope"]["likelihood"]["largest_standard_error"] > 0


# ---- generation

PROMPTS = ["a", "The quick brown fox", "x = 1\ny = 2\n", "0123456789" * 6, "né", "def f(x):\n    return", "zz top"]


@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_batch_of_mixed_lengths_is_one_by_one(family, temperature):
    model = random_model(FAMILIES[family]())
    words = {"length": 16, "temperature": temperature, "seed": 3} | ({"block": 8} if family == "llada" else {})
    lm = HarnessLM(model, settings=words, batch_size=4)
    settings = settings_for(model, "t", words)
    prompts = [torch.tensor([lm.tok_encode(text)]) for text in PROMPTS]
    together = tokens(lm, prompts, settings)
    assert together == [tokens(lm, [prompt], settings)[0] for prompt in prompts]
    texts = lm.generate_until([request(text) for text in PROMPTS], disable_tqdm=True)
    assert texts == [read_answer(model, ids, [])[0] for ids in together]


@pytest.mark.parametrize("family", ["llada", "llama"])
def test_each_request_has_its_own_stop_strings(family):
    model = random_model(FAMILIES[family]())
    words = {"length": 32} | ({"block": 8} if family == "llada" else {})
    full = HarnessLM(model, settings=words).generate_until([request(text) for text in PROMPTS], disable_tqdm=True)
    stops = [[text[len(text) // 2]] if text else ["x"] for text in full]
    stops[2] = []
    lm = HarnessLM(model, settings=words, batch_size=3)
    cut = lm.generate_until([request(p, s) for p, s in zip(PROMPTS, stops, strict=True)], disable_tqdm=True)
    assert cut == [text.partition(s[0])[0] if s else text for text, s in zip(full, stops, strict=True)]
    assert cut[2] == full[2]


def test_generation_ends_when_every_row_has_stopped():
    model = random_model(FAMILIES["llama"]())
    settings = settings_for(model, "t", {"length": 64})
    lm = HarnessLM(model)
    prompt = torch.tensor([lm.tok_encode("abc")])
    (full,) = tokens(lm, [prompt], settings)
    (short,) = tokens(lm, [prompt], settings, [[read_answer(model, full, [])[0][1]]])
    assert len(short) < len(full)
    assert full[: len(short)] == short


def test_stop_string_that_is_a_special_token():
    model = random_model(FAMILIES["llada"]())
    lm = HarnessLM(model)
    ids = [*lm.tok_encode("ab"), model.tokenizer.get_vocab()["<|startoftext|>"], *lm.tok_encode("cd")]
    assert read_answer(model, ids, ["<|startoftext|>"])[0] == "ab"
    assert read_answer(model, ids, ["\n"])[0] == "abcd"
    assert read_answer(model, [*lm.tok_encode("ab"), model.eot_id, *lm.tok_encode("cd")], [])[0] == "ab"


def test_long_prompts_lose_their_beginning_and_are_counted():
    lm = HarnessLM(random_model(FAMILIES["llama"](), context=32), settings={"length": 8})
    tail = "x" * 24
    long, short = lm.generate_until([request("y" * 50 + tail), request(tail)], disable_tqdm=True)
    assert long == short
    assert lm.get_model_info()["sinkscope"]["requests"]["truncated"] == 1


def test_chat_template_begins_once_and_takes_the_start_of_an_answer():
    lm = HarnessLM(random_model(FAMILIES["llada"](), chat=True))
    messages = [{"role": "user", "content": "hi"}]
    text = lm.apply_chat_template(messages)
    assert text == "<|startoftext|><user>hi<|eot_id|><answer>"
    assert lm.tok_encode(text).count(lm.tokenizer.bos_token_id) == 1
    started = lm.apply_chat_template(
        [*messages, {"role": "assistant", "content": "Sure:\n"}], add_generation_prompt=False
    )
    assert started == text + "Sure:\n"
    assert lm.tokenizer_name
    assert lm.chat_template(True) == lm.tokenizer.chat_template


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_real_chat_templates(family):
    folder = DATA / "tokenizers" / family
    if not folder.is_dir():
        pytest.skip(f"the real tokenizer of {family} is not in {folder}")
    model = random_model(FAMILIES[family]())
    model.tokenizer = model.family.load_tokenizer(folder)
    lm = HarnessLM(model)
    messages = [{"role": "user", "content": "Add 1 and 2."}]
    text = lm.apply_chat_template(messages)
    # What the adapter asks is what model.generate asks.
    assert lm.tok_encode(text) == model.family.encode(model.tokenizer, "Add 1 and 2.", True)[0].tolist()
    started = lm.apply_chat_template(
        [*messages, {"role": "assistant", "content": "Sure:"}], add_generation_prompt=False
    )
    assert started == text + "Sure:"
    code = "x = [1 , 2 ] . y"
    assert read_answer(model, lm.tok_encode(code, add_special_tokens=False), [])[0] == code


def test_repeats_draw_other_answers_only_where_there_is_noise():
    model = random_model(FAMILIES["llada"]())
    one = request("abc")
    still = HarnessLM(model, settings={"length": 8}).generate_until([one] * 3, disable_tqdm=True)
    assert len(set(still)) == 1
    noisy = HarnessLM(model, settings={"length": 8, "temperature": 1.0})
    drawn = noisy.generate_until([one] * 4, disable_tqdm=True)
    assert len(set(drawn)) > 1
    assert (
        HarnessLM(model, settings={"length": 8, "temperature": 1.0}).generate_until([one] * 4, disable_tqdm=True)
        == drawn
    )


def test_registered_for_the_harness_by_name():
    from lm_eval.api.registry import get_model

    assert get_model("sinkscope") is HarnessLM
