"""The tokenizer gives every text back, knows every word of ours, and is the same tomorrow."""

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lab.pictures import PICTURE_TOKENS
from lab.vocabulary import PIECES, SPECIAL, build_tokenizer, tokens
from sinkscope.tasks import KINDS, problems

TEXT = build_tokenizer()
PICTURES = build_tokenizer(pictures=True)


def test_size_and_order() -> None:
    assert len(set(tokens())) == len(tokens()) == len(TEXT) <= 512
    assert TEXT.convert_ids_to_tokens(list(range(len(TEXT)))) == tokens()
    assert tokens()[: len(SPECIAL)] == list(SPECIAL)
    # The shipped checkpoints know tokens by their place: append, and never change what is here.
    known = hashlib.sha256("\x1f".join(tokens()[:454]).encode()).hexdigest()
    assert known == "1d02ca88c410ed8692feba69938d13286df12dad7789c962a4ce8a973dfb56c9"


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_text_comes_back_and_every_word_is_one_token(kind: str) -> None:
    for split, size in (("train", 1500), ("test", 300)):
        for problem in problems(kind, size, split):
            for text in (problem.prompt, problem.answer):
                ids = TEXT.encode(text)
                assert TEXT.decode(ids) == text
                assert len(ids) == len(re.findall(PIECES, text))
                assert TEXT.unk_token_id not in ids


@pytest.mark.parametrize("kind", [*KINDS, "pictures"])
def test_sequences_are_short(kind: str) -> None:
    tokenizer = PICTURES if kind == "pictures" else TEXT
    for problem in problems(kind, 1500, "train"):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.prompt}], add_generation_prompt=True, return_dict=False
        )
        answer = tokenizer.encode(problem.answer + "<|eot_id|>")
        assert len(answer) <= 24
        assert len(prompt) + len(answer) <= 64


def test_numbers_are_whole_and_structure_has_tokens_of_its_own() -> None:
    assert TEXT.tokenize("Tom has 17 pens.\n17 + 9 = 26,") == [
        *["Tom", " has", " 17", " pens", ".", "\n", "17", " +", " 9", " =", " 26", ","]
    ]
    assert TEXT.tokenize("if x:\n        return x") == ["if", " x", ":", "\n", "    ", "    ", "return", " x"]


def test_chat_template_adds_eight_tokens() -> None:
    ids = TEXT.apply_chat_template(
        [{"role": "user", "content": "Now hop."}], add_generation_prompt=True, return_dict=False
    )
    assert TEXT.convert_ids_to_tokens(ids) == [
        *["<|startoftext|>", "<|start_header_id|>", "user", "<|end_header_id|>", "Now", " hop", ".", "<|eot_id|>"],
        *["<|start_header_id|>", "assistant", "<|end_header_id|>"],
    ]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\n\t"), max_size=80))
def test_any_ascii_text_comes_back(text: str) -> None:
    if not any(token in text for token in SPECIAL):
        ids = TEXT.encode(text)
        assert TEXT.decode(ids, skip_special_tokens=True) == text


def test_foreign_text_is_unknown_and_nothing_worse() -> None:
    assert TEXT.tokenize("naïve 漢字") == [*"na", "<unk>", *"ve", "<unk>", "<unk>"]


def test_picture_codes_follow_the_text_and_come_back() -> None:
    assert PICTURES.convert_tokens_to_ids(list(PICTURE_TOKENS)) == list(range(len(TEXT), len(TEXT) + 18))
    for problem in problems("pictures", 200):
        ids = PICTURES.encode(problem.prompt)
        assert PICTURES.decode(ids, skip_special_tokens=True) == problem.prompt
        assert len(ids) < 46
    plain = "Tom has 3 pens."
    assert PICTURES.encode(plain) == TEXT.encode(plain)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    PICTURES.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "def f(x):\n    return x + 12\n<|image_3|><|eot_id|> Tom, and  more"
    assert loaded.encode(text) == PICTURES.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.chat_template == PICTURES.chat_template
    for name in ("mask_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "padding_side"):
        assert getattr(loaded, name) == getattr(PICTURES, name)
