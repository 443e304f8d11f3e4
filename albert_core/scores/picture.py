"""A score table as a picture: the page's plot, for places that show PNG."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from albert_core.scores.table import ModelScores, ScoreTable, TaskScores
from albert_core.scores.text import metric_name, percent

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
