"""Kinds of tokens for every way in which vocabularies write text, and for the real tokenizers of LLaDA and Dream."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from lab.vocabulary import build_tokenizer
from sinkscope.decoding.settings import Decode
from sinkscope.sinks import Threshold
from sinkscope.sinks.kinds import (
    CONTENT,
    KINDS,
    STRUCTURAL,
    KindsOf,
    describe,
    kind_of_text,
    kinds_in_context,
    kinds_named,
    role_names,
    shown,
)
from sinkscope.tracing import Trace
from sinkscope.tracing.sinks import find, token_shares

# Beside the project, or where SINKSCOPE_DATA says; the files belong to others and are not part of the repository.
DATA = Path(os.environ.get("SINKSCOPE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "tokenizers"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\n", "newline"),
        (".\n\n", "newline"),
        ("foo\n", "newline"),
        ("\n    ", "newline"),
        (" ", "space"),
        ("\t", "space"),
        ("    ", "space"),
        ("", "space"),
        ("\u200b", "space"),
        (" world", "word"),
        ("'s", "word"),
        ("(bar", "word"),
        ("x1", "word"),
        ("你好", "word"),
        ("\u0301", "word"),
        ("�", "word"),
        ("7", "digit"),
        (" 42", "digit"),
        ("3.", "digit"),
        ("²", "digit"),
        (".", "punctuation"),
        (" =", "punctuation"),
        ('".', "punctuation"),
        ("🎉", "punctuation"),
    ],
)
def test_characters_decide_in_the_stated_order(text: str, kind: str) -> None:
    assert kind_of_text(text) == kind


def test_shown_text_is_one_visible_line() -> None:
    assert shown(".\n\n") == ".⏎⏎"
    assert shown("\t\r\n") == "⇥␍⏎"
    assert shown("  ") == "␣␣"
    assert shown(" a") == " a"
    assert shown("\x00") == "\\u0000"


def test_without_a_tokenizer_only_the_mask_is_known() -> None:
    assert describe(None, [3, 124, 3], mask_id=124) == {3: ("#3", "unknown"), 124: ("#124", "mask")}


def fast(model: Any, decoder: Any, **roles: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def kinds_by_piece(tokenizer: PreTrainedTokenizerFast, mask_id: int | None = None) -> dict[str, tuple[str, str]]:
    described = describe(tokenizer, range(len(tokenizer)), mask_id)
    return {tokenizer.convert_ids_to_tokens(i): entry for i, entry in described.items()}


def test_byte_level_bpe() -> None:
    pieces = ["<s>", "Ġ", "Ċ", "Ġworld", "ĠĊ", "é", "Ã©", "Ã", "ĉ", "ĠÐ¼"]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<s>")
    found = kinds_by_piece(fast(model, decoders.ByteLevel(), bos_token="<s>"))
    assert found["<s>"] == ("<s>", "begin")
    assert found["Ġ"] == ("␣", "space")
    assert found["Ċ"] == ("⏎", "newline")
    assert found["Ġworld"] == (" world", "word")
    assert found["ĠĊ"] == (" ⏎", "newline")
    assert found["Ã©"] == ("é", "word")
    assert found["Ã"] == ("�", "word")  # half of a character
    assert found["ĉ"] == ("⇥", "space")
    assert found["ĠÐ¼"] == (" м", "word")


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        None,
    ],
    ids=["metaspace", "llama2", "no decoder"],
)
def test_sentencepiece(decoder: Any) -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁▁", "▁,", "<0x0A>", "<0xE4>", "12", "<mask>"]
    model = models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0)
    tokenizer = Tokenizer(model)
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    found = kinds_by_piece(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles))
    assert {piece: kind for piece, (_, kind) in found.items()} == {
        "<unk>": "special",
        "<s>": "begin",
        "</s>": "end",
        "▁": "space",
        "▁the": "word",
        "▁▁": "space",
        "▁,": "punctuation",
        "<0x0A>": "newline",
        "<0xE4>": "word",
        "12": "digit",
        "<mask>": "mask",
    }
    assert found["▁the"][0] == " the"
    assert found["<0x0A>"][0] == "⏎"


def test_wordpiece_and_word_level() -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "cat", "##s", "##1", "##", ",", "#"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "mask", "pad")}
    found = kinds_by_piece(fast(models.WordPiece(vocabulary, unk_token="[UNK]"), decoders.WordPiece(), **roles))
    assert [found[piece][1] for piece in pieces[:5]] == ["special", "begin", "end", "mask", "special"]
    assert (found["cat"], found["##s"], found["##1"]) == (("cat", "word"), ("s", "word"), ("1", "digit"))
    assert (found["##"], found[","], found["#"]) == (("##", "punctuation"), (",", "punctuation"), ("#", "punctuation"))
    words = {piece: i for i, piece in enumerate(["<unk>", "apple", "\n", "17", "?", " "])}
    found = kinds_by_piece(fast(models.WordLevel(words, unk_token="<unk>"), decoders.Fuse(), unk_token="<unk>"))
    assert [kind for _, kind in found.values()] == ["special", "word", "newline", "digit", "punctuation", "space"]


def test_added_tokens_without_a_role_are_read_like_text_unless_they_look_like_markers() -> None:
    tokenizer = fast(models.WordLevel({"<unk>": 0}, unk_token="<unk>"), decoders.Fuse(), unk_token="<unk>")
    tokenizer.add_tokens([AddedToken("\n\n", special=False), AddedToken("<tool>", special=False), AddedToken("cat")])
    found = kinds_by_piece(tokenizer)
    assert (found["\n\n"][1], found["<tool>"][1], found["cat"][1]) == ("newline", "special", "word")


def test_chat_markers_are_template_even_if_the_tokenizer_calls_one_its_begin_token() -> None:
    pieces = {"<|im_start|>": 0, "<|im_end|>": 1, "<|tag|>": 2, "hi": 3, "<unk>": 4}
    tokenizer = fast(
        models.WordLevel(pieces, unk_token="<unk>"),
        decoders.Fuse(),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        additional_special_tokens=["<|tag|>"],
        chat_template="<|im_start|>{{ messages[0].content }}<|tag|><|im_end|>",
    )
    found = kinds_by_piece(tokenizer)
    assert [found[piece][1] for piece in pieces] == ["template", "end", "template", "word", "special"]


def test_the_tiny_family_has_a_kind_for_every_token() -> None:
    tokenizer = build_tokenizer(pictures=True)
    described = describe(tokenizer, range(len(tokenizer) + 1))
    assert {kind for _, kind in described.values()} == set(KINDS)
    assert described[len(tokenizer)] == (f"#{len(tokenizer)}", "unknown")
    assert described[tokenizer.mask_token_id][1] == "mask"
    assert [kind for text, kind in described.values() if text == "####"] == ["punctuation"]


@functools.cache
def real(name: str) -> Any:
    if not (DATA / name / "tokenizer.json").exists():
        pytest.skip(f"the tokenizer of {name} is not on this machine (looked in the data folder beside the project)")
    if name == "dream":
        return Qwen2Tokenizer.from_pretrained(DATA / name)
    return AutoTokenizer.from_pretrained(DATA / name, trust_remote_code=False)


def test_llada() -> None:
    tokenizer = real("llada")
    roles = describe(tokenizer, [126336, 126081, 126348, 126080, 126346, 126347, 126084, 130000], mask_id=126336)
    expected = {
        126336: "mask",
        126081: "end",
        126348: "end",
        126080: "begin",
        126346: "template",
        126347: "template",
        126084: "special",
        130000: "unknown",
    }
    assert {i: kind for i, (_, kind) in roles.items()} == expected
    # A blank line is two newline tokens, and digits stand alone.
    ids = tokenizer("Sum.\n\n12, x", add_special_tokens=False)["input_ids"]
    described = describe(tokenizer, ids)
    assert [described[i][1] for i in ids] == [
        "word",
        "punctuation",
        *["newline"] * 2,
        *["digit"] * 2,
        "punctuation",
        "word",
    ]
    # The mask is known by its name even where nobody says which it is.
    assert describe(tokenizer, [126336])[126336] == ("<|mdm_mask|>", "mask")


def test_dream() -> None:
    tokenizer = real("dream")
    roles = describe(tokenizer, [151666, 151643, 151644, 151645, 151665, 151646, 152000])
    kinds = [kind for _, kind in roles.values()]
    # In the order of the ids: end-of-text, im_start, im_end, object_ref_start, beginoftext, mask, no token.
    assert kinds == ["end", "template", "end", "special", "begin", "mask", "unknown"]
    ids = tokenizer("Sum.\n\n12, x", add_special_tokens=False)["input_ids"]
    described = describe(tokenizer, ids)
    assert [described[i] for i in ids][:2] == [("Sum", "word"), (".⏎⏎", "newline")]  # one token, and a newline by order


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_shown_text_is_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer = real(name)
    ids = range(0, len(tokenizer), 211)
    assert {i: text for i, (text, _) in describe(tokenizer, ids).items()} == {
        i: shown(tokenizer.decode([i])) for i in ids
    }


WORDS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "[INST]",
    "user",
    "assist",
    "ant",
    "_",
    "\n",
    "hi",
]
VOCABULARY = {
    i: (
        shown(text),
        "template" if text[0] in "<[" and text != "<|im_end|>" else "end" if text[0] == "<" else kind_of_text(text),
    )
    for i, text in enumerate(WORDS)
}


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("<|im_start|> user \n hi <|im_end|>", [1]),
        ("<|im_start|> assist ant \n user", [1, 2]),
        ("<|start_header_id|> user <|end_header_id|> user", [1]),
        ("<|start_header_id|> assist ant <|end_header_id|> hi", [1, 2]),
        ("user \n <|im_start|> user \n user", [3]),
        ("<|im_start|> hi user hi user hi \n", []),  # too long for a role
        ("<|im_start|> user", []),  # the header does not end
        ("<|im_start|> \n user", []),
        ("[INST] user [INST]", []),  # what follows this marker is the user's text
        ("user assist ant", []),
    ],
)
def test_names_of_roles_are_template_between_chat_markers_only(text: str, roles: list[int]) -> None:
    ids = [WORDS.index(word if word != "\\n" else "\n") for word in text.replace("\n", "\\n").split(" ")]
    plain = [VOCABULARY[i][1] for i in ids]
    found = kinds_in_context(ids, VOCABULARY)
    assert [place for place, kind in enumerate(found) if kind != plain[place]] == roles
    assert all(found[place] == "template" for place in roles)


@given(st.lists(st.lists(st.integers(0, len(WORDS) - 1), min_size=12, max_size=12), min_size=1, max_size=4))
def test_role_names_on_a_canvas_are_those_of_each_row(rows: list[list[int]]) -> None:
    expected = [
        [kind != VOCABULARY[i][1] for kind, i in zip(kinds_in_context(row, VOCABULARY), row, strict=True)]
        for row in rows
    ]
    assert role_names(np.array(rows), VOCABULARY).tolist() == expected


def test_structural_and_content_are_all_kinds() -> None:
    assert set(STRUCTURAL) | set(CONTENT) == set(KINDS) and not set(STRUCTURAL) & set(CONTENT)
    assert kinds_named("structural") == STRUCTURAL and kinds_named(("word", "mask")) == ("word", "mask")
    assert kinds_named("verbs") == kinds_named(("word", "verb")) == kinds_named(()) == ()


def test_kinds_on_a_canvas_of_the_tiny_family() -> None:
    tokenizer = build_tokenizer()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "The user has 3."}], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    kinds = [KINDS[i] for i in KindsOf(tokenizer)(ids)[0].tolist()]
    words = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    roles = [place for place, word in enumerate(words) if words[max(place - 1, 0)] == "<|start_header_id|>"]
    assert roles and all(kinds[place] == "template" for place in roles)
    spoken = [place for place, word in enumerate(words) if word.strip() in ("user", "has") and place not in roles]
    assert spoken and all(kinds[place] == "word" for place in spoken)


def test_table_2_counts_the_name_of_a_role_apart_from_the_same_word() -> None:
    """In <|start_header_id|>user<|end_header_id|>user the first is template and the second a word, in every table."""
    header, user, end = (WORDS.index(word) for word in ("<|start_header_id|>", "user", "<|end_header_id|>"))
    canvas = torch.tensor([[header, user, end, user]] * 2)
    received = torch.zeros(1, 1, 1, 3, 4)
    received[..., 2, :] = torch.tensor([0.0, 2.0, 0.0, 2.0])
    trace = Trace(
        received=received, queries=torch.tensor([[0, 0, 4]], dtype=torch.int32), canvas=canvas,
        confidence=torch.full((1, 4), torch.nan), committed_at=torch.full((4,), -1, dtype=torch.int32),
        blocks=torch.tensor([[0, 4]], dtype=torch.int32), prompt_length=4, settings=Decode.llada(length=4, block=4, steps=1),
        model={"name": "made"}, backend="reference", vocabulary=VOCABULARY, mask_id=None, causal=False, prompt="", text="",
    )  # fmt: skip
    rule = Threshold(0.5)
    assert find(trace, rule).select("position", "kind").rows() == [(1, "template"), (3, "word")]
    shares = token_shares(trace, rule).filter(pl.col("sinks") > 0)
    assert set(shares.select("id", "token", "kind", "share", "base").rows()) == {
        (user, "user", "template", 0.5, 0.25), (user, "user", "word", 0.5, 0.25),
    }  # fmt: skip
