"""What the best constant answer gets on a dev set: the score that a model has to beat."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.metrics import LOWER_IS_BETTER, METRICS
from albert_core.tasks.squad import score_answers

_NUMBERS_OF_WORDS = (1, 2, 3, 5, 8, 12, 20, 30)


def constant_label_scores(
    metrics: Sequence[str], targets: NDArray[np.int64], num_labels: int
) -> dict[str, float]:
    """Return, by metric, the best score of giving the same label to every example.

    Args:
        metrics: names in `metrics.METRICS`.
        targets: (N,), the right labels, or of a choice the right options, from 0.
        num_labels: of which there are so many.
    """
    answers = [np.full_like(targets, label) for label in range(num_labels)]
    return {name: max(METRICS[name](targets, each) for each in answers) for name in metrics}


def constant_number_scores(metrics: Sequence[str], targets: NDArray[Any]) -> dict[str, float]:
    """Return, by metric, the score of giving the mean to every example; (N,) targets.

    No constant has a lower squared error, and none correlates with anything.
    """
    answers = np.full(len(targets), targets.mean())
    return {
        name: METRICS[name](targets, answers) if name in LOWER_IS_BETTER else 0.0
        for name in metrics
    }


def no_answer_scores(metrics: Sequence[str], has_none: NDArray[np.bool_]) -> dict[str, float]:
    """Return, by metric, the share that answering no question of (N,) gets: of those with none."""
    return dict.fromkeys(metrics, float(has_none.mean()))


def first_words_scores(
    paragraphs: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the best shares of answering each of N questions with the paragraph's first words.

    How many words is the same for all questions, and what is best for a metric.

    Args:
        paragraphs: of each question.
        answers: of each question, those that are right; at least one.
    """
    words = [paragraph.split() for paragraph in paragraphs]
    exact_match, f1 = [], []
    for number in _NUMBERS_OF_WORDS:
        said = [" ".join(each[:number]) for each in words]
        scores = score_answers(said, answers, has_answerless=False)
        exact_match.append(float(scores.exact_match.mean()))
        f1.append(float(scores.f1.mean()))
    return {"exact_match": max(exact_match), "f1": max(f1)}
