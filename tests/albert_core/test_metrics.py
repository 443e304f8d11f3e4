"""Scores and their intervals."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import accuracy_score, matthews_corrcoef

from albert_core.contract.errors import ShapeError
from albert_core.metrics import (
    Estimate,
    accuracy,
    bootstrap_interval,
    matthews,
    ratio_interval,
)

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 0] * 20)
PREDICTIONS = np.array([0, 1, 0, 1, 1, 0, 1, 0] * 20)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    low, high = stats.norm.interval(0.95, loc=4.0, scale=stats.sem(values))
    estimate = ratio_interval(values, np.ones(4))
    assert estimate.value == 4.0
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


def test_a_group_counts_as_much_as_it_has_examples() -> None:
    estimate = ratio_interval(np.array([3.0, 5.0, 0.0]), np.array([6.0, 5.0, 9.0]))
    assert estimate.value == 8 / 20
    assert estimate.low < 8 / 20 < estimate.high


def test_the_interval_of_a_ratio_holds_it_about_19_times_in_20() -> None:
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        counts = draw.integers(1, 30, 80)
        totals = draw.binomial(counts, draw.beta(6, 4, 80))
        estimate = ratio_interval(totals.astype(float), counts.astype(float))
        inside += estimate.low < 0.6 < estimate.high
    assert 0.92 < inside / 400 < 0.97


@pytest.mark.parametrize("counts", [np.ones(3), np.zeros(2)])
def test_a_ratio_to_nothing_is_refused(counts: NDArray[np.float64]) -> None:
    with pytest.raises(ShapeError):
        ratio_interval(np.ones(2), counts)


def test_the_bootstrap_interval_is_the_same_for_the_same_seed_only() -> None:
    first, again, other = (
        bootstrap_interval(matthews, LABELS, PREDICTIONS, seed) for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other
    assert first.low < first.value < first.high


def test_the_bootstrap_interval_of_a_share_is_near_wilsons() -> None:
    bootstrap = bootstrap_interval(accuracy, LABELS, PREDICTIONS, seed=1)
    right = stats.binomtest(int((LABELS == PREDICTIONS).sum()), len(LABELS))
    wilson = right.proportion_ci(method="wilson")
    assert bootstrap.value == right.statistic
    assert bootstrap.low == pytest.approx(wilson.low, abs=0.02)
    assert bootstrap.high == pytest.approx(wilson.high, abs=0.02)


def test_labels_and_predictions_of_different_lengths_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(160,\)"):
        bootstrap_interval(accuracy, LABELS, PREDICTIONS[:3], seed=1)


def test_a_constant_prediction_has_matthews_0() -> None:
    assert matthews(LABELS, np.zeros_like(LABELS)) == 0.0
    assert matthews(np.ones(3, np.int64), np.ones(3, np.int64)) == 0.0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_scores_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    assert accuracy(labels, predictions) == pytest.approx(accuracy_score(labels, predictions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn says it when there is one class only
        expected = matthews_corrcoef(labels, predictions)
    assert matthews(labels, predictions) == pytest.approx(expected, abs=1e-12)


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert str(Estimate(value=-0.0, low=-0.0001, high=0.0001)) == "0.000 [0.000, 0.000]"
    assert str(Estimate(value=-0.001, low=-0.01, high=0.0)) == "-0.001 [-0.010, 0.000]"
