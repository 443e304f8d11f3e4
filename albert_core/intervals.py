"""How far a number depends on which examples, and which seeds, it was measured with.

Examples of a cluster resemble each other: the predictions in a document, the questions about an
article. Clusters are therefore what is independent, and each is left out in turn (the jackknife).
The variance of a score is

    (G - 1) / G * sum over the G clusters of (score without the cluster - score)^2,

and t has 1 / sum(w^2) - 1 degrees of freedom, where w is a cluster's share of the examples: a few
large clusters say less than many equal ones. Two models are compared by their difference without
each cluster, since they answered the same examples. Variances that are independent, such as those
over examples and over seeds, are added, and their degrees of freedom combined.

A score between -1 and 1 has its interval on Fisher's scale, where it has no bounds. The share of
right ones among independent examples has Wilson's, which also holds if all are right. Of a single
cluster, or where none differs from the others, nothing is known: there is no interval.

`benchmarks/statistics.py` measures how often each contains the truth.

Sources: Efron and Stein 1981, "The jackknife estimate of variance"; MacKinnon, Nielsen and Webb
2023, "Fast and reliable jackknife and bootstrap methods for cluster-robust inference"; Kish 1965,
"Survey sampling" (the effective number of clusters); Satterthwaite 1946, "An approximate
distribution of estimates of variance components"; Fisher 1921, "On the probable error of a
coefficient of correlation"; Wilson 1927, "Probable inference, the law of succession, and
statistical inference".

Dimensions: N examples, G clusters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import stdtrit

from albert_core.metrics import Floats, Sample
from albert_core.stage.errors import ShapeError
from albert_core.stage.results import Estimate

CONFIDENCE = 0.95
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
        """Return that of the mean of independent ``values`` (n,), at least two."""
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

    @property
    def spread(self) -> Spread | None:
        """How the score varies with the examples; None if there is too little to know it."""
        number = len(self.without)
        if number < 2 or self.shares.max() == 1:
            return None
        # Rounding would tell equal clusters apart.
        is_equal = np.isclose(self.without, self.value, rtol=1e-12, atol=1e-14)
        squares = np.square(np.where(is_equal, 0.0, self.without - self.value)).sum()
        degrees = 1 / np.square(self.shares).sum() - 1
        return Spread(float((number - 1) / number * squares), float(degrees))


def jackknife(sample: Sample, clusters: NDArray[np.int64] | None = None) -> Jackknife:
    """Return a score without each cluster.

    Args:
        sample: N examples, at least one.
        clusters: (N,), the number of each example's cluster; None if all are independent.

    Raises:
        ShapeError: there is no example.
    """
    terms = sample.terms
    if not len(terms):
        raise ShapeError("the score of 0 examples has no interval; give at least 1")
    cluster_of = np.arange(len(terms))
    if clusters is not None:
        _, cluster_of = np.unique(clusters, return_inverse=True)
    sums = np.stack([np.bincount(cluster_of, weights=column) for column in terms.T], axis=1)
    without = sample.metric.score(terms.sum(axis=0) - sums)
    return Jackknife(sample.value, without, np.bincount(cluster_of) / len(terms))


def estimate(sample: Sample, clusters: NDArray[np.int64] | None = None) -> Estimate:
    """Return a score with its 95 % interval, without one if there is too little for it.

    Args:
        sample: N examples, at least one.
        clusters: (N,), the number of each example's cluster; None if all are independent.

    Raises:
        ShapeError: there is no example.
    """
    scale, found = sample.metric.scale, jackknife(sample, clusters)
    value, spread = found.value, found.spread
    are_single = len(found.without) == len(sample.terms) and sample.terms[:, -1].max() <= 1
    if scale == "share" and are_single:
        return mean_share(*sample.terms.sum(axis=0, keepdims=True).T)
    if spread is None or spread.variance == 0 or (scale != "open" and abs(value) == 1):
        return Estimate(value=value, low=None, high=None)
    distance = reach([spread], (1 + CONFIDENCE) / 2)
    if scale == "open":
        return Estimate(value=value, low=value - distance, high=value + distance)
    middle, distance = math.atanh(value), distance / (1 - value * value)
    low, high = (math.tanh(middle + way * distance) for way in (-1, 1))
    return Estimate(value=value, low=low, high=high)


def jackknife_table(samples: Mapping[str, Sample], clusters: NDArray[np.int64] | None) -> pa.Table:
    """Return scores without each cluster, (G,) by name, and as `CLUSTER_SHARE` its share."""
    found = {name: jackknife(sample, clusters) for name, sample in samples.items()}
    shares = next(iter(found.values())).shares
    return pa.table({CLUSTER_SHARE: shares, **{name: each.without for name, each in found.items()}})


def reach(spreads: Sequence[Spread], probability: float) -> float:
    """Return how far above its truth a sum of independent estimates is at most.

    Args:
        spreads: of the estimates.
        probability: with which it is no farther.
    """
    variance = sum(spread.variance for spread in spreads)
    if variance == 0:
        return 0.0
    degrees = variance**2 / sum(spread.variance**2 / spread.degrees for spread in spreads)
    return float(stdtrit(degrees, probability)) * math.sqrt(variance)


def mean_share(hits: NDArray[Any], numbers: NDArray[Any]) -> Estimate:
    """Return the mean of K shares, each of a sample of its own, with its 95 % interval.

    The shares may be 0 or 1, and the samples may be small. With a single sample it is Wilson's
    interval.

    Args:
        hits: (K,), how many of each sample count.
        numbers: (K,), the sizes of the samples, at least 1.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures".
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    shares = hits / numbers
    centres = (hits + z**2 / 2) / (numbers + z**2)
    reaches = z * np.sqrt(numbers * shares * (1 - shares) + z**2 / 4) / (numbers + z**2)
    mean, count = float(shares.mean()), len(shares)
    below = float(np.linalg.norm(shares - (centres - reaches))) / count
    above = float(np.linalg.norm(centres + reaches - shares)) / count
    return Estimate(value=mean, low=mean - below, high=mean + above)
