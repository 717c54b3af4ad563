"""Sums behind worked examples: the question is of the split that was asked for, every example of the training split."""

from lab.experiments.few_shot import KIND, make_known
from sinkscope.tasks import problems, split_of


def test_a_question_stands_behind_its_examples() -> None:
    make_known()
    for one in problems(KIND, n=5, difficulty=2, shots=4):
        *examples, question = one.prompt.split("\n\n")
        assert len(examples) == 4 and all(text.count("\n#### ") == 1 for text in examples)
        assert "####" not in question and split_of(KIND, one.key) == "test"
        assert one.check(one.answer) and not one.check("#### 99")
