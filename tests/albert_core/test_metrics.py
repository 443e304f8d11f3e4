"""Scores, their intervals, and the jackknife's values of the examples."""

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from albert_core.metrics import (
    MAX_GROUPS,
    METRICS,
    Array,
    Metric,
    accuracy,
    bootstrap_interval,
    f1,
    jackknife,
    matthews,
    mean_share_interval,
    mse,
    pearson,
    ratio_interval,
    spearman,
)
from albert_core.stage.errors import ShapeError
from albert_core.stage.results import Estimate

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 0] * 20)
PREDICTIONS = np.array([0, 1, 0, 1, 1, 0, 1, 0] * 20)


def test_the_interval_of_a_ratio_of_sums_is_the_normal_one() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    low, high = stats.norm.interval(0.95, loc=4.0, scale=stats.sem(values))
    estimate = ratio_interval(values, np.ones(4))
    assert estimate.value == 4.0
    assert (estimate.low, estimate.high) == pytest.approx((low, high))
    grouped = ratio_interval(np.array([3.0, 5.0, 0.0]), np.array([6.0, 5.0, 9.0]))
    assert grouped.value == 8 / 20
    assert grouped.low < 8 / 20 < grouped.high
    equal = ratio_interval(np.full(3, 0.1), np.ones(3))
    assert equal.low == equal.value == equal.high


def test_the_interval_of_one_share_is_wilsons() -> None:
    """The numbers are those of method 3 in Newcombe 1998, table I."""
    for hits, number, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)):
        estimate = mean_share_interval(np.array([hits]), np.array([number]))
        assert estimate.value == hits / number
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_a_mean_of_shares_contains_it_about_19_times_in_20() -> None:
    draw = np.random.default_rng(0)
    shares, numbers = np.array([0.05, 0.3, 0.5, 0.9, 0.99]), np.array([8, 20, 50, 30, 200])
    inside = 0
    for _ in range(2000):
        estimate = mean_share_interval(draw.binomial(numbers, shares), numbers)
        inside += estimate.low < shares.mean() < estimate.high
    assert 0.93 < inside / 2000 < 0.99


def test_the_interval_of_a_ratio_contains_it_about_19_times_in_20() -> None:
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


def interval_of(name: str, seed: int, labels: Array, predictions: Array) -> Estimate:
    metric = METRICS[name]
    return bootstrap_interval(lambda r: metric(labels[r], predictions[r]), len(labels), seed)


def test_the_bootstrap_interval_is_the_same_for_the_same_seed_only() -> None:
    first, again, other = (interval_of("matthews", s, LABELS, PREDICTIONS) for s in (7, 7, 8))
    assert first == again
    assert first != other
    assert first.low < first.value < first.high


def test_the_bootstrap_interval_of_a_share_is_near_wilsons() -> None:
    bootstrap = interval_of("accuracy", 1, LABELS, PREDICTIONS)
    right = stats.binomtest(int((LABELS == PREDICTIONS).sum()), len(LABELS))
    wilson = right.proportion_ci(method="wilson")
    assert bootstrap.value == right.statistic
    assert bootstrap.low == pytest.approx(wilson.low, abs=0.02)
    assert bootstrap.high == pytest.approx(wilson.high, abs=0.02)


def draws_of(num_examples: int, groups: NDArray[np.int64] | None) -> list[NDArray[np.int64]]:
    """Return the examples of each call of the scorer."""
    drawn: list[NDArray[np.int64]] = []

    def score(rows: NDArray[np.int64]) -> float:
        drawn.append(rows)
        return float(rows.mean())

    bootstrap_interval(score, num_examples, 3, groups)
    return drawn


def test_the_bootstrap_draws_as_many_examples_as_there_are_and_repeats_some() -> None:
    drawn = draws_of(50, None)
    assert len(drawn) == 1001
    assert all(len(rows) == 50 and rows.min() >= 0 and rows.max() < 50 for rows in drawn)
    assert drawn[-1].tolist() == list(range(50))
    assert len(set(drawn[0].tolist())) < 50
    assert np.bincount(np.concatenate(drawn)).min() > 800


def test_groups_are_drawn_whole_and_as_many_as_there_are() -> None:
    drawn = draws_of(6, np.array([5, 5, 9, 9, 9, 2]))
    assert len({len(rows) for rows in drawn}) > 1
    for rows in drawn:
        times = np.bincount(rows, minlength=6)
        assert times[0] == times[1]
        assert times[2] == times[3] == times[4]
        assert times[0] + times[2] + times[5] == 3


def test_a_group_whose_examples_agree_counts_once() -> None:
    right = np.repeat(np.arange(100) % 2, 4)

    def width(groups: NDArray[np.int64] | None) -> float:
        found = bootstrap_interval(lambda rows: float(right[rows].mean()), 400, 1, groups)
        return found.high - found.low

    assert width(np.repeat(np.arange(100), 4)) == pytest.approx(2 * width(None), rel=0.15)
    assert width(np.arange(400)) == width(np.zeros(400, np.int64)) == width(None)


def test_no_example_has_no_interval() -> None:
    with pytest.raises(ShapeError, match="at least 1"):
        bootstrap_interval(lambda rows: 0.0, 0, seed=1)


@pytest.mark.parametrize("metric", [f1, matthews, pearson, spearman])
@pytest.mark.parametrize(
    ("labels", "predictions"), [(LABELS, 0 * LABELS), (0 * LABELS, LABELS), (0 * LABELS,) * 2]
)
def test_constant_predictions_or_labels_score_0_without_a_warning(
    metric: Metric, labels: Array, predictions: Array
) -> None:
    assert metric(labels, predictions) == metric(labels[:1], predictions[:1]) == 0.0
    if metric is pearson:  # of which rounding would make different numbers
        assert metric(labels + 0.1, predictions + 0.1) == 0.0


def test_all_examples_of_one_class_rightly_found_have_f1_1_and_matthews_0() -> None:
    ones = np.ones(3, np.int64)
    assert (f1(ones, ones), matthews(ones, ones)) == (1.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_scores_of_classes_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    assert accuracy(labels, predictions) == pytest.approx(accuracy_score(labels, predictions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns when there is one class only
        expected = matthews_corrcoef(labels, predictions)
        expected_f1 = f1_score(labels == 1, predictions == 1, zero_division=0.0)
    assert matthews(labels, predictions) == pytest.approx(expected, abs=1e-12)
    assert f1(labels, predictions) == pytest.approx(expected_f1, abs=1e-12)


NUMBERS = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 4.75]), st.floats(0, 5, width=32))


@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_scores_of_numbers_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    labels, predictions = np.array(pairs).T
    assert mse(labels, predictions) == pytest.approx(((labels - predictions) ** 2).mean())
    if min(labels.std(), predictions.std()) > 1e-3:
        found = pearson(labels, predictions), spearman(labels, predictions)
        expected = [f(labels, predictions).statistic for f in (stats.pearsonr, stats.spearmanr)]
        assert found == pytest.approx(expected, abs=1e-9)


def test_the_interval_of_a_large_dev_set_takes_seconds() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 40_000)
    predictions = np.where(draw.random(40_000) < 0.9, labels, 1 - labels)
    began = time.process_time()
    for name in ("accuracy", "f1", "matthews"):
        interval_of(name, 1, labels, predictions)
    assert time.process_time() - began < 30


@pytest.mark.parametrize("metric", sorted(set(METRICS) - {"mse"}))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_jackknifes_values_are_those_of_leaving_each_example_out(
    metric: str, data: st.DataObject
) -> None:
    number = data.draw(st.integers(4, 30))
    are_numbers = metric in ("pearson", "spearman")
    each = st.integers(-20, 20) if are_numbers else st.integers(0, 1 if metric == "f1" else 2)
    drawn = (data.draw(st.lists(each, min_size=number, max_size=number)) for _ in range(2))
    targets, found = (np.array(one, np.float64 if are_numbers else np.int64) for one in drawn)
    score, values = jackknife(metric, targets, found)
    assert score == pytest.approx(METRICS[metric](targets, found), abs=1e-9)
    rows = np.arange(number)
    without = np.array([METRICS[metric](targets[rows != i], found[rows != i]) for i in rows])
    expected = number * score - (number - 1) * without
    np.testing.assert_allclose(values, expected, atol=1e-6 * number)


def test_the_jackknifes_values_of_many_examples_without_a_formula_are_of_groups() -> None:
    generator = np.random.default_rng(0)
    targets = generator.standard_normal(1000)
    found = targets + generator.standard_normal(1000)
    score, values = jackknife("spearman", targets, found)
    assert values.shape == (MAX_GROUPS,)
    assert score == METRICS["spearman"](targets, found)
    _, of_each = jackknife("pearson", targets, found)
    of_groups, of_examples = (each.std(ddof=1) / len(each) ** 0.5 for each in (values, of_each))
    assert of_groups == pytest.approx(of_examples, rel=0.25)


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson"])
def test_the_jackknifes_spread_is_that_of_other_draws_of_examples(metric: str) -> None:
    """The square root of the values' variance is how much the score differs between dev sets."""
    scores, spreads = [], []
    for seed in range(300):
        generator = np.random.default_rng(seed)
        targets = (generator.random(300) < 0.6).astype(np.int64)
        predictions = np.where(generator.random(300) < 0.8, targets, 1 - targets)
        score, values = jackknife(metric, targets, predictions)
        scores.append(score)
        spreads.append(values.std(ddof=1) / len(values) ** 0.5)
    assert np.mean(spreads) == pytest.approx(np.std(scores), rel=0.1)


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert str(Estimate(value=-0.0, low=-0.0001, high=0.0001)) == "0.000 [0.000, 0.000]"
    assert str(Estimate(value=-0.001, low=-0.01, high=0.0)) == "-0.001 [-0.010, 0.000]"
