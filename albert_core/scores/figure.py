"""A score table as a dot-and-whisker plot in SVG, which needs no script and no other file.

A line a task: how far the best constant answer gets (grey), every seed (small dots), the median
run (large dot) with its 95 % interval (whisker), and published scores (triangles). Colours are the
page's, by CSS class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor

from albert_core.metrics import LOWER_IS_BETTER
from albert_core.scores.table import ModelScores, ScoreTable, TaskScores
from albert_core.scores.text import metric_name, percent

WIDTH = 1000
_LEFT, _RIGHT = 190, 200
_TOP, _BOTTOM = 34, 14
_LINE, _GAP = 46, 10
"""Height of a model's line; space between two tasks."""
_GRID = 20
_SAID = "Scores of each task with their 95 % intervals"
_LANES = (0.0, -5.0, 5.0, -9.0, 9.0)
"""Where the seeds' dots go above and below the line, so that equal scores stay apart."""


@dataclass(frozen=True)
class _Scale:
    low: float
    """Per cent at the left end; the right end is 100."""

    def x(self, share: float) -> float:
        reach = WIDTH - _LEFT - _RIGHT
        place = (100 * share - self.low) / (100 - self.low)
        return round(_LEFT + reach * min(max(place, 0.0), 1.0), 1)


def as_svg(table: ScoreTable) -> str:
    """Return the plot of every model's key metric on every task, as an ``<svg>`` element."""
    scale = _Scale(_lowest(table))
    lines: list[str] = []
    top = float(_TOP)
    for task in table.tasks:
        models = [model for model in table.models if task in model.tasks]
        beside = [row.scores[task][0] / 100 for row in table.published if task in row.scores]
        height = _LINE * len(models)
        lines += _task_lines(models, task, top, scale, len(table.models) > 1)
        lines += [_published(scale.x(score), top + 3, score) for score in beside]
        top += height + _GAP
    end = top + _BOTTOM - _GAP
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {end:g}" role="img" aria-label="{_SAID}">',
            *_axis(scale, end - _BOTTOM),
            *lines,
            "</svg>",
        ]
    )


def _lowest(table: ScoreTable) -> float:
    """Return the left end of the axis: 0, or a multiple of 20 below all that is drawn."""
    ends = [
        value
        for model in table.models
        for scores in model.tasks.values()
        for value in (scores.key.low, scores.key.worst)
    ]
    return min(0.0, _GRID * floor(100 * min(ends, default=0.0) / _GRID))


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    for tick in range(int(scale.low), 101, _GRID):
        x = scale.x(tick / 100)
        kind = "zero" if tick == 0 else "grid"
        yield f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom:g}"/>'
        yield f'<text class="tick" x="{x}" y="{_TOP - 14}">{tick}</text>'


def _task_lines(
    models: Sequence[ModelScores], task: str, top: float, scale: _Scale, has_names: bool
) -> Iterator[str]:
    for number, model in enumerate(models):
        scores = model.tasks[task]
        middle = top + _LINE * (number + 0.5)
        if number == 0:
            yield _text("title", 0, middle - 3, scores.title)
        about = model.name if has_names else _examples(scores)
        yield _text("about", 0, middle + (14 if number == 0 else 4), about)
        yield from _marks(scores, middle, scale, number)
        yield from _numbers(scores, middle)


def _marks(scores: TaskScores, y: float, scale: _Scale, number: int) -> Iterator[str]:
    key = scores.key
    first, last = scale.x(scale.low / 100), scale.x(1.0)
    yield f'<line class="track" x1="{first}" x2="{last}" y1="{y:g}" y2="{y:g}"/>'
    if key.baseline is not None:
        x, zero = scale.x(key.baseline), scale.x(0.0)
        said = f"best constant answer: {percent(key.baseline)}"
        yield (
            f'<rect class="constant" x="{min(x, zero)}" y="{y - 7:g}" '
            f'width="{abs(x - zero):g}" height="14"/>'
            f'<line class="constant-end" x1="{x}" x2="{x}" y1="{y - 11:g}" y2="{y + 11:g}">'
            f"<title>{said}</title></line>"
        )
    low, high, middle = scale.x(key.low), scale.x(key.high), scale.x(key.median)
    colour = f"model-{number % 4}" + (" unproven" if key.beats_baseline is False else "")
    yield f'<g class="{colour}">'
    yield f'<line class="whisker" x1="{low}" x2="{high}" y1="{y:g}" y2="{y:g}"/>'
    for end in (low, high):
        yield f'<line class="whisker" x1="{end}" x2="{end}" y1="{y - 5:g}" y2="{y + 5:g}"/>'
    if len(key.by_seed) > 1:
        for place, (seed, score) in enumerate(key.by_seed.items()):
            lane = y + _LANES[place % len(_LANES)]
            yield (
                f'<circle class="seed" cx="{scale.x(score)}" cy="{lane:g}" r="3.6">'
                f"<title>seed {seed}: {percent(score)}</title></circle>"
            )
    said = f"median {percent(key.median)}, 95 % interval {percent(key.low)} to {percent(key.high)}"
    yield f'<circle class="median" cx="{middle}" cy="{y:g}" r="6.5"><title>{said}</title></circle>'
    yield "</g>"


def _numbers(scores: TaskScores, y: float) -> Iterator[str]:
    x = WIDTH - _RIGHT + 26
    yield _text("score", x, y + 2, percent(scores.key.median))
    others = " · ".join(
        f"{percent(metric.median)} {metric_name(metric.name)}"
        for metric in scores.metrics[1:]
        if metric.name not in LOWER_IS_BETTER
    )
    yield _text("metric", x + 62, y - 4 if others else y + 2, metric_name(scores.key.name))
    if others:
        yield _text("metric", x + 62, y + 11, others)


def _published(x: float, y: float, score: float) -> str:
    path = f"M{x - 5.5:g} {y:g}h11l-5.5 9z"
    return f'<path class="published" d="{path}"><title>published: {percent(score)}</title></path>'


def _examples(scores: TaskScores) -> str:
    about = f"{scores.num_examples:,} dev"
    if scores.contamination is not None:
        about += f" · {scores.contamination:.1%} overlap"
    return about


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
