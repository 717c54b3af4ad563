"""Facts far apart: the right line decides the answer, the others do not, and all of it fits 512 positions."""

import pytest

from lab.vocabulary import build_tokenizer
from sinkscope.errors import TaskError
from sinkscope.tasks import problems
from sinkscope.tasks.lookup import LINES

KINDS = ("needle", "errands")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difficulty", LINES)
def test_it_fits_512_positions_in_known_words(kind, difficulty):
    tokenizer = build_tokenizer()
    longest = 0
    for problem in problems(kind, 100, "train", difficulty=difficulty):
        chat = [{"role": "user", "content": problem.prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        answer = tokenizer(problem.answer)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(answer) < 24
        assert tokenizer.decode(answer) == problem.answer
        # words of the list, not letters: a line has at most a dozen tokens
        assert len(ids) < 12 * (LINES[difficulty] + 4)
        longest = max(longest, len(ids))
        assert problem.check(problem.answer)
        assert not problem.check("")
    assert longest + 24 <= 512
    if difficulty == 3:
        assert longest > 400


def test_the_needle_is_on_the_card():
    for problem in problems("needle", 100, "test", difficulty=3):
        (card,) = (line for line in problem.prompt.split("\n") if line.startswith("Card: "))
        field = problem.prompt.rsplit(" ", 1)[1].removesuffix("?")
        assert f"{field} {problem.data['final']}" in card
        assert problem.prompt.count("\n") == LINES[3] + 1


def test_errands_are_done_in_the_order_of_the_lines():
    for problem in problems("errands", 100, "test", difficulty=2):
        first, second = (line for line in problem.prompt.split("\n") if line.startswith(("Now ", "Please ")))
        assert first.startswith("Now ") and second.startswith("Please ")
        verbs = [first.split()[1].strip("."), second.split()[1].strip(".")]
        assert list(dict.fromkeys(w for w in problem.data["actions"] if w not in ("left", "right"))) == list(
            dict.fromkeys(verbs)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_other_lines_is_an_option(kind):
    kept = 1 if kind == "needle" else 2
    for lines in (0, 3, 200):
        problem = next(problems(kind, 1, "train", lines=lines))
        assert problem.prompt.count("\n") == lines + kept
    for lines in (-1, 1.5, 10**9):
        with pytest.raises(TaskError, match="the number of other lines"):
            problems(kind, 1, lines=lines)
