"""Questions with options as input sequences, and what is chosen."""

import numpy as np
import pytest

from albert_core.tasks.examples import ChoiceExamples, Task
from albert_core.tasks.texts import MAX_QUESTION_PIECES, ChoiceProblem, with_option
from albert_core.text.records import CLS, SEP
from tests.albert_core.tiny_vocab import tiny_vocab

RACE = Task(
    name="race", title="RACE", kind="choice", labels=("A", "B", "C", "D"), metrics=("accuracy",)
)
ARTICLE = "bado kelu vowa zati " * 20


def examples(question: str = "kelu _") -> ChoiceExamples:
    return ChoiceExamples(
        ids=["high1.txt-0", "high1.txt-1"],
        articles=[ARTICLE],
        article_of=np.array([0, 0]),
        questions=[question, "bado ?"],
        options=[("bado", "kelu", "vowa", "zati")] * 2,
        targets=np.array([1, 3]),
        groups=["high", "high"],
    )


def test_an_option_fills_every_blank_or_stands_behind_the_question() -> None:
    assert with_option("_ is _ .", "it") == "it is it ."
    assert with_option("Why?", "Because.") == "Why? Because."


def test_each_option_is_a_sequence_with_the_article_before_it() -> None:
    inputs = ChoiceProblem(RACE).inputs(examples(), tiny_vocab(), 32)
    assert len(inputs.sequences) == 8
    assert inputs.num_units == 2
    (article,) = tiny_vocab().encode([ARTICLE])
    (asked,) = tiny_vocab().encode(["kelu vowa"])
    begin = int(inputs.sequences.lengths[:2].sum())
    third = inputs.sequences.input_ids[begin : begin + inputs.sequences.lengths[2]].tolist()
    room = 32 - 3 - len(asked)
    assert third == [CLS, *article[:room], SEP, *asked, SEP]
    assert (inputs.sequences.lengths == 32).all()


def test_a_long_question_keeps_its_end_and_the_pieces_add_up() -> None:
    long = examples("bado " * 200 + "_")
    inputs = ChoiceProblem(RACE).inputs(long, tiny_vocab(), 512)
    (asked,) = tiny_vocab().encode(["bado " * 200 + "zati"])
    ends = np.cumsum(inputs.sequences.lengths)
    fourth = inputs.sequences.input_ids[ends[2] : ends[3]].tolist()
    assert fourth[-1 - MAX_QUESTION_PIECES :] == [*asked[-MAX_QUESTION_PIECES:], SEP]
    (pieces,) = inputs.accounts
    assert pieces.total == pieces.kept + sum(pieces.dropped.values())


def test_the_most_probable_option_is_chosen_and_scored() -> None:
    problem = ChoiceProblem(RACE)
    inputs = problem.inputs(examples(), tiny_vocab(), 32)
    logits = np.array([[0, 3, 0, 0], [1, 0, 0, 0]], np.float32)
    scored = problem.score({"logits": logits}, inputs, examples())
    rows = scored.predictions.to_pylist()
    assert [row["prediction"] for row in rows] == ["B", "A"]
    assert [row["target"] for row in rows] == ["B", "D"]
    assert sum(rows[0]["probabilities"]) == pytest.approx(1)
    assert scored.scorers["accuracy"](np.arange(2)) == 0.5
