"""Medians, spread and averages; the table as text, page and picture."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from albert_core.scores.table import (
    PAPER_COLUMNS,
    PUBLISHED,
    ScoreTable,
    as_page,
    as_text,
    build_table,
    draw,
    plot,
    sections,
)
from albert_core.stage.errors import ConfigError
from albert_core.stage.results import (
    Estimate,
    FinetuningResult,
    PairScore,
    PairSetScores,
    beats_constant,
)
from tests.made_results import made_result

TITLES = {
    "squad-1.1": ("SQuAD 1.1", "spans"),
    "squad-2.0": ("SQuAD 2.0", "spans"),
    "mnli": ("MNLI", "classification"),
    "sst-2": ("SST-2", "classification"),
    "race": ("RACE", "choice"),
    "cola": ("CoLA", "classification"),
    "rte": ("RTE", "classification"),
    "my-task": ("Mine & <yours>", "classification"),
}


def made_run(
    task: str,
    scores: Mapping[str, float],
    seed: int = 1,
    baselines: Mapping[str, float] | None = None,
    **changes: Any,
) -> FinetuningResult:
    """Return a fine-tuning whose intervals reach 0.05 to either side; the key metric is first."""
    title, kind = TITLES[task]
    metric = next(iter(scores))
    fields: dict[str, Any] = {
        "task": task,
        "title": title,
        "kind": kind,
        "seed": seed,
        "metric": metric,
        "scores": {
            name: {"value": value, "low": value - 0.05, "high": value + 0.05}
            for name, value in scores.items()
        },
        "num_examples": 500,
        "num_train": 4000,
        "constant_scores": dict(baselines or {}),
    }
    made = made_result("finetuning", **(fields | changes))
    assert isinstance(made, FinetuningResult)
    return made


def paper_runs() -> list[FinetuningResult]:
    """Return what the paper's Table 2 has of ALBERT base, from one seed."""
    return [
        made_run("race", {"accuracy": 0.640}, baselines={"accuracy": 0.25}),
        made_run("squad-1.1", {"f1": 0.893, "exact_match": 0.823}),
        made_run("squad-2.0", {"f1": 0.800, "exact_match": 0.771}),
        made_run("mnli", {"accuracy": 0.816}),
        made_run("sst-2", {"accuracy": 0.903}, baselines={"accuracy": 0.51}),
    ]


def made_pair_scores(whole: float, *phenomena: float) -> PairSetScores:
    """Return scores of a set and of its phenomena, whose intervals reach 0.05 to either side."""

    def score(value: float) -> PairScore:
        interval = Estimate(value=value, low=value - 0.05, high=value + 0.05)
        return PairScore(accuracy=interval, num_pairs=200)

    parts = {f"kind_{number}": score(value) for number, value in enumerate(phenomena)}
    fields = score(whole).model_dump() | {"num_pairs": 200 * (1 + len(parts))}
    return PairSetScores(**fields, phenomena=parts, paradigms=parts)


PAPER, GLUE, DETAILS = "In the paper's columns", "GLUE and own tasks", "Task by task"
PAIRS = "Minimal pairs, zero-shot (chance 50 %)"


def test_the_average_is_the_papers() -> None:
    table = build_table("mine", paper_runs())
    assert table.average == pytest.approx((0.858 + 0.7855 + 0.816 + 0.903 + 0.640) / 5)
    assert list(table.tasks) == list(PAPER_COLUMNS)
    names = ("bert-base", "bert-large", "base", "large", "xlarge", "xxlarge")
    printed = [82.26, 85.19, 80.05, 82.36, 85.50, 88.66]
    found = [100 * PUBLISHED[name].average for name in names]
    assert found == pytest.approx(printed, abs=0.006)
    assert round(100 * PUBLISHED["base-v2"].average, 1) == 82.3


@pytest.mark.parametrize("task", ["squad-2.0", "mnli"])
def test_without_one_of_the_five_there_is_no_average_and_it_is_named(task: str) -> None:
    table = build_table("mine", (run for run in paper_runs() if run.task != task))
    assert (table.average, table.average_lacks) == (None, [task])
    said = f"No Avg of mine: it is the mean of five tasks, without {PAPER_COLUMNS[task]}."
    assert said in as_text(table)


def test_each_metric_has_its_own_median_run_and_of_two_the_worse() -> None:
    of_seed = {1: (0.1, 0.9), 2: (0.2, 0.7), 3: (0.3, 0.8)}
    runs = [
        made_run("cola", {"matthews": matthews, "accuracy": accuracy}, seed)
        for seed, (matthews, accuracy) in of_seed.items()
    ]
    metrics = build_table("mine", runs).tasks["cola"].metrics
    assert metrics["matthews"].median == Estimate(value=0.2, low=0.2 - 0.05, high=0.25)
    assert list(metrics["matthews"].by_seed.items()) == [("1", 0.1), ("2", 0.2), ("3", 0.3)]
    assert list(metrics["accuracy"].by_seed.items()) == [("2", 0.7), ("3", 0.8), ("1", 0.9)]
    assert metrics["accuracy"].median.value == 0.8
    assert build_table("mine", runs[:2]).tasks["cola"].metrics["accuracy"].median.value == 0.7


def test_two_runs_of_one_seed_have_no_median() -> None:
    runs = [made_run("cola", {"matthews": value}, 1) for value in (0.1, 0.2)]
    with pytest.raises(ConfigError, match=r"cola: seeds \[1, 1\]"):
        build_table("mine", runs)


@pytest.mark.parametrize(
    ("constant", "low", "beats"),
    [
        (None, 0.45, None),
        (0.44, 0.45, True),
        (0.45, 0.45, False),
        (0.5, 0.45, False),
        (0.1, None, False),
    ],
)
def test_a_constant_answer_is_beaten_by_the_whole_interval(
    constant: float | None, low: float | None, beats: bool | None
) -> None:
    baselines = {} if constant is None else {"accuracy": constant}
    found = Estimate(value=0.5, low=low, high=low and 0.6)
    run = made_run("rte", {"accuracy": 0.5}, 1, baselines)
    run = run.model_copy(update={"scores": {"accuracy": found}})
    table = build_table("mine", [run])
    assert beats_constant("accuracy", table.tasks["rte"].metrics["accuracy"]) is beats
    (_, row) = dict(sections(table))[DETAILS]
    assert ("!" in row[7]) is (beats is False)


def test_the_key_metric_is_first_and_scores_on_other_sets_are_named_by_them() -> None:
    other = {"mnli-mm.dev": {"accuracy": {"value": 0.7, "low": 0.6, "high": 0.75}}}
    scores = {"accuracy": 0.8, "matthews": 0.5}
    run = made_run("cola", scores, metric="matthews", other_scores=other)
    metrics = build_table("mine", [run]).tasks["cola"].metrics
    assert list(metrics) == ["matthews", "accuracy", "accuracy of mnli-mm"]
    assert metrics["accuracy"].median.value == 0.8
    assert metrics["accuracy of mnli-mm"].median == Estimate(value=0.7, low=0.6, high=0.75)
    assert metrics["accuracy of mnli-mm"].constant_answer is None


def test_the_papers_row_stands_beside() -> None:
    table = build_table("mine", paper_runs(), published=[PUBLISHED["base"]])
    assert dict(sections(table))[PAPER] == [
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
    table = build_table("mine", runs, published=[PUBLISHED["xxlarge-1.5m"]])
    assert dict(sections(table))[GLUE] == [
        ("", "MNLI", "CoLA", "Mine & <yours>"),
        ("mine", "50.0/25.0", "-12.5", "75.0"),
        ("ALBERT xxlarge, 1.5 million steps (paper, Tables 9 and 10)", "90.8", "71.4", "–"),
    ]
    assert GLUE not in dict(sections(build_table("mine", [made_run("race", {"accuracy": 0.5})])))


def test_the_text_is_the_whole_story() -> None:
    runs = [
        made_run("rte", {"accuracy": 0.55}, baselines={"accuracy": 0.527}),
        made_run("rte", {"accuracy": 0.5}, seed=2, baselines={"accuracy": 0.527}),
    ]
    missing = {"RACE": "there is no folder RACE"}
    table = build_table("mine", runs, overlaps={"rte": (0.114, 210)}, missing=missing)
    assert as_text(table).splitlines()[:11] == [
        "GLUE and own tasks",
        "",
        "       RTE",
        "----------",
        "mine  50.0",
        "",
        "Task by task",
        "",
        "task  metric  score  95 % interval  seeds       range  worst  constant  dev       overlap",
        "-" * 89,
        "RTE      acc   50.0   [45.0, 55.0]      2  50.0..55.0      2    52.7 !  500  11.4% of 210",
    ]
    assert max(map(len, as_text(table).splitlines())) <= 100
    assert "- RACE: there is no folder RACE" in as_text(table)


def test_of_an_error_the_highest_is_the_worst_and_it_is_no_per_cent() -> None:
    constants = {"pearson": 0.0, "mse": 2.25}
    runs = [
        made_run("my-task", {"pearson": 0.5, "mse": mse}, seed, constants)
        for seed, mse in ((1, 1.5), (2, 2.125), (3, 1.75), (4, 1.625))
    ]
    assert dict(sections(build_table("mine", runs)))[DETAILS][2][1:8] == (
        "MSE", "1.75", "[1.7, 1.8]", "", "2.12..1.5", "2", "2.25",
    )  # fmt: skip


def test_an_error_on_another_labelled_set_is_one_too() -> None:
    runs = [
        made_run("my-task", {"pearson": 0.5, "mse of test": mse}, seed)
        for seed, mse in ((1, 1.5), (2, 2.125), (3, 1.75), (4, 1.625))
    ]
    assert dict(sections(build_table("mine", runs)))[DETAILS][2][1:7] == (
        "MSE test", "1.75", "[1.7, 1.8]", "", "2.12..1.5", "2"
    )  # fmt: skip


def test_minimal_pairs_have_a_row_for_each_set_and_phenomenon_and_are_marked_at_chance() -> None:
    sets = {"blimp": made_pair_scores(0.6, 0.5), "mine": made_pair_scores(0.7)}
    table = build_table("mine", [], minimal_pairs=sets)
    assert sections(table) == [
        (
            PAIRS,
            [
                ("set, phenomenon", "score", "95 % interval", "chance", "pairs"),
                ("BLiMP", "60.0", "[55.0, 65.0]", "50.0", "400"),
                ("  kind 0", "50.0", "[45.0, 55.0]", "50.0 !", "200"),
                ("mine", "70.0", "[65.0, 75.0]", "50.0", "200"),
            ],
        )
    ]


# -- the page and its plot


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    runs = [
        *paper_runs(),
        *(made_run("my-task", {"accuracy": 0.5 + 0.1 * seed}, seed) for seed in range(3)),
        made_run("cola", {"matthews": -0.3}, baselines={"matthews": 0.0}),
    ]
    return build_table(
        "$mine$",
        runs,
        overlaps={"race": (0.021, 4887)},
        published=[PUBLISHED["base"]],
        missing={"AX": "none"},
        minimal_pairs={"blimp": made_pair_scores(0.52)},
    )


def test_the_page_has_all_and_needs_nothing_else(table: ScoreTable) -> None:
    page = as_page(table, ["<digest>"])
    assert not re.search(r'src=|@import|url\((?!#)|href="(?!#)|<script|<link|<!DOCTYPE svg', page)
    assert re.findall(r"</?(?:section|table|footer|svg|html|body)\b", page)[-3:] == [
        "</footer", "</body", "</html",
    ]  # fmt: skip
    for said in (
        "Mine &amp; &lt;yours&gt;", "&lt;digest&gt;", "<b>80.1</b>", "2.1%", "AX: none", "$mine$",
        "Minimal pairs, zero-shot", "Sets of minimal pairs: 1.",
    ):  # fmt: skip
        assert said in page


def points(axes: Axes, label: str) -> list[tuple[float, float]]:
    """Return what is drawn under a label: per cent, and the line, from the top."""
    return [
        (x, round(y))
        for line in axes.lines
        if line.get_label() == label
        for x, y in line.get_xydata().tolist()  # type: ignore[union-attr]
    ]


def test_the_plot_has_each_task_seed_interval_and_published_score(table: ScoreTable) -> None:
    (axes,) = draw(table).axes
    bars = [bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)]
    drawn = [bar.lines[0].get_xydata().tolist() for bar in bars]  # type: ignore[union-attr]
    keys = [next(iter(task.metrics.values())) for task in table.tasks.values()]
    medians = [100 * key.median.value for key in keys] + [52]
    assert sorted((place, x) for dots in drawn for x, place in dots) == [
        (place, pytest.approx(value)) for place, value in enumerate(medians)
    ]
    assert [(bar.get_label(), len(dots)) for bar, dots in zip(bars, drawn, strict=True)][1:] == [
        ("not surely above the constant, or chance", 2)
    ]
    titles = [*(task.title for task in table.tasks.values()), "BLiMP pairs"]
    assert [text.get_text() for text in axes.get_yticklabels()] == titles
    mine = list(table.tasks).index("my-task")
    assert points(axes, "every seed") == [pytest.approx((x, mine)) for x in (50, 60, 70)]
    assert [x for x, _ in points(axes, "ALBERT base")] == [89.3, 80.0, 81.6, 90.3, 64.0]
    assert axes.get_xlim() == (-40, 100)


def said_in(figure: Figure) -> list[str]:
    """Return the title of a plot and the entries of its legend, sorted."""
    (axes,), (legend,) = figure.axes, figure.legends
    return [axes.get_title(loc="left"), *sorted(text.get_text() for text in legend.get_texts())]


def test_the_title_and_the_legend_of_the_plot_name_only_what_is_drawn(table: ScoreTable) -> None:
    pairs = {"blimp": made_pair_scores(0.52), "zorro": made_pair_scores(0.7)}
    assert said_in(draw(build_table("mine", [], minimal_pairs=pairs))) == [
        "mine: per cent of minimal pairs",
        "chance",
        "not surely above chance",
        "pretrained; 95 % interval",
    ]
    one = [made_run("cola", {"matthews": 0.3})]
    assert said_in(draw(build_table("mine", one, published=[PUBLISHED["base"]]))) == [
        "mine: per cent on dev",
        "median run; 95 % interval",
    ]
    assert said_in(draw(table)) == [
        "$mine$: per cent on dev, or of minimal pairs",
        "ALBERT base",
        "best constant answer, or chance",
        "every seed",
        "median run, or pretrained; 95 % interval",
        "not surely above the constant, or chance",
    ]


def test_labels_are_beside_the_data_and_inside_the_picture(table: ScoreTable) -> None:
    figure = draw(table)
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    whole, data = figure.bbox, axes.get_window_extent()
    texts = [*axes.texts, *axes.get_yticklabels(), *legend.get_texts()]
    for box in (text.get_window_extent() for text in texts):
        assert not box.overlaps(data)
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_picture_is_always_the_same(kind: str, table: ScoreTable) -> None:
    picture = plot(table, kind)  # type: ignore[arg-type]
    assert picture.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    assert picture == plot(table, kind)  # type: ignore[arg-type]
