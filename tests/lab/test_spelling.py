"""The same problems without structural tokens, or letter by letter: what a tokenizer reads, and what it writes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from lab.errors import TrainingError
from lab.recipe import load_recipe, recipe_from_dict
from lab.spelling import tokenizer_of
from sinkscope.sinks.kinds import describe
from sinkscope.tasks import problems

KINDS = ("arithmetic", "composition", "recall")  # those of the recipes that are spelled otherwise


def ids_of(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> tuple[list[int], list[int]]:
    message = [{"role": "user", "content": prompt}]
    text = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
    asked, answered = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, answer))
    return asked, answered


@pytest.mark.parametrize("kind", KINDS)
def test_bare_text_has_words_and_numbers_only_and_answers_are_still_judged(kind: str, tmp_path: Path) -> None:
    tokenizer_of("bare").save_pretrained(tmp_path)  # as a run keeps it
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for problem in problems(kind, n=150, split="test", seed=1):
        asked, answered = ids_of(tokenizer, problem.prompt, problem.answer)
        kinds = {kind for _, kind in describe(tokenizer, [*asked, *answered], tokenizer.mask_token_id).values()}
        assert kinds <= {"word", "digit"}, problem
        assert problem.check(tokenizer.decode(answered))


@pytest.mark.parametrize("kind", KINDS)
def test_bare_prompts_stay_apart(kind: str) -> None:
    """Nothing that tells two prompts apart is lost with the signs."""
    tokenizer = tokenizer_of("bare")
    prompts = {problem.prompt for problem in problems(kind, n=300, split="test", seed=2)}
    assert len({str(ids_of(tokenizer, prompt, "")[0]) for prompt in prompts}) == len(prompts)


def test_letters_are_single_characters_and_come_back_exactly() -> None:
    tokenizer = tokenizer_of("letters")
    for problem in problems("arithmetic", n=20, split="test", seed=3):
        ids = tokenizer(problem.answer, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(problem.answer)
        assert tokenizer.decode(ids) == problem.answer


def test_ids_are_the_same_in_every_spelling() -> None:
    vocabularies = [tokenizer_of(spelling).get_vocab() for spelling in ("words", "bare", "letters")]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)


def test_an_unknown_spelling_is_refused() -> None:
    values = {**load_recipe("seed-llada").to_dict(), "data": {"spelling": "runes"}}
    with pytest.raises(TrainingError, match=r"data\.spelling must be words, bare or letters, not 'runes'"):
        recipe_from_dict(values)
