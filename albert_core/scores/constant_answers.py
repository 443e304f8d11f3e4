"""What the best constant answer gets on a dev set: the score that a model has to beat."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.metrics import METRICS
from albert_core.scores.table import LOWER_IS_BETTER


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


def no_answer_scores(metrics: Sequence[str], has_answer: NDArray[np.bool_]) -> dict[str, float]:
    """Return, by metric, the score of answering no question of (N,): a share."""
    return dict.fromkeys(metrics, float(1 - has_answer.mean()))
