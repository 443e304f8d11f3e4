"""The page and the picture: whole, self-contained, and with the numbers where they belong."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from albert_core.scores.page import as_page, as_png, as_svg
from albert_core.scores.table import PUBLISHED, ScoreTable, build_table
from tests.albert_core.scores.made_runs import made_run, paper_runs

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
        runs, contamination={"race": 0.021}, published=[PUBLISHED["base"]], missing={"AX": "none"}
    )


def numbers(svg: str, kind: str, attribute: str) -> list[float]:
    root = ET.fromstring(svg)
    found = [element for element in root.iter() if element.get("class") == kind]
    return [float(element.attrib[attribute]) for element in found]


def test_the_page_is_whole_and_needs_nothing_else(table: ScoreTable) -> None:
    page = as_page(table, {"model": "<digest>"})
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not re.search(r"https?:|src=|@import|url\(|<script|<link", page)
    assert "Mine &amp; &lt;yours&gt;" in page
    assert "&lt;digest&gt;" in page
    assert "<b>80.1</b>" in page
    assert "2.1% overlap" in page
    assert "AX: none" in page


def test_the_plot_has_each_seed_and_stands_on_one_scale(table: ScoreTable) -> None:
    svg = as_svg(table)
    medians = numbers(svg, "median", "cx")
    of_task = dict(zip(table.tasks, medians, strict=True))
    per_cent = (of_task["sst-2"] - of_task["race"]) / (90.3 - 64.0)
    assert of_task["squad-1.1"] - of_task["race"] == pytest.approx(per_cent * 25.3, abs=0.2)
    assert of_task["cola"] - of_task["race"] == pytest.approx(per_cent * (-30 - 64), abs=0.2)
    seeds = numbers(svg, "seed", "cx")  # of a single seed the median's dot is the one
    assert [x - of_task["my-task"] for x in seeds] == pytest.approx(
        [-10 * per_cent, 0, 10 * per_cent], abs=0.2
    )
    assert len(re.findall('class="published"', svg)) == 5
    assert len(re.findall("unproven", svg)) == 1
    assert re.findall(r'class="tick"[^>]*>(-?\d+)<', svg)[:2] == ["-40", "-20"]


def test_a_second_model_has_lines_of_its_own(table: ScoreTable) -> None:
    both = build_table([*paper_runs(), *paper_runs("other")])
    svg = as_svg(both)
    assert len(numbers(svg, "median", "cx")) == 10
    assert svg.count("model-1") == 5
    assert "Avg of other" in as_page(both)


def test_the_picture_is_a_png_and_always_the_same(table: ScoreTable) -> None:
    picture = as_png(table)
    assert picture.startswith(b"\x89PNG")
    assert picture == as_png(table)
    assert picture != as_png(build_table(paper_runs()))
