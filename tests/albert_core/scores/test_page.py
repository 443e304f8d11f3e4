"""The page and the picture: whole, self-contained, and with the numbers where they belong."""

import re
from html.parser import HTMLParser

import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer

from albert_core.scores.plot import COLOURS, draw, plot
from albert_core.scores.table import PUBLISHED, ScoreTable, build_table
from albert_core.scores.written import as_page
from tests.albert_core.scores.made_runs import made_pair_scores, made_run, paper_runs

VOID = {"meta"}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


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
        contamination={"race": 0.021},
        published=[PUBLISHED["base"]],
        missing={"AX": "none"},
        minimal_pairs={"blimp": made_pair_scores(0.52)},
    )


def test_the_page_is_whole_and_needs_nothing_else(table: ScoreTable) -> None:
    page = as_page(table, {"model": "<digest>"})
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not re.search(r'src=|@import|url\((?!#)|href="(?!#)|<script|<link|<!DOCTYPE svg', page)
    assert "Mine &amp; &lt;yours&gt;" in page
    assert "&lt;digest&gt;" in page
    assert "<b>80.1</b>" in page
    assert "2.1%" in page
    assert "AX: none" in page
    assert "Minimal pairs, zero-shot" in page
    sets = {"blimp": made_pair_scores(0.52)}
    assert "Sets of minimal pairs: 1." in as_page(build_table("mine", [], minimal_pairs=sets))


def test_the_plot_on_the_page_takes_the_colours_of_the_screen(table: ScoreTable) -> None:
    page = as_page(table)
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "var(--model)" in svg
    assert "var(--unproven)" in svg
    assert "$mine$" in svg
    assert not [colour for colour in COLOURS.values() if colour in svg]
    assert all(f"--{name}: " in page for name in COLOURS)


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
    medians = [bar.lines[0].get_xydata().tolist()[0] for bar in bars]  # type: ignore[union-attr]
    assert medians == [
        *(
            pytest.approx([100 * scores.key.median.value, place])
            for place, scores in enumerate(table.tasks.values())
        ),
        pytest.approx([52, len(table.tasks)]),
    ]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        *(scores.title for scores in table.tasks.values()),
        "BLiMP pairs",
    ]
    mine = list(table.tasks).index("my-task")
    assert points(axes, "every seed") == [pytest.approx((x, mine)) for x in (50, 60, 70)]
    assert [x for x, _ in points(axes, "ALBERT base")] == [89.3, 80.0, 81.6, 90.3, 64.0]
    assert [bar.get_label() for bar in bars].count("not surely above the constant") == 2
    assert axes.get_xlim() == (-40, 100)


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
    assert picture != plot(build_table("mine", paper_runs()), kind)  # type: ignore[arg-type]
