"""A score table as one HTML page that needs no other file, for light and dark screens and paper.

It has a dot-and-whisker plot in SVG, a line a task: how far the best constant answer gets (grey),
every seed (small dots), the median run (large dot) with its 95 % interval (whisker), and published
scores (triangles). Colours are the page's, by CSS class.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from albert_core.metrics import LOWER_IS_BETTER
from albert_core.scores.table import ModelScores, ScoreTable, TaskScores
from albert_core.scores.text import detail_rows, glue_rows, metric_name, notes, paper_rows, percent

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


_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #ffffff; --ink: #1d2433;
  --soft: #6b7280; --faint: #e8e6e1; --constant: #ded9d0; --constant-end: #9a9184;
  --model-0: #2454c5; --model-1: #0f8a6c; --model-2: #a23b9b; --model-3: #5c6b00;
  --unproven: #c2660a; --published: #1d2433; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e9ebf0;
  --soft: #9aa3b2; --faint: #2c323d; --constant: #343b47; --constant-end: #78808e;
  --model-0: #7aa2ff; --model-1: #4fd1ac; --model-2: #e08ad8; --model-3: #c6d64a;
  --unproven: #ffab57; --published: #e9ebf0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 44px 28px 60px; }
header { display: flex; justify-content: space-between; align-items: flex-end; gap: 32px;
  flex-wrap: wrap; margin-bottom: 26px; }
.over { color: var(--soft); font-size: 12px; letter-spacing: .09em; text-transform: uppercase;
  margin: 0 0 4px; }
h1 { font-size: 30px; line-height: 1.15; letter-spacing: -.015em; margin: 0; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; font-weight: 620; }
.sub { color: var(--soft); margin: 6px 0 0; }
.averages { display: flex; gap: 34px; flex-wrap: wrap; }
.average { text-align: right; }
.average b { display: block; font-size: 44px; line-height: 1; letter-spacing: -.03em;
  font-weight: 650; font-variant-numeric: tabular-nums; }
.average span { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--faint); border-radius: 14px;
  padding: 22px 26px 20px; margin-bottom: 20px; overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; color: var(--soft); font-size: 13px;
  margin: 0 0 14px; padding: 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 16px; overflow: visible; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .title { font-size: 15.5px; font-weight: 600; }
svg .about, svg .metric, svg .tick { fill: var(--soft); font-size: 12px; }
svg .tick { text-anchor: middle; }
svg .score { font-size: 19px; font-weight: 640; font-variant-numeric: tabular-nums; }
svg .grid, svg .track { stroke: var(--faint); stroke-width: 1; }
svg .grid { stroke-dasharray: 2 4; }
svg .zero { stroke: var(--constant-end); stroke-width: 1; }
svg .constant { fill: var(--constant); }
svg .constant-end { stroke: var(--constant-end); stroke-width: 2; }
svg .whisker { stroke: currentColor; stroke-width: 2; stroke-linecap: round; }
svg .seed { fill: currentColor; opacity: .42; }
svg .median { fill: currentColor; stroke: var(--card); stroke-width: 2; }
svg .published { fill: none; stroke: var(--published); stroke-width: 1.6; }
.model-0 { color: var(--model-0); } .model-1 { color: var(--model-1); }
.model-2 { color: var(--model-2); } .model-3 { color: var(--model-3); }
.unproven { color: var(--unproven); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }
th { color: var(--soft); font-weight: 500; font-size: 12.5px; text-align: right;
  border-bottom: 1px solid var(--faint); padding: 0 0 7px 16px; white-space: nowrap; }
td { text-align: right; padding: 7px 0 7px 16px; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child { font-weight: 600; }
tr.more td { border-bottom: 0; }
tr.published td, tr.published td:first-child { color: var(--soft); font-weight: 400; }
.notes { color: var(--soft); font-size: 13.5px; }
.notes p { margin: 0 0 8px; }
.notes code { font-size: 12px; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
_LEGEND = """
<ul class="legend">
<li class="model-0"><svg viewBox="0 0 30 16"><line class="whisker" x1="2" x2="28" y1="8" y2="8"/>
<circle class="median" cx="15" cy="8" r="6"/></svg><span>median run, 95 % interval</span></li>
<li class="model-0"><svg viewBox="0 0 30 16"><circle class="seed" cx="9" cy="6" r="3.6"/>
<circle class="seed" cx="20" cy="10" r="3.6"/></svg><span>every seed</span></li>
<li><svg viewBox="0 0 30 16"><rect class="constant" x="0" y="2" width="22" height="12"/>
<line class="constant-end" x1="22" x2="22" y1="0" y2="16"/></svg>
<span>best constant answer</span></li>
<li class="unproven"><svg viewBox="0 0 30 16"><circle class="median" cx="15" cy="8" r="6"/></svg>
<span>not surely above it</span></li>
{published}
</ul>
"""
_PUBLISHED_LEGEND = """<li><svg viewBox="0 0 30 16"><path class="published"
d="M9.5 3.5h11l-5.5 9z"/></svg><span>{names}</span></li>"""


def as_page(table: ScoreTable, provenance: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        table: what it shows.
        provenance: what to say at its foot of where the numbers are from, by name.
    """
    title = ", ".join(model.name for model in table.models)
    sections = [
        _section("Every task, every seed", _legend(table) + as_svg(table)),
        *(
            _section(heading, _table(rows, {row.name for row in table.published}))
            for heading, rows in (
                ("In the paper's columns", paper_rows(table)),
                ("GLUE and own tasks", glue_rows(table)),
            )
            if rows
        ),
        *(
            _section(_detail_heading(table, model), _table(detail_rows(model), ()))
            for model in table.models
        ),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Scores of {escape(title)}</title><style>{_STYLE}</style></head>",
            f"<body><main>{_header(table, title)}",
            *sections,
            _foot(table, provenance or {}),
            "</main></body></html>",
            "",
        ]
    )


def _header(table: ScoreTable, title: str) -> str:
    num_tasks = len(table.tasks)
    seeds = sorted({len(s.seeds) for model in table.models for s in model.tasks.values()})
    counts = " to ".join(str(number) for number in dict.fromkeys((seeds[0], seeds[-1])))
    about = (
        f"{num_tasks} task{'s' if num_tasks != 1 else ''}, "
        f"{counts} seed{'s' if counts != '1' else ''} each, scored on dev"
    )
    averages = "".join(_average(model, len(table.models) > 1) for model in table.models)
    averages = f'<div class="averages">{averages}</div>' if averages else ""
    return (
        '<header><div><p class="over">Downstream evaluation</p>'
        f'<h1>{escape(title)}</h1><p class="sub">{about}</p></div>{averages}</header>'
    )


def _average(model: ModelScores, has_name: bool) -> str:
    if model.average is None:
        return ""
    what = f"Avg of {model.name}" if has_name else "the paper's Avg of five tasks"
    return f'<div class="average"><b>{percent(model.average)}</b><span>{escape(what)}</span></div>'


def _legend(table: ScoreTable) -> str:
    names = ", ".join(escape(row.name) for row in table.published)
    return _LEGEND.format(published=_PUBLISHED_LEGEND.format(names=names) if names else "")


def _detail_heading(table: ScoreTable, model: ModelScores) -> str:
    return f"{model.name}, task by task" if len(table.models) > 1 else "Task by task"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def _table(rows: Sequence[tuple[str, ...]], published: Iterable[str]) -> str:
    header, *others = rows
    lines = [_row("th", header, "")]
    for number, row in enumerate(others):
        is_published = any(row[0].startswith(f"{name} (") for name in published)
        goes_on = number + 1 < len(others) and not others[number + 1][0]
        kind = "published" if is_published else "more" if goes_on else ""
        lines.append(_row("td", row, kind))
    return f"<table>{''.join(lines)}</table>"


def _row(cell: str, row: Iterable[str], kind: str) -> str:
    cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
    return f'<tr class="{kind}">{cells}</tr>' if kind else f"<tr>{cells}</tr>"


def _foot(table: ScoreTable, provenance: Mapping[str, str]) -> str:
    paragraphs = [f"<p>{escape(note)}</p>" for note in notes(table)]
    paragraphs += [
        f"<p>{escape(name)}: <code>{escape(value)}</code></p>" for name, value in provenance.items()
    ]
    return f'<div class="notes">{"".join(paragraphs)}</div>'


_COLOURS = ("#2454c5", "#0f8a6c", "#a23b9b", "#5c6b00")
_UNPROVEN, _CONSTANT, _INK, _SOFT = "#c2660a", "#ded9d0", "#1d2433", "#6b7280"
_LINE_INCHES, _MARGIN_INCHES, _WIDTH_INCHES = 0.42, 1.5, 10.0
_DPI = 144
_CAPTION = (
    "median run with its 95 % interval, and every seed; orange: not surely above the best constant "
    "answer (grey); triangle: published"
)
_JITTER = (0.0, -0.13, 0.13, -0.22, 0.22)


def as_png(table: ScoreTable) -> bytes:
    """Return the plot of every model's key metric on every task, as a PNG file.

    Each line has the best constant answer (grey), every seed (small dots), the median run (large
    dot) with its 95 % interval, and published scores (triangles).
    """
    lines = [
        (number, model, model.tasks[task])
        for task in table.tasks
        for number, model in enumerate(table.models)
        if task in model.tasks
    ]
    size = _WIDTH_INCHES, _MARGIN_INCHES + _LINE_INCHES * len(lines)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (number, _, scores) in enumerate(lines):
        _draw(axes, place, number, scores)
        for row in table.published:
            if scores.task in row.scores:
                axes.plot(row.scores[scores.task][0], place - 0.34, "v", mfc="none", mec=_INK)
    _label(axes, table, lines)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    return content.getvalue()


def _draw(axes: Axes, place: int, number: int, scores: TaskScores) -> None:
    key = scores.key
    colour = _UNPROVEN if key.beats_baseline is False else _COLOURS[number % len(_COLOURS)]
    if key.baseline is not None:
        axes.barh(place, 100 * key.baseline, 0.32, color=_CONSTANT, zorder=0)
    axes.errorbar(
        100 * key.median,
        place,
        xerr=[[100 * max(key.median - key.low, 0)], [100 * max(key.high - key.median, 0)]],
        fmt="o",
        color=colour,
        ms=8,
        mec="white",
        capsize=3.5,
        zorder=3,
    )
    if len(key.by_seed) > 1:
        lanes = [place + _JITTER[i % len(_JITTER)] for i in range(len(key.by_seed))]
        values = [100 * value for value in key.by_seed.values()]
        axes.plot(values, lanes, "o", color=colour, ms=4.5, alpha=0.4, mec="none", zorder=2)


def _label(
    axes: Axes, table: ScoreTable, lines: Sequence[tuple[int, ModelScores, TaskScores]]
) -> None:
    several = len(table.models) > 1
    axes.set_yticks(
        range(len(lines)),
        [f"{s.title}, {model.name}" if several else s.title for _, model, s in lines],
        color=_INK,
    )
    axes.set_ylim(len(lines) - 0.4, -0.6)
    lowest = min([0.0, *(100 * s.key.low for _, _, s in lines)])
    axes.set_xlim(lowest - (2 if lowest < 0 else 0), 100)
    axes.grid(axis="x", color=_CONSTANT, linestyle=":", zorder=-1)
    axes.tick_params(length=0, labelcolor=_INK)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.axvline(0, color=_SOFT, lw=0.8)
    for place, (_, _, scores) in enumerate(lines):
        said = f"{percent(scores.key.median)}  {metric_name(scores.key.name)}"
        axes.text(102, place, said, va="center", color=_INK)
    axes.set_xlabel(_CAPTION, color=_SOFT, loc="left", size="small", labelpad=8)
    names = ", ".join(model.name for model in table.models)
    axes.set_title(f"{names}: per cent on dev", loc="left", color=_INK, weight="bold", pad=12)
