"""Scores, each with the 95 % interval that says how far to trust it."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from albert_core.contract.errors import ShapeError
from albert_core.contract.seeds import random_uniform
from albert_core.contract.settings import Settings

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


def bootstrap_interval(metric: Metric, labels: Array, predictions: Array, seed: int) -> Estimate:
    """Return ``metric(labels, predictions)`` with its percentile bootstrap interval.

    Args:
        metric: a score of paired labels and predictions.
        labels: (N,), N at least 1, the examples independent of each other.
        predictions: (N,), of the same examples in the same order.
        seed: of the resamples; the same seed gives the same interval on every machine.

    Raises:
        ShapeError: labels and predictions are not both (N,).

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife".
    """
    if labels.ndim != 1 or labels.shape != predictions.shape or not len(labels):
        raise ShapeError(
            f"labels {labels.shape} and predictions {predictions.shape} must both be (N,), "
            "with N at least 1"
        )
    size = len(labels)
    scores = np.empty(NUM_RESAMPLES)
    for resample in range(NUM_RESAMPLES):
        draws = random_uniform(seed, np.arange(resample * size, (resample + 1) * size))
        rows = (draws * size).astype(np.int64)
        scores[resample] = metric(labels[rows], predictions[rows])
    low, high = np.quantile(scores, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value=float(metric(labels, predictions)), low=float(low), high=float(high))


def accuracy(labels: Array, predictions: Array) -> float:
    """Return the share of predictions that are right, 0..1."""
    return float((labels == predictions).mean())


def matthews(labels: Array, predictions: Array) -> float:
    """Return the Matthews correlation of integer classes from 0, -1..1.

    It is 0 when all labels or all predictions are the same.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient"; the metric of CoLA in Warstadt et al. 2019.
    """
    num_classes = 1 + int(max(labels.max(), predictions.max()))
    cells = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    table = cells.reshape(num_classes, num_classes).astype(np.float64)
    of_label, of_prediction, total = table.sum(axis=1), table.sum(axis=0), table.sum()
    spread = (total**2 - of_label @ of_label) * (total**2 - of_prediction @ of_prediction)
    if spread == 0:
        return 0.0
    return float((np.trace(table) * total - of_label @ of_prediction) / spread**0.5)


METRICS: dict[str, Metric] = {"accuracy": accuracy, "matthews": matthews}
