"""How far a score hangs on which examples were drawn: the jackknife's value of each example.

The mean of an example's values is what it adds to the score; of an accuracy it is 1 where the
answer is right and 0 where it is not. The variance of the score is that of the values divided by
their number, and that of the difference of two models' scores is that of the differences of their
values: they answer the same examples.

N examples, K classes. Source: Efron and Stein 1981, "The jackknife estimate of variance"; Tukey
1958 for the values ("pseudo-values").
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.metrics import METRICS, Metric

Floats = NDArray[np.float64]
Array = NDArray[Any]

MAX_GROUPS = 200
"""Of metrics without a formula here, how many groups of examples are left out in turn."""


def jackknife(metric: str, targets: Array, predictions: Array) -> tuple[float, Floats]:
    """Return the score, and the values of the examples.

    Args:
        metric: a name in `metrics.METRICS`, of those that are the better the higher.
        targets: (N,), N at least 2: integer classes from 0, or numbers.
        predictions: (N,), likewise.

    Returns:
        The score that the metric gives, and float64 (N,). Of a metric without a formula here
        (Spearman's) and more than `MAX_GROUPS` examples the values are of that many groups.
    """
    if metric == "accuracy":
        is_right = (targets == predictions).astype(np.float64)
        return float(is_right.mean()), is_right
    if metric in ("f1", "matthews"):
        return _of_classes(metric, targets, predictions)
    if metric == "pearson":
        return _of_pearson(targets.astype(np.float64), predictions.astype(np.float64))
    return _of_groups(METRICS[metric], targets, predictions)


def _values(score: float, scores_without: Floats, num_parts: int) -> Floats:
    return num_parts * score - (num_parts - 1) * scores_without


def _of_classes(metric: str, targets: Array, predictions: Array) -> tuple[float, Floats]:
    """Examples of one class that are predicted alike have one value."""
    num_classes = 1 + int(max(targets.max(), predictions.max(), 1))
    cell_of = targets * num_classes + predictions
    counts = np.bincount(cell_of, minlength=num_classes**2).astype(np.float64)
    cells = np.flatnonzero(counts)
    tables = np.concatenate([counts[None], counts - np.eye(num_classes**2)[cells]])
    function = _f1 if metric == "f1" else _matthews
    score, *without = function(tables.reshape(-1, num_classes, num_classes))
    of_cell = np.zeros(num_classes**2)
    of_cell[cells] = _values(score, np.array(without), len(targets))
    return float(score), of_cell[cell_of]


def _f1(tables: Floats) -> Floats:
    """Return the F1 of class 1 of tables (..., K, K) of label by prediction."""
    both = tables[..., 1, :].sum(-1) + tables[..., :, 1].sum(-1)
    return _ratio(2 * tables[..., 1, 1], both)


def _matthews(tables: Floats) -> Floats:
    """Return the Matthews correlation of tables (..., K, K) of label by prediction."""
    labels, predictions = tables.sum(-1), tables.sum(-2)
    total = labels.sum(-1)
    right = np.trace(tables, axis1=-2, axis2=-1)
    shared = right * total - (labels * predictions).sum(-1)
    spread = (total**2 - (labels**2).sum(-1)) * (total**2 - (predictions**2).sum(-1))
    return _ratio(shared, np.sqrt(spread))


def _of_pearson(targets: Floats, predictions: Floats) -> tuple[float, Floats]:
    x, y = targets - targets.mean(), predictions - predictions.mean()
    number = len(x)
    # Without example i the sums of squares shrink by this share of its own.
    share = number / (number - 1)
    xx, yy, xy = float(x @ x), float(y @ y), float(x @ y)
    left = np.clip(xx - share * x * x, 0.0, None) * np.clip(yy - share * y * y, 0.0, None)
    without = _ratio(xy - share * x * y, np.sqrt(left))
    score = float(_ratio(np.array(xy), np.array(np.sqrt(xx * yy))))
    return score, _values(score, without, number)


def _of_groups(metric: Metric, targets: Array, predictions: Array) -> tuple[float, Floats]:
    number = min(len(targets), MAX_GROUPS)
    group_of = np.arange(len(targets)) % number
    without = np.array(
        [metric(targets[group_of != i], predictions[group_of != i]) for i in range(number)]
    )
    score = metric(targets, predictions)
    return score, _values(score, without, number)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return the ratio; 0 where nothing is below, as where all predictions are the same."""
    found: Floats = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return found
