"""Scores, each with the 95 % interval that says how far to trust it.

The libraries of the rarer scores are loaded when one is asked for: pretraining needs none.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from albert_core.stage.errors import ShapeError
from albert_core.stage.settings import Settings
from albert_core.text.seeds import random_uniform

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000

Array = NDArray[Any]
Metric = Callable[[Array, Array], float]
"""(labels, predictions), both (N,) -> score."""


class Estimate(Settings):
    """A number measured on a sample, and its 95 % interval."""

    value: float
    low: float = Field(description="lower end of the 95 % interval")
    high: float = Field(description="upper end of the 95 % interval")

    def __str__(self) -> str:
        """Say it as the progress lines do: value [low, high]; what rounds to 0 has no sign."""
        return f"{self.value:z.3f} [{self.low:z.3f}, {self.high:z.3f}]"


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
    groups = len(totals)
    spread = ((totals - ratio * counts) ** 2).sum() * groups / max(groups - 1, 1)
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * spread**0.5 / counts.sum()
    return Estimate(value=float(ratio), low=float(ratio - reach), high=float(ratio + reach))


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
    from sklearn.metrics import f1_score

    cells = _cells(labels, predictions)
    is_positive = [cells.labels == 1, cells.predictions == 1]
    return float(f1_score(*is_positive, sample_weight=cells.counts, zero_division=0.0))


def matthews(labels: Array, predictions: Array) -> float:
    """Return the Matthews correlation of integer classes from 0, -1..1.

    It is 0 when all labels or all predictions are the same.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient"; the metric of CoLA in Warstadt et al. 2019.
    """
    from sklearn.metrics import matthews_corrcoef

    cells = _cells(labels, predictions)
    if _is_constant(cells.labels) or _is_constant(cells.predictions):
        return 0.0
    return float(matthews_corrcoef(cells.labels, cells.predictions, sample_weight=cells.counts))


def pearson(labels: Array, predictions: Array) -> float:
    """Return Pearson's correlation of numbers, -1..1; 0 when either are all the same."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: Array, predictions: Array) -> float:
    """Return Spearman's rank correlation of numbers, -1..1; 0 when either are all the same."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


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
"""Of all others the higher is the better."""


@dataclass(frozen=True)
class _Cells:
    """The cells of a table of label by prediction in which there are examples."""

    labels: Array
    predictions: Array
    counts: Array


def _cells(labels: Array, predictions: Array) -> _Cells:
    """Return the table's cells.

    Of scikit-learn's scores the same comes out as of the examples themselves, a hundred times
    sooner where they are many; a bootstrap asks a thousand times.
    """
    num_classes = 1 + int(max(labels.max(), predictions.max()))
    counts = np.bincount(labels * num_classes + predictions)
    filled = np.flatnonzero(counts)
    return _Cells(filled // num_classes, filled % num_classes, counts[filled])


def _correlation(function: Callable[..., Any], labels: Array, predictions: Array) -> float:
    if _is_constant(labels) or _is_constant(predictions):
        return 0.0
    with warnings.catch_warnings():
        # SciPy says so of numbers that are almost the same; whoever asks gets a number.
        warnings.simplefilter("ignore")
        value = float(function(labels, predictions).statistic)
    return value if math.isfinite(value) else 0.0


def _is_constant(values: Array) -> bool:
    return bool((values == values[0]).all())
