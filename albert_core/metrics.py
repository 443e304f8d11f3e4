"""Scores, and how far a score depends on which examples it was measured on.

A reported score has a 95 % interval: for a ratio of sums over groups the normal one, for any other
score a bootstrap interval. The gate compares two models on the same examples. It uses the
jackknife's value of each example: the variance of a score is that of the values divided by their
number, and the variance of two models' difference is that of the differences of their values.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import ShapeError
from albert_core.stage.results import Estimate
from albert_core.text.seeds import random_uniform

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000

MAX_GROUPS = 200
"""The most groups that the jackknife leaves out in turn, for a metric without a formula."""

Array = NDArray[Any]
Floats = NDArray[np.float64]
Metric = Callable[[Array, Array], float]
"""(labels, predictions), both (N,) -> score."""


def ratio_interval(totals: Array, counts: Array) -> Estimate:
    """Return ``totals.sum() / counts.sum()`` with its normal interval.

    Args:
        totals: float (N,), the sum of a score over each of N independent groups, such as the
            documents whose examples resemble each other.
        counts: float (N,), how much each group counts, e.g. its number of predictions.

    Raises:
        ShapeError: the arrays do not fit, or the counts sum to 0.

    Source: Cochran 1977, "Sampling techniques", section 2.11 (variance of a ratio estimate).
    """
    if totals.ndim != 1 or totals.shape != counts.shape or counts.sum() <= 0:
        raise ShapeError(
            f"totals {totals.shape} and counts {counts.shape} must both be (N,), and the counts "
            "must sum to more than 0"
        )
    ratio = totals.sum() / counts.sum()
    values = (totals - ratio * counts) * len(totals) / counts.sum()
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * variance_of_mean(values) ** 0.5
    return Estimate(value=float(ratio), low=float(ratio - reach), high=float(ratio + reach))


def mean_share_interval(hits: Array, numbers: Array) -> Estimate:
    """Return the mean of K shares, each of a sample of its own, with its interval.

    The shares may be 0 or 1, and the samples may be small. With a single sample it is Wilson's
    interval.

    Args:
        hits: (K,), how many of each sample count.
        numbers: (K,), the sizes of the samples, at least 1.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference" for
    one share; Zou and Donner 2008, "Construction of confidence limits about effect measures" for
    their mean.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    shares = hits / numbers
    centres = (hits + z**2 / 2) / (numbers + z**2)
    reaches = z * np.sqrt(numbers * shares * (1 - shares) + z**2 / 4) / (numbers + z**2)
    mean, count = float(shares.mean()), len(shares)
    below = float(np.linalg.norm(shares - (centres - reaches))) / count
    above = float(np.linalg.norm(centres + reaches - shares)) / count
    return Estimate(value=mean, low=mean - below, high=mean + above)


def variance_of_mean(values: Floats) -> float:
    """Return the variance of the mean of independent ``values`` (n,); 0 if they are all equal."""
    if np.ptp(values) == 0:  # NumPy's variance of equal values is not always 0
        return 0.0
    return float(values.var(ddof=1)) / len(values)


def bootstrap_interval(
    scorer: Callable[[NDArray[np.int64]], float],
    num_examples: int,
    seed: int,
    groups: NDArray[np.int64] | None = None,
) -> Estimate:
    """Return the score of all examples with its percentile bootstrap interval.

    Args:
        scorer: the score of some of the examples: their numbers (M,), repeats allowed, -> score.
            It is called 1,001 times.
        num_examples: N, at least 1.
        seed: of the resamples; the same seed gives the same interval on every machine.
        groups: (N,), the group of each example, such as the paragraph that it asks about: those
            of a group resemble each other and are drawn together. Without groups, or with one
            alone, the examples count as independent of each other.

    Raises:
        ShapeError: there is no example.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife"; Davison and Hinkley
    1997, section 3.8 (groups).
    """
    if num_examples < 1:
        raise ShapeError(f"the score of {num_examples} examples has no interval; give at least 1")
    group_of = np.arange(num_examples)
    if groups is not None and (groups != groups[0]).any():
        _, group_of = np.unique(groups, return_inverse=True)
    order = np.argsort(group_of, kind="stable")
    group_in_order = group_of[order]
    num_groups = int(group_of.max()) + 1
    scores = np.empty(NUM_RESAMPLES)
    for resample in range(NUM_RESAMPLES):
        counters = np.arange(resample * num_groups, (resample + 1) * num_groups)
        drawn = (random_uniform(seed, counters) * num_groups).astype(np.int64)
        times = np.bincount(drawn, minlength=num_groups)
        scores[resample] = scorer(np.repeat(order, times[group_in_order]))
    low, high = np.quantile(scores, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    value = scorer(np.arange(num_examples))
    return Estimate(value=float(value), low=float(low), high=float(high))


def accuracy(labels: Array, predictions: Array) -> float:
    """Return the share of predictions that are right, 0..1."""
    return float((labels == predictions).mean())


def f1(labels: Array, predictions: Array) -> float:
    """Return the F1 of class 1, of integer classes from 0; 0..1.

    It is 0 when no example of class 1 is predicted as such.
    """
    return float(_f1_of(_confusion(labels, predictions)))


def matthews(labels: Array, predictions: Array) -> float:
    """Return the Matthews correlation of integer classes from 0, -1..1.

    It is 0 when all labels or all predictions are the same.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient"; the metric of CoLA in Warstadt et al. 2019.
    """
    return float(_matthews_of(_confusion(labels, predictions)))


def pearson(labels: Array, predictions: Array) -> float:
    """Return Pearson's correlation of numbers, -1..1; 0 when either are all the same."""
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:  # rounding would make them differ
        return 0.0
    x, y = labels - labels.mean(), predictions - predictions.mean()
    return float(np.clip(_ratio(x @ y, np.sqrt(x @ x) * np.sqrt(y @ y)), -1.0, 1.0))


def spearman(labels: Array, predictions: Array) -> float:
    """Return Spearman's rank correlation of numbers, -1..1; 0 when either are all the same."""
    from scipy.stats import rankdata  # pretraining does not need it

    return pearson(rankdata(labels), rankdata(predictions))


def mse(labels: Array, predictions: Array) -> float:
    """Return the mean squared error of numbers."""
    return float(np.square(labels - predictions).mean())


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mse,
}
LOWER_IS_BETTER = frozenset({"mse"})
"""Metrics whose scores are better the lower they are."""


def jackknife(metric: str, labels: Array, predictions: Array) -> tuple[float, Floats]:
    """Return a score, and the jackknife's values of the examples.

    With the score s of N examples and s_i of all but example i, the value of i is
    N s - (N - 1) s_i. In an accuracy it is 1 where the answer is right and 0 where it is wrong.

    Args:
        metric: a name in `METRICS` whose scores are better the higher they are.
        labels: (N,), N at least 2: integer classes from 0, or numbers.
        predictions: (N,), likewise.

    Returns:
        The score, and float64 (N,). For a metric without a formula (Spearman's) and more than
        `MAX_GROUPS` examples, the values are those of that many groups of examples.

    Source: Efron and Stein 1981, "The jackknife estimate of variance"; Tukey 1958 for the values
    ("pseudo-values").
    """
    score = METRICS[metric](labels, predictions)
    if metric == "accuracy":
        return score, (labels == predictions).astype(np.float64)
    if metric in _SCORES_OF_TABLES:
        without = _without_each_in_a_table(_SCORES_OF_TABLES[metric], labels, predictions)
    elif metric == "pearson":
        without = _pearson_without_each(labels.astype(np.float64), predictions.astype(np.float64))
    else:
        number = min(len(labels), MAX_GROUPS)
        group_of = np.arange(len(labels)) % number
        without = np.array(
            [
                METRICS[metric](labels[group_of != i], predictions[group_of != i])
                for i in range(number)
            ]
        )
    return score, len(without) * score - (len(without) - 1) * without


def _confusion(labels: Array, predictions: Array) -> Floats:
    """Return (K, K), K at least 2: the number of examples by label and prediction."""
    num_classes = 1 + int(max(labels.max(), predictions.max(), 1))
    counts = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return counts.astype(np.float64).reshape(num_classes, num_classes)


def _f1_of(tables: Floats) -> Floats:
    """Return the F1 of class 1 of tables (..., K, K) of label by prediction."""
    both = tables[..., 1, :].sum(-1) + tables[..., :, 1].sum(-1)
    return _ratio(2 * tables[..., 1, 1], both)


def _matthews_of(tables: Floats) -> Floats:
    """Return the Matthews correlation of tables (..., K, K) of label by prediction."""
    labels, predictions = tables.sum(-1), tables.sum(-2)
    total = labels.sum(-1)
    right = np.trace(tables, axis1=-2, axis2=-1)
    shared = right * total - (labels * predictions).sum(-1)
    spread = (total**2 - (labels**2).sum(-1)) * (total**2 - (predictions**2).sum(-1))
    return _ratio(shared, np.sqrt(spread))


_SCORES_OF_TABLES = {"f1": _f1_of, "matthews": _matthews_of}


def _without_each_in_a_table(
    score_of: Callable[[Floats], Floats], labels: Array, predictions: Array
) -> Floats:
    """Return (N,) the score without each example, which examples of the same cell share."""
    table = _confusion(labels, predictions)
    cells = np.flatnonzero(table)
    one_in_cell = np.eye(table.size)[cells].reshape(-1, *table.shape)
    without = np.zeros(table.size)
    without[cells] = score_of(table - one_in_cell)
    found: Floats = without[labels * len(table) + predictions]
    return found


def _pearson_without_each(labels: Floats, predictions: Floats) -> Floats:
    x, y = labels - labels.mean(), predictions - predictions.mean()
    # Without example i the sums of squares shrink by this share of its own.
    share = len(x) / (len(x) - 1)
    left_x = np.clip(x @ x - share * x * x, 0.0, None)
    left_y = np.clip(y @ y - share * y * y, 0.0, None)
    return _ratio(x @ y - share * x * y, np.sqrt(left_x * left_y))


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return the ratio; 0 where ``below`` is 0, as when all predictions are the same."""
    found: Floats = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return found
