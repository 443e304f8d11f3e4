"""Medians, spread and averages, and the table as text and Markdown."""

import pytest

from albert_core.scores.table import (
    PAPER_COLUMNS,
    PUBLISHED,
    as_markdown,
    as_text,
    build_table,
    detail_rows,
    glue_rows,
    pair_rows,
    paper_rows,
)
from albert_core.stage.results import Estimate
from tests.albert_core.scores.made_runs import made_pair_scores, made_run, paper_runs


def test_the_average_is_the_papers() -> None:
    table = build_table("mine", paper_runs())
    assert table.average == pytest.approx((0.858 + 0.7855 + 0.816 + 0.903 + 0.640) / 5)
    assert list(table.tasks) == list(PAPER_COLUMNS)


def test_published_averages_are_those_that_the_paper_prints() -> None:
    names = ("bert-base", "bert-large", "base", "large", "xlarge", "xxlarge")
    printed = [82.26, 85.19, 80.05, 82.36, 85.50, 88.66]
    found = [100 * PUBLISHED[name].average for name in names]
    assert found == pytest.approx(printed, abs=0.006)
    assert round(100 * PUBLISHED["base-v2"].average, 1) == 82.3


@pytest.mark.parametrize("task", PAPER_COLUMNS)
def test_without_one_of_the_five_there_is_no_average_and_it_is_named(task: str) -> None:
    table = build_table("mine", (run for run in paper_runs() if run.task != task))
    assert table.average is None
    assert table.average_lacks == (task,)
    title = {"squad-1.1": "SQuAD1.1", "squad-2.0": "SQuAD2.0"}.get(task, task.upper())
    said = f"No Avg of mine: it is the mean of five tasks, without {title}."
    assert said in as_text(table)
    assert said in as_markdown(table)


def test_over_seeds_there_are_median_spread_and_the_worst() -> None:
    scores = {1: 0.6, 2: 0.2, 3: 0.5, 4: 0.9, 5: 0.4}
    runs = [made_run("cola", {"matthews": score}, seed) for seed, score in scores.items()]
    key = build_table("mine", runs).tasks["cola"].key
    assert key.median == Estimate(value=0.5, low=0.45, high=0.55)
    assert key.worst_seed == 2
    assert list(key.by_seed.items()) == sorted(scores.items(), key=lambda each: each[1])


def test_the_median_of_an_even_number_is_the_worse_runs_own() -> None:
    runs = [made_run("cola", {"matthews": score}, seed) for seed, score in ((1, 0.3), (2, 0.1))]
    key = build_table("mine", runs).tasks["cola"].key
    assert key.median == Estimate(value=0.1, low=0.05, high=0.1 + 0.05)


def test_each_metric_has_its_own_median_run() -> None:
    of_seed = {1: (0.1, 0.9), 2: (0.2, 0.7), 3: (0.3, 0.8)}
    runs = [
        made_run("cola", {"matthews": matthews, "accuracy": accuracy}, seed)
        for seed, (matthews, accuracy) in of_seed.items()
    ]
    matthews, accuracy = build_table("mine", runs).tasks["cola"].metrics
    assert (matthews.name, matthews.median.value, matthews.worst_seed) == ("matthews", 0.2, 1)
    assert (accuracy.name, accuracy.median.value, accuracy.worst_seed) == ("accuracy", 0.8, 2)


def test_the_same_seed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cola: seeds \[1, 1\]"):
        build_table("mine", [made_run("cola", {"matthews": 0.1})] * 2)


def test_runs_on_other_dev_sets_have_no_median() -> None:
    runs = [made_run("cola", {"matthews": 0.1}, n, num_examples=499 + n) for n in (1, 2)]
    with pytest.raises(ValueError, match=r"dev sets of \[500, 501\]"):
        build_table("mine", runs)


@pytest.mark.parametrize(
    ("baseline", "low", "beats"),
    [
        (None, 0.45, None),
        (0.44, 0.45, True),
        (0.45, 0.45, False),
        (0.5, 0.45, False),
        (0.1, None, False),
    ],
)
def test_a_constant_answer_is_beaten_by_the_whole_interval(
    baseline: float | None, low: float | None, beats: bool | None
) -> None:
    baselines = {} if baseline is None else {"accuracy": baseline}
    found = Estimate(value=0.5, low=low, high=low and 0.6)
    run = made_run("rte", {"accuracy": 0.5}, 1, baselines)
    run = run.model_copy(update={"scores": {"accuracy": found}})
    table = build_table("mine", [run])
    assert table.tasks["rte"].key.beats_baseline is beats
    (_, row) = detail_rows(table)
    assert ("!" in row[7]) is (beats is False)


def test_the_key_metric_is_first_and_scores_on_other_sets_are_named_by_them() -> None:
    other = {"mnli-mm.dev": {"accuracy": {"value": 0.7, "low": 0.6, "high": 0.75}}}
    scores = {"accuracy": 0.8, "matthews": 0.5}
    run = made_run("cola", scores, metric="matthews", other_scores=other)
    matthews, accuracy, mismatched = build_table("mine", [run]).tasks["cola"].metrics
    assert (matthews.name, matthews.median.value) == ("matthews", 0.5)
    assert (accuracy.name, accuracy.median.value) == ("accuracy", 0.8)
    assert mismatched.name == "accuracy of mnli-mm"
    assert mismatched.median == Estimate(value=0.7, low=0.6, high=0.75)
    assert mismatched.baseline is None


def test_the_papers_row_stands_beside() -> None:
    rows = paper_rows(build_table("mine", paper_runs(), published=[PUBLISHED["base"]]))
    assert rows == [
        ("", "Avg", "SQuAD1.1", "SQuAD2.0", "MNLI", "SST-2", "RACE"),
        ("mine", "80.1", "89.3/82.3", "80.0/77.1", "81.6", "90.3", "64.0"),
        ("ALBERT base (paper, Table 2)", "80.1", "89.3/82.3", "80.0/77.1", "81.6", "90.3", "64.0"),
    ]


def test_glue_has_the_papers_columns_and_own_tasks_come_last() -> None:
    runs = [
        made_run("my-task", {"accuracy": 0.75}),
        made_run("cola", {"matthews": -0.125, "accuracy": 0.7}),
        made_run("mnli", {"accuracy": 0.5, "matthews of ax": 0.1, "accuracy of mnli-mm": 0.25}),
    ]
    assert glue_rows(build_table("mine", runs, published=[PUBLISHED["xxlarge-1.5m"]])) == [
        ("", "MNLI", "CoLA", "Mine & <yours>"),
        ("mine", "50.0/25.0", "-12.5", "75.0"),
        ("ALBERT xxlarge, 1.5 million steps (paper, Tables 9 and 10)", "90.8", "71.4", "–"),
    ]


def test_without_glue_there_is_no_such_table() -> None:
    assert glue_rows(build_table("mine", [made_run("race", {"accuracy": 0.5})])) == []
    assert paper_rows(build_table("mine", [made_run("cola", {"matthews": 0.5})])) == []


def test_the_text_is_the_whole_story() -> None:
    runs = [
        made_run("rte", {"accuracy": 0.55}, baselines={"accuracy": 0.527}),
        made_run("rte", {"accuracy": 0.5}, seed=2, baselines={"accuracy": 0.527}),
    ]
    table = build_table(
        "mine", runs, contamination={"rte": 0.114}, missing={"RACE": "there is no folder RACE"}
    )
    assert as_text(table).splitlines()[:11] == [
        "GLUE and own tasks",
        "",
        "       RTE",
        "----------",
        "mine  50.0",
        "",
        "Task by task",
        "",
        "task  metric  score  95 % interval  seeds       range  worst  constant  dev  overlap",
        "-" * 84,
        "RTE      acc   50.0   [45.0, 55.0]      2  50.0..55.0      2    52.7 !  500    11.4%",
    ]
    assert max(map(len, as_text(table).splitlines())) <= 100
    assert "- RACE: there is no folder RACE" in as_text(table)
    markdown = as_markdown(table)
    assert "| RTE | acc | 50.0 | [45.0, 55.0] | 2 | 50.0..55.0 | 2 | 52.7 ! |" in markdown
    assert "- RACE: there is no folder RACE" in markdown


def test_of_an_error_the_highest_is_the_worst_and_it_is_no_per_cent() -> None:
    runs = [
        made_run(
            "my-task", {"pearson": 0.5, "mse": mse}, seed, baselines={"pearson": 0.0, "mse": 2.25}
        )
        for seed, mse in ((1, 1.5), (2, 2.125), (3, 1.75), (4, 1.625))
    ]
    table = build_table("mine", runs)
    mse = table.tasks["my-task"].metrics[1]
    assert mse.worst_seed == 2
    assert list(mse.by_seed.values()) == [2.125, 1.75, 1.625, 1.5]
    assert mse.beats_baseline is True
    assert detail_rows(table)[2][1:8] == (
        "MSE", "1.75", "[1.7, 1.8]", "", "2.12..1.5", "2", "2.25",
    )  # fmt: skip


def test_minimal_pairs_have_a_row_for_each_set_and_phenomenon_and_are_marked_at_chance() -> None:
    sets = {"blimp": made_pair_scores(0.6, 0.5), "mine": made_pair_scores(0.7)}
    table = build_table("mine", [], minimal_pairs=sets)
    assert pair_rows(table) == [
        ("set", "phenomenon", "score", "95 % interval", "chance", "pairs"),
        ("BLiMP", "all", "60.0", "[55.0, 65.0]", "50.0", "400"),
        ("", "kind 0", "50.0", "[45.0, 55.0]", "50.0 !", "200"),
        ("mine", "all", "70.0", "[65.0, 75.0]", "50.0", "200"),
    ]
    text = as_text(table)
    assert text.startswith("Minimal pairs, zero-shot (chance 50 %)\n")
    assert "Task by task" not in text
    assert "| BLiMP | all | 60.0 | [55.0, 65.0] | 50.0 | 400 |" in as_markdown(table)
    assert not pair_rows(build_table("mine", paper_runs()))
