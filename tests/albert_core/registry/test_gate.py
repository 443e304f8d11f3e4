"""The gate: what it promotes and refuses, and how often it is wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_ind

from albert_core.config import RegistrySettings
from albert_core.metrics import SHARE as MEAN
from albert_core.metrics import jackknife
from albert_core.registry.gate import Measured, first_gate, gate, power
from albert_core.stage.results import Decision
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed
from benchmarks.statistics import ALIKE, GLUE, RTE, USUAL, Shares, SimulatedTask, simulate

SETTINGS = RegistrySettings()


def measured(scores: list[float], values: list[float]) -> Measured:
    """Return a model with these scores whose examples add these values to their mean."""
    each, number = np.array(values), len(values)
    without = (each.sum() - each) / max(number - 1, 1) - each.mean() + np.mean(scores)
    return Measured("data", tuple(scores), without, np.full(number, 1 / number), constant=0.5)


def around(score: float, num_seeds: int = 3, num_examples: int = 1000) -> Measured:
    """Return a model with this accuracy, whose seeds differ by half a point."""
    scores = [score + 0.005 * (seed - (num_seeds - 1) / 2) for seed in range(num_seeds)]
    return measured(scores, [float(i < score * num_examples) for i in range(num_examples)])


def decide(candidate: Measured, champion: Measured, **changes: Any) -> Decision:
    return gate(RegistrySettings(**changes), {"rte": candidate}, {"rte": champion})


def test_a_better_candidate_is_promoted() -> None:
    decision = decide(around(0.75), around(0.70))
    assert (decision.verdict, decision.is_promoted) == ("promoted", True)
    assert decision.difference == pytest.approx(0.05)
    assert 0.03 < (decision.lower_bound or 0) < 0.05
    assert decision.reason.startswith("better than the champion: +0.0500 on rte, with 95% confid")
    (task,) = decision.tasks
    assert (task.candidate, task.champion, task.num_clusters) == pytest.approx((0.75, 0.70, 1000))
    assert task.low == pytest.approx(decision.lower_bound)
    assert task.high - task.difference == pytest.approx(task.difference - task.low)


@pytest.mark.parametrize("score", [0.65, 0.70, 0.702])
def test_a_worse_an_equal_and_a_hardly_better_one_are_refused(score: float) -> None:
    decision = decide(around(score), around(0.70))
    assert (decision.verdict, decision.is_promoted) == ("refused", False)
    assert decision.difference == pytest.approx(score - 0.70)
    assert decision.reason.startswith("not surely better than the champion: ")


def test_without_any_spread_nothing_is_promoted() -> None:
    right, wrong = ({"a": measured([score] * 2, [score] * 9)} for score in (1.0, 0.0))
    assert gate(SETTINGS, right, right).verdict == "refused"
    decision = gate(SETTINGS, right, wrong)
    assert (decision.verdict, decision.is_promoted) == ("undecided", False)


def test_the_bound_is_welchs_where_the_examples_say_nothing() -> None:
    ours, theirs = [0.71, 0.74, 0.78], [0.69, 0.70]
    decision = decide(measured(ours, [0.5] * 9), measured(theirs, [0.5] * 9))
    welch = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.90)
    assert decision.lower_bound == pytest.approx(welch.low)


def test_examples_are_paired() -> None:
    """The same difference is sure where the champion errs wherever the candidate does."""
    right = [1.0] * 80 + [0.0] * 20
    nested = [1.0] * 74 + [0.0] * 26
    elsewhere = [0.0] * 20 + [1.0] * 74 + [0.0] * 6
    ours = measured([0.8, 0.8], right)
    assert decide(ours, measured([0.74, 0.74], nested)).verdict == "promoted"
    assert decide(ours, measured([0.74, 0.74], elsewhere)).verdict == "refused"


@pytest.mark.parametrize(
    ("score", "changes", "verdict"),
    [
        (0.75, {"min_score_gain": 0.02}, "promoted"),
        (0.75, {"min_score_gain": 0.05}, "refused"),
        (0.71, {"confidence": 0.80}, "promoted"),
        (0.71, {"confidence": 0.999}, "refused"),
    ],
)
def test_the_gain_that_is_asked_for_must_be_sure(
    score: float, changes: dict[str, float], verdict: str
) -> None:
    assert decide(around(score), around(0.70), **changes).verdict == verdict


def test_no_task_may_fall_by_more_than_the_margin() -> None:
    ours = {"sst-2": around(0.90), "rte": around(0.60)}
    theirs = {"sst-2": around(0.80), "rte": around(0.65)}
    decision = gate(SETTINGS, ours, theirs)
    assert decision.verdict == "refused"
    assert (decision.lower_bound or 0) > 0
    assert decision.reason.endswith("; fell by more than 0.02: rte by 0.0500")
    assert [task.task for task in decision.tasks if task.fell] == ["rte"]
    assert gate(RegistrySettings(max_task_drop=0.06), ours, theirs).verdict == "promoted"
    ours, theirs = (dict(reversed(side.items())) for side in (ours, theirs))
    assert gate(SETTINGS, ours, theirs) == decision


def test_noise_in_a_small_task_is_no_fall() -> None:
    def few(score: float) -> Measured:
        values = [float(i < 50 * score) for i in range(50)]
        return measured([score - 0.05, score + 0.05], values)

    ours = {"sst-2": around(0.90), "wnli": few(0.60)}
    theirs = {"sst-2": around(0.70), "wnli": few(0.66)}
    decision = gate(SETTINGS, ours, theirs)
    assert decision.tasks[1].difference == pytest.approx(-0.06)
    assert not decision.tasks[1].fell


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (around(0.9), None, "the champion was not scored on a"),
        (None, around(0.9), "the candidate was not scored on a, as the champion was"),
        (None, None, "no task was scored"),
        (around(0.9), replace(around(0.8), data="other"), "not scored on the same files of a in"),
        (around(0.9), around(0.8, num_examples=999), "not scored on the same files"),
        (around(0.9, 1), around(0.8), "a was fine-tuned with 1 seed; give at least 2"),
        (measured([1, 1], [1]), measured([0, 0], [0]), "a has 1 cluster of examples"),
        (around(0.9), around(float("nan")), "not scored on the same files"),
    ],
)
def test_what_cannot_be_compared_is_not_decided(
    ours: Measured | None, theirs: Measured | None, why: str
) -> None:
    candidate, champion = ({"a": side} if side else {} for side in (ours, theirs))
    decision = gate(SETTINGS, candidate, champion)
    assert (decision.verdict, decision.is_promoted) == ("undecided", False)
    assert why in decision.reason


def test_one_run_of_a_fine_tuned_model_is_all_there_is() -> None:
    better, worse = ({"a": around(score, 1)} for score in (0.75, 0.70))
    assert gate(SETTINGS, better, worse, over_seeds=False).verdict == "promoted"
    assert gate(SETTINGS, worse, better, over_seeds=False).verdict == "refused"
    assert gate(SETTINGS, better, better, over_seeds=False).verdict == "refused"


@pytest.mark.parametrize(
    ("score", "constant", "verdict"), [(0.75, 0.70, "first"), (0.71, 0.70, "refused")]
)
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_the_first_champion_is_surely_above_the_best_constant_answer(
    score: float, constant: float, verdict: str, num_seeds: int
) -> None:
    model = replace(around(score, num_seeds), constant=constant)
    decision = first_gate(SETTINGS, {"a": model})
    assert (decision.verdict, decision.is_promoted) == (verdict, verdict == "first")
    assert decision.difference == pytest.approx(score - constant)
    assert "constant answer" in decision.reason
    assert first_gate(SETTINGS, {}).verdict == "undecided"


@pytest.mark.parametrize(
    ("score", "num_clusters", "verdict"),
    [(1.0, 24, "first"), (1.0, 2, "refused"), (0.75, 24, "first"), (0.5, 24, "refused")],
)
def test_clusters_that_do_not_differ_are_as_sure_as_their_number_makes_them(
    score: float, num_clusters: int, verdict: str
) -> None:
    decision = first_gate(SETTINGS, {"a": measured([score] * 2, [score] * num_clusters)})
    assert decision.verdict == verdict
    low = decision.lower_bound
    assert low is not None
    if score == 1:
        [wilson] = binomtest(num_clusters, num_clusters).proportion_ci(0.9, "wilson")[:1]
        assert low == pytest.approx(wilson - 0.5)
    assert f"at least {low:+.4f}" in decision.reason


def test_a_task_that_fell_a_little_at_each_promotion_is_compared_with_its_best() -> None:
    scores = (0.700, 0.685, 0.670)
    best, before, champion = ({"sst-2": around(0.80), "rte": around(each)} for each in scores)
    ours = {"sst-2": around(0.90), "rte": around(0.655)}
    assert gate(SETTINGS, ours, champion).verdict == "promoted"
    decision = gate(SETTINGS, ours, champion, earlier=[best, before])
    assert decision.verdict == "refused"
    assert decision.reason.endswith("; fell by more than 0.02: rte by 0.0450")
    assert [task.best for task in decision.tasks] == pytest.approx([0.70, 0.80])
    on_others = {"rte": replace(best["rte"], data="other files")}
    assert gate(SETTINGS, ours, champion, earlier=[on_others]).verdict == "promoted"


def test_questions_about_one_article_count_as_few() -> None:
    """The candidate is better in the same 2 of 20 articles, whatever their size."""
    right = np.repeat(np.arange(20) < 18, 50)
    cluster = np.repeat(np.arange(20), 50)

    def by(clusters: Ints | None) -> dict[str, Measured]:
        found = jackknife(MEAN.of(right, np.ones(1000)), clusters)
        return {"race": Measured("", (0.9, 0.9), found.without, found.shares, 0.25)}

    def better(model: dict[str, Measured]) -> dict[str, Measured]:
        size = len(model["race"].without)
        return {"race": replace(around(1.0, 2, size), data="", scores=(1.0, 1.0))}

    assert gate(SETTINGS, better(by(None)), by(None)).verdict == "promoted"
    lower = [gate(SETTINGS, better(by(how)), by(how)).lower_bound for how in (None, cluster)]
    assert 0.08 < (lower[0] or 0) < 0.09
    assert (lower[1] or 0) < 0


def promoted_share(
    tasks: tuple[SimulatedTask, ...], num_seeds: int, gain: float, shares: Shares, number: int
) -> float:
    seeds = [derive_seed(1, "gate-test", num_seeds, i) for i in range(number)]
    pairs = (simulate(tasks, num_seeds, gain, seed, shares) for seed in seeds)
    return sum(gate(SETTINGS, *pair).is_promoted for pair in pairs) / number


@pytest.mark.parametrize("shares", [USUAL, ALIKE])
@pytest.mark.parametrize("num_seeds", [2, 3])
def test_few_equal_candidates_are_promoted(num_seeds: int, shares: Shares) -> None:
    """`benchmarks/statistics.py` has the whole table, of thousands each."""
    assert promoted_share((RTE,), num_seeds, 0.0, shares, 300) <= 0.06


def test_surely_better_candidates_are_promoted() -> None:
    assert promoted_share(GLUE, 3, 0.08, USUAL, 40) >= 0.95
    assert promoted_share(GLUE, 3, -0.01, USUAL, 40) <= 0.03


def test_what_the_gate_can_find_is_said_before_the_run() -> None:
    assert "decides nothing about a second model" in power(SETTINGS, 1, {})
    said = power(SETTINGS, 3, {"a": 1000})
    assert said.startswith("with 3 seeds, and 1,000 of a in dev, the gate finds a gain of 3.7 poi")
    assert "1 point takes about 25 seeds and 18,548 examples of each task" in said
    assert "1 point takes about 9 seeds and 6,183" in power(SETTINGS, 3, dict.fromkeys("abc", 1000))


def test_the_gain_that_the_gate_can_find_lies_above_the_one_that_must_be_exceeded() -> None:
    said = power(RegistrySettings(min_score_gain=0.01), 3, {"a": 1000})
    assert "finds a gain of 4.7 points" in said
    assert "2 points takes about 25 seeds and 18,548 examples of each task" in said
