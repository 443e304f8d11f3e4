"""Scores, and what leaving examples out makes of them."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from albert_core.metrics import METRICS, RATIO, Array

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


@settings(deadline=None)
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


@settings(deadline=None)
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
def test_a_single_nan_makes_the_score_nan(metric: str) -> None:
    labels = np.arange(30) % 2
    predictions = labels.astype(np.float64)
    predictions[3] = np.nan
    assert np.isnan(METRICS[metric](labels, predictions))


def test_a_ratio_to_nothing_is_0() -> None:
    assert RATIO(np.ones(2), np.zeros(2)) == 0.0
    assert RATIO(np.array([3.0, 5.0]), np.array([6.0, 4.0])) == 0.8
