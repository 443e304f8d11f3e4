"""What the best constant answer gets: the score that a model has to beat."""

from typing import Any

import numpy as np
import pytest

from albert_core.config import FinetuningSettings
from albert_core.finetuning.finetuned_model import problem_of
from albert_core.tasks.examples import (
    Answer,
    ChoiceExamples,
    Examples,
    SpanExamples,
    Task,
    TextExamples,
)
from albert_core.tasks.problem import constant_label_scores, first_words_scores


def constant_scores(examples: Examples, **task: Any) -> dict[str, float]:
    described = Task(name="mine", title="Mine", **task)
    return problem_of(described, FinetuningSettings()).constant_scores(examples)


def texts(targets: list[Any]) -> TextExamples:
    names = [str(number) for number in range(len(targets))]
    return TextExamples(ids=names, texts_a=names, texts_b=None, targets=np.array(targets))


def questions(*answers: str) -> SpanExamples:
    """Return questions about one paragraph, each with one answer, or with none for ""."""
    return SpanExamples(
        ids=[str(number) for number in range(len(answers))],
        paragraphs=["In Rome it rained."],
        paragraph_of=np.zeros(len(answers), np.int64),
        questions=["Where?"] * len(answers),
        answers=[(Answer(text, 0),) if text else () for text in answers],
    )


def test_the_best_constant_label_is_the_best_of_each_metric() -> None:
    targets = np.array([0, 0, 0, 1, 1])
    found = constant_label_scores(["accuracy", "matthews", "f1"], targets, 2)
    assert found == {"accuracy": 0.6, "matthews": 0.0, "f1": pytest.approx(4 / 7)}


def test_of_texts_it_is_a_label() -> None:
    found = constant_scores(
        texts([1, 0, 1, 1]), kind="classification", labels=("a", "b"), metrics=("accuracy",)
    )
    assert found == {"accuracy": 0.75}


def test_of_a_regression_it_is_the_mean() -> None:
    found = constant_scores(texts([1.0, 2.0, 6.0]), kind="regression", metrics=("pearson", "mse"))
    assert found == {"pearson": 0.0, "mse": pytest.approx(14 / 3)}


def test_of_a_choice_it_is_the_most_frequent_option_over_all_groups() -> None:
    examples = ChoiceExamples(
        ids=list("1234"),
        articles=["An article."],
        article_of=np.zeros(4, np.int64),
        questions=["Which?"] * 4,
        options=[("w", "x", "y", "z")] * 4,
        targets=np.array([0, 3, 3, 1]),
        groups=["high"] * 4,
    )
    metrics = ("accuracy", "accuracy_high")
    found = constant_scores(examples, kind="choice", labels=tuple("ABCD"), metrics=metrics)
    assert found == {"accuracy": 0.5}


def test_of_spans_it_is_no_answer_where_that_may_be_right() -> None:
    metrics = ("f1", "exact_match")
    found = constant_scores(
        questions("Rome", "", ""), kind="spans", metrics=metrics, has_answerless=True
    )
    assert found == {"f1": pytest.approx(2 / 3), "exact_match": pytest.approx(2 / 3)}


def test_of_spans_that_all_have_an_answer_it_is_the_first_words_of_the_paragraph() -> None:
    found = constant_scores(questions("Rome", "In Rome"), kind="spans", metrics=("f1",))
    assert found == {"exact_match": 0.5, "f1": pytest.approx((2 / 3 + 1) / 2)}


def test_how_many_first_words_is_the_best_number_for_each_metric() -> None:
    paragraphs, answers = ["a b c d e"] * 2, [["b"], ["b c d e"]]
    found = first_words_scores(paragraphs, answers)
    # Two words are the whole of the first answer ("a" is an article), five all of the second.
    assert found == {"exact_match": 0.5, "f1": pytest.approx((2 / 5 + 1) / 2)}
