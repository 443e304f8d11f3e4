"""Scores, and what leaving examples out makes of them."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from albert_core import metrics
from albert_core.metrics import (
    CLUSTER_SHARE,
    METRICS,
    RATIO,
    SHARE,
    Array,
    Spread,
    estimate,
    jackknife,
    jackknife_table,
    mean_share,
    reach,
)
from albert_core.stage.errors import ShapeError
from albert_core.stage.results import Estimate
from albert_core.text.records import Ints
from benchmarks.statistics import INTERVALS, coverage

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 0] * 20)
CONSTANT = [(LABELS, 0 * LABELS), (0 * LABELS, LABELS), (0 * LABELS,) * 2]


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson", "spearman"])
@pytest.mark.parametrize(("labels", "predictions"), CONSTANT)
def test_constant_predictions_or_labels_score_0_without_a_warning(
    metric: str, labels: Array, predictions: Array
) -> None:
    score = METRICS[metric]
    assert score(labels, predictions) == score(labels[:1], predictions[:1]) == 0.0
    if metric == "pearson":  # of which rounding would make different numbers
        assert score(labels + 0.1, predictions + 0.1) == 0.0


def test_all_examples_of_one_class_rightly_found_have_f1_1_and_matthews_0() -> None:
    ones = np.ones(3, np.int64)
    assert (METRICS["f1"](ones, ones), METRICS["matthews"](ones, ones)) == (1.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_scores_of_classes_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns when there is one class only
        expected = {
            "accuracy": accuracy_score(labels, predictions),
            "f1": f1_score(labels == 1, predictions == 1, zero_division=0.0),
            "matthews": matthews_corrcoef(labels, predictions),
        }
    found = {name: METRICS[name](labels, predictions) for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)


NUMBERS = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 4.75]), st.floats(0, 5, width=32))


@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_scores_of_numbers_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    labels, predictions = np.array(pairs).T
    assert METRICS["mse"](labels, predictions) == pytest.approx(
        np.mean((labels - predictions) ** 2)
    )
    if min(labels.std(), predictions.std()) > 1e-3:
        found = [METRICS[name](labels, predictions) for name in ("pearson", "spearman")]
        expected = [f(labels, predictions).statistic for f in (stats.pearsonr, stats.spearmanr)]
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_a_single_nan_makes_the_score_nan_and_there_is_no_interval(metric: str) -> None:
    labels = np.arange(30) % 2
    predictions = labels.astype(np.float64)
    predictions[3] = np.nan
    assert np.isnan(METRICS[metric](labels, predictions))
    found = estimate(METRICS[metric].of(labels, predictions))
    assert np.isnan(found.value)
    assert (found.low, found.high) == (None, None)


def test_a_ratio_to_nothing_is_0() -> None:
    assert RATIO(np.ones(2), np.zeros(2)) == 0.0
    assert RATIO(np.array([3.0, 5.0]), np.array([6.0, 4.0])) == 0.8


def test_the_interval_of_a_mean_of_independent_numbers_is_students() -> None:
    values = np.array([11.0, 12.0, 14.0, 19.0])
    low, high = stats.t.interval(0.95, 3, loc=14.0, scale=stats.sem(values))
    found = estimate(RATIO.of(values, np.ones(4)))
    assert (found.value, found.low, found.high) == pytest.approx((14.0, low, high))


def test_the_interval_of_the_right_ones_among_independent_examples_is_wilsons() -> None:
    """The numbers are those of method 3 in Newcombe 1998, table I."""
    for hits, number, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)):
        right = np.arange(number) < hits
        for found in (
            mean_share(np.array([hits]), np.array([number])),
            estimate(METRICS["accuracy"].of(np.ones(number), right)),
            estimate(METRICS["accuracy"].of(np.ones(number), right), np.arange(number)),
        ):
            assert (found.value, found.low, found.high) == pytest.approx(
                (hits / number, low, high), abs=5e-5
            )


def test_the_interval_of_f1_is_that_of_the_share_found_of_what_is_of_class_1_or_called_so() -> None:
    labels, said = np.arange(20) < 3, (np.arange(20) < 1) | (np.arange(20) > 14)  # 1 of 8 is both
    found, share = estimate(METRICS["f1"].of(labels, said)), mean_share(np.ones(1), np.full(1, 8))
    assert share.low is not None
    assert share.high is not None
    ends = [2 * end / (1 + end) for end in (share.low, share.high)]
    assert (found.value, found.low, found.high) == pytest.approx((2 / 9, *ends))
    assert 0 < ends[0] < ends[1] < 1
    none = estimate(METRICS["f1"].of(labels, ~labels))
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(2 * 0.1611 / 1.1611, abs=1e-4)  # of 20
    nothing = estimate(METRICS["f1"].of(np.zeros(5), np.zeros(5)))
    assert (nothing.value, nothing.low, nothing.high) == (0.0, None, None)


@pytest.mark.parametrize(
    ("shares", "numbers"),
    [
        ([0.05, 0.3, 0.5, 0.9, 0.99], [8, 20, 50, 30, 200]),
        ([0.98] * 12, [100] * 12),
        ([0.995] * 67, [200] * 67),
        ([0.7] * 67, [200] * 67),
        ([0.98] * 3, [100] * 3),
        ([0.6] * 5 + [0.999] * 7, [30] * 5 + [100] * 7),
    ],
)
def test_the_interval_of_a_mean_of_shares_contains_it_about_19_times_in_20(
    shares: list[float], numbers: list[int]
) -> None:
    draw, inside, above = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        found = mean_share(draw.binomial(numbers, shares), np.array(numbers))
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low <= found.value <= found.high <= 1
        inside += bool(found.low < np.mean(shares) < found.high)
        above += bool(found.high <= np.mean(shares))
    assert 0.93 < inside / 2000 < 0.99
    assert above / 2000 < 0.05


def test_the_interval_of_shares_of_samples_alike_is_that_of_one_sample() -> None:
    found = mean_share(np.array([20, 20, 20]), np.array([40, 40, 40]))
    one = mean_share(np.array([60]), np.array([120]))
    assert (found.low, found.high) == pytest.approx((one.low, one.high))


@pytest.mark.parametrize("name", sorted(INTERVALS))
def test_an_interval_contains_the_truth_about_19_times_in_20(name: str) -> None:
    """`benchmarks/statistics.py` has the whole table: a thousand each, and the bootstrap's."""
    assert coverage(name, 300, ["now"])["now"] >= 0.9


def test_a_correlation_of_what_is_equal_without_a_cluster_is_0() -> None:
    """Sums leave rounding of the numbers that are equal."""
    column = np.append(np.zeros(27), 1)
    clusters = np.where(np.arange(28) == 26, 6, 5)
    made = jackknife(METRICS["pearson"].of(column, column), clusters)
    assert made.without[0] == 0


@pytest.mark.parametrize("metric", sorted(METRICS))
@settings(max_examples=25)
@given(data=st.data())
def test_a_score_without_a_cluster_is_that_of_the_other_examples(
    metric: str, data: st.DataObject
) -> None:
    number = data.draw(st.integers(4, 30))
    each = st.integers(-20, 20) if metric in ("pearson", "spearman", "mse") else st.integers(0, 2)
    drawn = (data.draw(st.lists(each, min_size=number, max_size=number)) for _ in range(2))
    labels, found = (np.array(one, np.int64) for one in drawn)
    clusters = np.array(data.draw(st.lists(st.integers(5, 9), min_size=number, max_size=number)))
    made = jackknife(METRICS[metric].of(labels, found), clusters)
    names = np.unique(clusters)
    expected = [METRICS[metric](labels[clusters != n], found[clusters != n]) for n in names[:-1]]
    if len(names) > 1:
        np.testing.assert_allclose(made.without[:-1], expected, atol=1e-6)
    assert made.shares.tolist() == [(clusters == n).mean() for n in names]
    assert made.value == METRICS[metric](labels, found)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_correlation_of_two_evaluations_merged_does_not_depend_on_their_scales(
    metric: str,
) -> None:
    draw = np.random.default_rng(0)
    labels = draw.uniform(0, 5, 300)
    first, second = (METRICS[metric].of(labels, labels + draw.normal(size=300)) for _ in range(2))
    rows = draw.random(300) < 0.5
    scaled = METRICS[metric].of(labels, 0.25 * second.columns[:, 1] + 2)
    found, expected = first.merged(rows, scaled), first.merged(rows, second)
    of_parts = [first.part(~rows).value, second.part(rows).value]
    assert min(of_parts) - 0.01 < found.value < max(of_parts) + 0.01
    np.testing.assert_allclose(jackknife(found).without, jackknife(expected).without)
    assert found.value == pytest.approx(expected.value)
    assert estimate(found).low == pytest.approx(estimate(expected).low)


def test_the_squared_error_of_two_evaluations_merged_is_of_the_numbers_as_they_are() -> None:
    labels, predictions, rows = np.arange(4.0), np.arange(4.0) + 1, np.arange(4) < 2
    first, second = (METRICS["mse"].of(labels, each) for each in (predictions, 3 * predictions))
    assert first.merged(rows, second).value == (9 + 25 + 1 + 1) / 4


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_interval_of_a_squared_error_is_the_same_in_any_unit(unit: float) -> None:
    labels, predictions = np.random.default_rng(0).normal(size=(2, 1000))
    plain = estimate(METRICS["mse"].of(labels, predictions))
    found = estimate(METRICS["mse"].of(unit * labels, unit * predictions))
    assert plain.low is not None
    assert found.low == pytest.approx(unit**2 * plain.low, rel=1e-6, abs=0)


def test_no_interval_of_a_squared_error_goes_below_zero() -> None:
    found = estimate(METRICS["mse"].of(np.zeros(4), np.array([0.0, 0.0, 0.1, 3.0])))
    assert found.low == 0
    assert found.high is not None


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson", "spearman"])
def test_the_jackknifes_spread_is_that_of_other_draws_of_examples(metric: str) -> None:
    scores, spreads = [], []
    for seed in range(300):
        draw = np.random.default_rng(seed)
        labels = (draw.random(150) < 0.6).astype(np.int64)
        predictions = np.where(draw.random(150) < 0.8, labels, 1 - labels)
        noise = draw.standard_normal(150) * (metric in ("pearson", "spearman"))
        found = jackknife(METRICS[metric].of(labels, predictions + noise))
        assert found.spread is not None
        scores.append(found.value)
        spreads.append(found.spread.variance**0.5)
    assert np.mean(spreads) == pytest.approx(np.std(scores), rel=0.1)


def test_of_many_examples_groups_are_left_out_where_the_rest_is_ranked_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    labels = draw.standard_normal(1500)
    predictions = labels + draw.standard_normal(1500)
    samples = {name: METRICS[name].of(labels, predictions) for name in ("pearson", "spearman")}
    alone = jackknife(samples["spearman"])
    monkeypatch.setattr(metrics, "_MOST_RANKED", 1000)
    table = jackknife_table(samples, None)
    assert table.num_rows == 1000
    assert sum(table[CLUSTER_SHARE].to_pylist()) == pytest.approx(1)
    grouped = jackknife(samples["spearman"])
    assert grouped.value == alone.value
    assert table["spearman"].to_pylist() == grouped.without.tolist()
    assert alone.spread is not None
    assert grouped.spread is not None
    assert grouped.spread.variance == pytest.approx(alone.spread.variance, rel=0.1)


def test_a_cluster_whose_examples_agree_counts_once() -> None:
    right, cluster = np.repeat(np.arange(100) % 2, 4), np.repeat(np.arange(100), 4)

    def width(clusters: Ints | None) -> float:
        found = estimate(SHARE.of(right, np.ones(400)), clusters)
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(cluster) == pytest.approx(2 * width(None), rel=0.05)
    assert width(cluster[::-1]) == width(cluster)


def test_the_interval_of_few_unlike_clusters_stays_between_0_and_1() -> None:
    right = np.array([1.0] * 20 + [0.0] * 6 + [1.0, 1.0])
    clusters = np.repeat([1, 2, 3], [20, 6, 2])
    found = estimate(SHARE.of(right, np.ones(28)), clusters)
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 0.3
    assert found.value < found.high < 1


@pytest.mark.parametrize(
    ("values", "clusters"),
    [
        ([0.5, 0.7, 0.9], [1, 1, 1]),
        ([1, 1, 1, 1], [1, 1, 2, 2]),
        ([0, 0, 0, 0], [1, 1, 2, 2]),
        ([0.1, 0.1, 0.1], [1, 2, 2]),
    ],
)
def test_one_cluster_or_clusters_that_are_equal_have_no_interval(
    values: list[float], clusters: list[int]
) -> None:
    found = estimate(RATIO.of(np.array(values), np.ones(len(values))), np.array(clusters))
    assert (found.low, found.high) == (None, None)
    assert str(found) == f"{np.mean(values):.3f} no interval"
    assert not found.is_above(-9)
    assert not found.is_below(9)


def test_a_score_without_bounds_has_an_interval_from_one_degree_of_freedom_on() -> None:
    values = np.array([51.0, 52.0, 54.0, 59.0])
    found = estimate(RATIO.of(values, np.ones(4)), np.array([1, 1, 2, 2]))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 1, loc=54.0, scale=2.5))
    unequal = estimate(RATIO.of(values, np.ones(4)), np.array([1, 1, 1, 2]))
    assert (unequal.low, unequal.high) == (None, None)
    share = estimate(SHARE.of(values > 51, np.ones(4)), np.array([1, 1, 1, 2]))
    assert share.low is not None


def test_examples_of_another_group_change_no_interval() -> None:
    right, clusters = np.array([1.0, 1, 0, 1, 1, 0]), np.array([1, 1, 2, 2, 3, 3])
    alone = estimate(SHARE.of(right, np.ones(6)), clusters)
    of_all = np.append(right, np.zeros(40)), np.append(np.ones(6), np.zeros(40))
    found = estimate(SHARE.of(*of_all), np.append(clusters, np.arange(4, 44)))
    assert found == alone
    one = estimate(SHARE.of(*of_all), np.append(np.ones(6, int), np.arange(4, 44)))
    assert (one.low, one.high) == (None, None)


@pytest.mark.parametrize("right", [True, False])
def test_clusters_that_are_all_right_or_all_wrong_have_the_interval_of_as_many_examples(
    right: bool,
) -> None:
    labels, clusters = np.zeros(12), np.repeat(np.arange(4), 3)
    found = estimate(METRICS["accuracy"].of(labels, labels + (not right)), clusters)
    of_four = estimate(METRICS["accuracy"].of(labels[:4], labels[:4] + (not right)))
    assert (found.value, found.low, found.high) == (right, of_four.low, of_four.high)


def test_no_example_has_no_score() -> None:
    with pytest.raises(ShapeError, match="at least 1"):
        estimate(RATIO.of(np.ones(0), np.ones(0)))


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert str(Estimate(value=-0.0, low=-0.0001, high=0.0001)) == "0.000 [0.000, 0.000]"
    assert str(Estimate(value=-0.001, low=-0.01, high=0.0)) == "-0.001 [-0.010, 0.000]"


def test_the_reach_of_two_samples_is_welchs() -> None:
    ours, theirs = np.array([0.71, 0.74, 0.78]), np.array([0.69, 0.70])
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.90)
    found = reach([Spread.of_mean(ours), Spread.of_mean(theirs)], 0.95)
    assert ours.mean() - theirs.mean() - found == pytest.approx(welch.low)
    assert reach([Spread.of_mean(np.full(3, 0.1))], 0.95) == 0.0
