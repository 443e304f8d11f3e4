"""Scores, and how far they depend on which examples, and which seeds, they were measured with.

A score is a function of sums over examples, so that leaving some out is a subtraction, except that
ranks are made again. Examples of a cluster resemble each other: the predictions in a document, the
questions about an article. Clusters are therefore what is independent, and each is left out in turn
(the jackknife). The variance of a score is

    (G - 1) / G * sum over the G clusters of (score without the cluster - score)^2,

and t has 1 / sum(w^2) - 1 degrees of freedom, where w is a cluster's share of the examples: a few
large clusters say less than many equal ones. Two models are compared by their difference without
each cluster, since they answered the same examples. Independent variances, such as those over
examples and over seeds, are added, and their degrees of freedom combined.

The interval of a score between -1 and 1 is computed on Fisher's scale, which has no bounds. That of
a share from 0 to 1 is Wilson's: of independent examples for as many as there are, of clusters for
as many independent ones as would have the same variance, with t's quantile for the normal one. F1
is 2s/(1+s) of s, the share that is both of all that is of class 1 or is called so, and has the
interval of s. A single cluster, or clusters that do not differ, say nothing: there is no interval,
except that of clusters all right, or all wrong, which is Wilson's for 1 / sum(w^2) examples, the
effective number of clusters: as many as there are, if they are equal. Below one degree of freedom t
grows beyond all measure, so a score without bounds has no interval either.
`benchmarks/statistics.py` measures how often the intervals contain the truth.

Sources: Efron and Stein 1981, "The jackknife estimate of variance"; MacKinnon, Nielsen and Webb
2023, "Fast and reliable jackknife and bootstrap methods for cluster-robust inference"; Kish 1965,
"Survey sampling" (the effective number of clusters); Satterthwaite 1946, "An approximate
distribution of estimates of variance components"; Fisher 1921, "On the probable error of a
coefficient of correlation"; Wilson 1927, "Probable inference, the law of succession, and
statistical inference"; Dean and Pagano 2015, "Evaluating confidence interval methods for binomial
proportions in clustered surveys" (Wilson's with an effective number of examples).

Dimensions: N examples, C columns of what is known of an example, K sums, G clusters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.stage.errors import ShapeError
from albert_core.stage.results import Estimate
from albert_core.text.records import Bools, Ints

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A score; called with labels and predictions, (N,) each, it returns theirs.

    It is NaN if a label or a prediction is.
    """

    terms: Callable[[Floats], Floats]
    """(N, C) columns -> (N, K), what each example adds to the sums."""
    score: Callable[[Floats], Floats]
    """(..., K) sums -> (...) scores."""
    scale: Literal["share", "f1", "bounded", "open"]
    """A mean of values from 0 to 1; 2s/(1+s) of such a share s; a score between -1 and 1; or any
    number."""
    units: Literal["given", "deviations", "ranks"] = "given"
    """What the numbers of a column count in: as they are; in standard deviations from their mean;
    or by their ranks, which other examples change."""

    def __call__(self, labels: Array, predictions: Array) -> float:
        """Return the score: classes are integers from 0, everything else numbers."""
        return self.of(labels, predictions).value

    def of(self, *columns: Array) -> "Sample":
        """Return the sample of examples with these columns, (N,) each."""
        return Sample(self, np.stack(columns, axis=1).astype(np.float64))


@dataclass(frozen=True)
class Sample:
    """N examples that a score is measured on."""

    metric: Metric
    columns: Floats
    """(N, C), such as labels and predictions."""

    @cached_property
    def terms(self) -> Floats:
        """(N, K), what each example adds to the sums."""
        return self.metric.terms(self.in_units)

    @property
    def in_units(self) -> Floats:
        """(N, C), the columns in the units of the metric."""
        if self.metric.units == "ranks":
            return _ranks(_places(self.columns))
        return _deviations(self.columns) if self.metric.units == "deviations" else self.columns

    @property
    def value(self) -> float:
        """The score."""
        if np.isnan(self.columns).any():
            return float("nan")
        return float(self.metric.score(self.terms.sum(axis=0)))

    def part(self, rows: Bools) -> "Sample":
        """Return the examples at which ``rows``, bool (N,), is true."""
        return replace(self, columns=self.columns[rows])

    def merged(self, rows: Bools, other: "Sample") -> "Sample":
        """Return a sample that has of ``other`` the examples at which ``rows`` is true.

        A correlation depends on no scale, but would on two: each sample's numbers are in its own
        deviations, or ranks.
        """
        return replace(self, columns=np.where(rows[:, None], other.in_units, self.in_units))


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return the ratio; 0 where ``below`` is 0, as when all predictions are the same."""
    found: Floats = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return found


def _ratio_of_sums(sums: Floats) -> Floats:
    return _ratio(sums[..., 0], sums[..., 1])


def _right(columns: Floats) -> Floats:
    return np.stack([columns[:, 0] == columns[:, 1], np.ones(len(columns))], axis=1)


def _squared_errors(columns: Floats) -> Floats:
    return np.stack([np.square(columns[:, 0] - columns[:, 1]), np.ones(len(columns))], axis=1)


def _of_class_1(columns: Floats) -> Floats:
    """Return whether the label and the prediction are 1, and whether one of them is."""
    is_1 = columns == 1
    return np.stack([is_1.all(axis=1), is_1.any(axis=1)], axis=1).astype(np.float64)


def _f1(sums: Floats) -> Floats:
    return _ratio(2 * sums[..., 0], sums.sum(axis=-1))


def _by_class(columns: Floats) -> Floats:
    """Return whether the label is each class, the prediction is each class, and both are equal."""
    classes = np.arange(1 + columns.max(initial=1))
    one_hot = columns.T[:, :, None] == classes
    return np.hstack([*one_hot, _right(columns)[:, :1]]).astype(np.float64)


def _matthews(sums: Floats) -> Floats:
    labels, predictions = np.split(sums[..., :-1], 2, axis=-1)
    total, right = labels.sum(-1), sums[..., -1]
    shared = right * total - (labels * predictions).sum(-1)
    spread = (total**2 - (labels**2).sum(-1)) * (total**2 - (predictions**2).sum(-1))
    return _ratio(shared, np.sqrt(spread))


def _deviations(columns: Floats) -> Floats:
    """Return the distances from the mean of the column in its standard deviation, (N, C); or 0."""
    # Of what differs from the first example: rounding would tell equal numbers apart.
    distances = columns - columns[:1]
    return _ratio(distances - distances.mean(axis=0), distances.std(axis=0))


def _moments(columns: Floats) -> Floats:
    x, y = columns.T
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _pearson(sums: Floats) -> Floats:
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    count = np.maximum(count, 1)
    spreads = ((square - each * each / count, square) for each, square in ((x, xx), (y, yy)))
    # What is left of equal numbers is rounding.
    roots = [np.sqrt(np.where(s > 1e-12 * square, s, 0.0)) for s, square in spreads]
    return np.clip(_ratio(xy - x * y / count, roots[0] * roots[1]), -1.0, 1.0)


def _places(columns: Floats) -> Ints:
    """Return the place of each number among the different ones of its column, (N, C), from 0."""
    places = [np.unique(column, return_inverse=True)[1] for column in columns.T]
    return np.stack(places, axis=1)


def _ranks(places: Ints) -> Floats:
    """Return the ranks of numbers with these `_places`, (N, C); equal ones share their mean."""
    counts = [np.bincount(column) for column in places.T]
    ends = [np.cumsum(count) - (count - 1) / 2 for count in counts]
    return np.stack([end[column] for end, column in zip(ends, places.T, strict=True)], axis=1)


RATIO = Metric(lambda columns: columns, _ratio_of_sums, "open")
"""The sum of the first column to that of the second, such as nats to predictions; 0 where the
second sums to 0."""
SHARE = replace(RATIO, scale="share")
"""The same of values that are 0..1 times their weight, the second column."""
METRICS: dict[str, Metric] = {
    "accuracy": Metric(_right, _ratio_of_sums, "share"),
    "f1": Metric(_of_class_1, _f1, "f1"),
    "matthews": Metric(_by_class, _matthews, "bounded"),
    "pearson": Metric(_moments, _pearson, "bounded", "deviations"),
    "spearman": Metric(_moments, _pearson, "bounded", "ranks"),
    "mse": Metric(_squared_errors, _ratio_of_sums, "open"),
}
"""Accuracy is 0..1. F1 is that of class 1, 0..1, and 0 where nothing of it is found. Matthews's
correlation of classes (Gorodkin 2004; of CoLA in Warstadt et al. 2019), Pearson's and Spearman's
are -1..1, and 0 where all labels or all predictions are the same."""


CONFIDENCE = 0.95
_MOST_RANKED = 4096
"""Groups of clusters at most where all others are ranked anew without each: the time grows with the
square of the examples otherwise. The error of the variance is then 2 %."""
CLUSTER_SHARE = "cluster_share"
"""The column of `jackknife_table` that is not a score."""


@dataclass(frozen=True)
class Spread:
    """The variance of an estimate, and how well it is known."""

    variance: float
    degrees: float
    """Degrees of freedom."""

    @classmethod
    def of_mean(cls, values: Floats) -> "Spread":
        """Return the spread of the mean of independent ``values`` (n,), at least two."""
        # NumPy's variance of equal values is not always 0.
        variance = 0.0 if np.ptp(values) == 0 else float(values.var(ddof=1))
        return cls(variance / len(values), len(values) - 1)


@dataclass(frozen=True)
class Jackknife:
    """A score, and what it would be without each cluster."""

    value: float
    without: Floats
    """(G,)"""
    shares: Floats
    """(G,), which part of the examples a cluster has; they sum to 1."""
    rounding: float = 1e-14
    """By which equal scores may differ; 0 of a score without bounds, which may be of any size."""

    @property
    def spread(self) -> Spread | None:
        """How the score varies with the examples; None if there is too little data."""
        number = len(self.without)
        if number < 2 or self.shares.max() == 1:
            return None
        # Rounding would tell equal clusters apart.
        is_equal = np.isclose(self.without, self.value, rtol=1e-12, atol=self.rounding)
        squares = np.square(np.where(is_equal, 0.0, self.without - self.value)).sum()
        degrees = 1 / np.square(self.shares).sum() - 1
        return Spread(float((number - 1) / number * squares), float(degrees))


def jackknife(sample: Sample, clusters: Ints | None = None) -> Jackknife:
    """Return a score without each cluster, or for many ranks without each group of them.

    Args:
        sample: N examples, at least one.
        clusters: (N,), the number of each example's cluster; None if all are independent.

    Raises:
        ShapeError: there is no example.
    """
    metric, number = sample.metric, len(sample.columns)
    if not number:
        raise ShapeError("the score of 0 examples has no interval; give at least 1")
    cluster_of = _clusters_of([sample], clusters)
    sizes = np.bincount(cluster_of)
    if metric.units == "ranks":
        places = _places(sample.columns)
        others = (_ranks(places[cluster_of != cluster]) for cluster in range(len(sizes)))
        sums = np.stack([metric.terms(ranks).sum(axis=0) for ranks in others])
    else:
        columns = [np.bincount(cluster_of, weights=column) for column in sample.terms.T]
        sums = sample.terms.sum(axis=0) - np.stack(columns, axis=1)
    rounding = 0.0 if metric.scale == "open" else Jackknife.rounding
    return Jackknife(sample.value, metric.score(sums), sizes / number, rounding)


def _clusters_of(samples: Sequence[Sample], clusters: Ints | None) -> Ints:
    """Return the number of each example's cluster, (N,), from 0; with ranks, of its group of them.

    The scores of a table have the same ones.
    """
    cluster_of = np.arange(len(samples[0].columns))
    if clusters is not None:
        _, cluster_of = np.unique(clusters, return_inverse=True)
    are_ranks = any(sample.metric.units == "ranks" for sample in samples)
    return cluster_of % _MOST_RANKED if are_ranks else cluster_of


def estimate(sample: Sample, clusters: Ints | None = None) -> Estimate:
    """Return a score with its 95 % interval, or without one if there is too little data, or a NaN.

    Args:
        sample: N examples, at least one.
        clusters: (N,), the number of each example's cluster; None if all are independent.

    Raises:
        ShapeError: there is no example.
    """
    if np.isnan(sample.columns).any():
        return Estimate(value=math.nan, low=None, high=None)
    scale, counted = sample.metric.scale, sample.terms[:, -1] > 0
    if scale == "f1":
        share = estimate(SHARE.of(*sample.terms.T), clusters)
        low, high = (end and 2 * end / (1 + end) for end in (share.low, share.high))
        return Estimate(value=sample.value, low=low, high=high)
    if scale == "share" and not counted.all():  # the score does not depend on the others
        if not counted.any():
            return Estimate(value=sample.value, low=None, high=None)
        return estimate(sample.part(counted), None if clusters is None else clusters[counted])
    found = jackknife(sample, clusters)
    value, spread = found.value, found.spread
    are_single = len(found.without) == len(sample.terms) and sample.terms[:, -1].max() <= 1
    if scale == "share" and are_single:
        return mean_share(*sample.terms.sum(axis=0, keepdims=True).T)
    if scale == "share" and spread is not None and value in (0, 1):
        number = np.array([spread.degrees + 1])
        return mean_share(value * number, number)
    if (
        spread is None
        or spread.variance == 0
        or (spread.degrees < 1 if scale == "open" else abs(value) == 1)
    ):
        return Estimate(value=value, low=None, high=None)
    distance = reach([spread], (1 + CONFIDENCE) / 2)
    if scale == "share":
        number = np.array([value * (1 - value) / spread.variance])
        return mean_share(value * number, number, distance / math.sqrt(spread.variance))
    if scale == "open":  # errors and losses
        return Estimate(value=value, low=max(0.0, value - distance), high=value + distance)
    middle, distance = math.atanh(value), distance / (1 - value * value)
    low, high = (math.tanh(middle + way * distance) for way in (-1, 1))
    return Estimate(value=value, low=low, high=high)


def jackknife_table(samples: Mapping[str, Sample], clusters: Ints | None) -> pa.Table:
    """Return scores as `jackknife` does, (G,) by name, and as `CLUSTER_SHARE` the shares."""
    cluster_of = _clusters_of(list(samples.values()), clusters)
    found = {name: jackknife(sample, cluster_of) for name, sample in samples.items()}
    shares = next(iter(found.values())).shares
    return pa.table({CLUSTER_SHARE: shares, **{name: each.without for name, each in found.items()}})


def reach(spreads: Sequence[Spread], probability: float) -> float:
    """Return how far above its truth a sum of independent estimates is at most.

    Args:
        spreads: the spread of each estimate.
        probability: the probability that the sum is no farther above.
    """
    variance = sum(spread.variance for spread in spreads)
    if variance == 0:
        return 0.0
    from scipy.special import stdtrit  # slow to import, and seldom needed

    degrees = variance**2 / sum(spread.variance**2 / spread.degrees for spread in spreads)
    return float(stdtrit(degrees, probability)) * math.sqrt(variance)


def mean_share(
    hits: NDArray[Any],
    numbers: NDArray[Any],
    z: float = NormalDist().inv_cdf((1 + CONFIDENCE) / 2),
) -> Estimate:
    """Return the mean of K shares, each of a sample of its own, with its 95 % interval.

    The shares may be 0 or 1, and the samples may be small. It is Wilson's interval of as many
    examples as would give one share the variance of the mean. For the variance, half a hit and half
    a miss are added to each sample, because a share of 0 or 1 would seem to have none.

    Args:
        hits: (K,), how many of each sample count.
        numbers: (K,), the sizes of the samples, above 0.
        z: the quantile, in standard deviations.

    Source: Dean and Pagano 2015, "Evaluating confidence interval methods for binomial proportions
    in clustered surveys", "modified Wilson".
    """
    mean = float((hits / numbers).mean())
    likely = (hits + 0.5) / (numbers + 1)
    variance = (likely * (1 - likely) / numbers).sum() / len(numbers) ** 2
    number = float(likely.mean() * (1 - likely.mean()) / variance)
    centre = (mean * number + z**2 / 2) / (number + z**2)
    distance = z * math.sqrt(number * mean * (1 - mean) + z**2 / 4) / (number + z**2)
    # Rounding may lead out of 0 to 1, and away from a mean of 0 or 1.
    low, high = min(centre - distance, mean), max(centre + distance, mean)
    return Estimate(value=mean, low=max(low, 0.0), high=min(high, 1.0))
