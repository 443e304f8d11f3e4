"""The values that the jackknife gives each example, against leaving each out in turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.metrics import MAX_GROUPS, METRICS, Array, jackknife

BETTER_IF_HIGHER = sorted(set(METRICS) - {"mse"})


def one_by_one(metric: str, targets: Array, predictions: Array) -> Array:
    """Return the values as they are defined."""
    number, score = len(targets), METRICS[metric](targets, predictions)
    rows = np.arange(number)
    without = [METRICS[metric](targets[rows != i], predictions[rows != i]) for i in rows]
    return np.array([number * score - (number - 1) * each for each in without])


@pytest.mark.parametrize("metric", BETTER_IF_HIGHER)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_values_are_those_of_leaving_each_example_out(metric: str, data: st.DataObject) -> None:
    number = data.draw(st.integers(4, 30))
    are_numbers = metric in ("pearson", "spearman")
    each = st.integers(-20, 20) if are_numbers else st.integers(0, 1 if metric == "f1" else 2)
    drawn = (data.draw(st.lists(each, min_size=number, max_size=number)) for _ in range(2))
    targets, said = (np.array(one, np.float64 if are_numbers else np.int64) for one in drawn)
    score, values = jackknife(metric, targets, said)
    assert score == pytest.approx(METRICS[metric](targets, said), abs=1e-9)
    np.testing.assert_allclose(values, one_by_one(metric, targets, said), atol=1e-6 * number)


def test_the_values_of_many_examples_without_a_formula_are_of_groups() -> None:
    generator = np.random.default_rng(0)
    targets = generator.standard_normal(1000)
    said = targets + generator.standard_normal(1000)
    score, values = jackknife("spearman", targets, said)
    assert values.shape == (MAX_GROUPS,)
    assert score == METRICS["spearman"](targets, said)
    _, of_each = jackknife("pearson", targets, said)
    of_groups, of_examples = (each.std(ddof=1) / len(each) ** 0.5 for each in (values, of_each))
    assert of_groups == pytest.approx(of_examples, rel=0.25)


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson"])
def test_the_spread_is_that_of_other_draws_of_examples(metric: str) -> None:
    """The square root of the values' variance is how much the score differs between dev sets."""
    found, said = [], []
    for seed in range(300):
        generator = np.random.default_rng(seed)
        targets = (generator.random(300) < 0.6).astype(np.int64)
        predictions = np.where(generator.random(300) < 0.8, targets, 1 - targets)
        score, values = jackknife(metric, targets, predictions)
        found.append(score)
        said.append(values.std(ddof=1) / len(values) ** 0.5)
    assert np.mean(said) == pytest.approx(np.std(found), rel=0.1)
