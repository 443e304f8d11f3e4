"""The plot of a score table: a dot and whisker for each task and set of minimal pairs."""

import io
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from albert_core.scores.table import SET_TITLES, MetricSummary, ScoreTable, metric_name, percent

COLOURS = {
    "ink": "#1d2433",
    "soft": "#6b7280",
    "faint": "#e8e6e1",
    "constant": "#cfc8bb",
    "model": "#2454c5",
    "unproven": "#c2660a",
}
"""Role -> colour. The page replaces them by its own."""
_WIDTH, _TASK_HEIGHT, _MARGINS = 10.0, 0.45, 1.4
"""Inches; the margins are those above and below together."""
_LANES = (0.0, -0.14, 0.14, -0.24, 0.24)
"""Vertical offsets of the seeds' dots, so that equal scores stay apart."""
_GRID = 20


def plot(table: ScoreTable, kind: Literal["png", "svg"]) -> bytes:
    """Return the plot of every task's key metric and every set of pairs, in per cent, as a file.

    The same table gives the same bytes.
    """
    style = rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "scores",
            "text.color": COLOURS["ink"],
            "text.parse_math": False,  # a title may have a dollar sign
            "ytick.labelcolor": COLOURS["ink"],
            "xtick.labelcolor": COLOURS["soft"],
        }
    )
    content = io.BytesIO()
    is_vector = kind == "svg"
    metadata = dict.fromkeys(["Creator", "Date", "Format", "Type"] if is_vector else ["Software"])
    with style:
        draw(table).savefig(content, format=kind, dpi=144, transparent=is_vector, metadata=metadata)
    return content.getvalue()


def draw(table: ScoreTable) -> Figure:
    """Return the plot as a figure whose lines are tasks and sets of pairs, the first on top."""
    lines = [(scores.title, scores.key) for scores in table.tasks.values()]
    lines += [
        (f"{SET_TITLES.get(name, name)} pairs", MetricSummary.of_pairs(scores))
        for name, scores in table.minimal_pairs.items()
    ]
    figure = Figure((_WIDTH, _MARGINS + _TASK_HEIGHT * len(lines)), layout="constrained")
    axes = figure.subplots()
    ends = [end for _, key in lines for end in (*_ends(key), *key.by_seed.values())]
    lowest = min(0, _GRID * int(100 * min(ends) // _GRID))
    axes.set(xlim=(lowest, 100), ylim=(len(lines) - 0.4, -0.6))
    axes.set_xticks(range(lowest, 101, _GRID))
    axes.set_yticks(range(len(lines)), [title for title, _ in lines])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=COLOURS["faint"])
    axes.axvline(0, color=COLOURS["soft"], lw=0.8, zorder=-1)
    for place, (_, key) in enumerate(lines):
        _draw_line(axes, place, key)
    theirs = [
        (row.scores[task][0], place - 0.3)
        for row in table.published
        for place, task in enumerate(table.tasks)
        if task in row.scores
    ]
    if theirs:
        names = ", ".join(row.name for row in table.published)
        axes.plot(
            *zip(*theirs, strict=True), "v", ms=6, mfc="none", mec=COLOURS["ink"], label=names
        )
    axes.set_title(f"{table.model}: per cent on dev", loc="left", weight="bold", pad=12)
    handles, labels = axes.get_legend_handles_labels()
    of_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        of_label.values(), of_label.keys(), loc="outside lower left", ncols=3, frameon=False
    )
    return figure


def _ends(key: MetricSummary) -> list[float]:
    """Return the ends of the interval; without one, the score itself."""
    ends = (key.median.low, key.median.high)
    return [key.median.value if end is None else end for end in ends]


def _draw_line(axes: Axes, place: int, key: MetricSummary) -> None:
    is_unproven = key.beats_baseline is False
    colour = COLOURS["unproven" if is_unproven else "model"]
    if key.baseline is not None:
        constant = 100 * key.baseline
        axes.barh(place, constant, 0.34, color=COLOURS["constant"], label="best constant answer")
    label = "median run, 95 % interval" if key.by_seed else "pretrained, 95 % interval"
    axes.errorbar(
        100 * key.median.value,
        place,
        xerr=[[100 * abs(key.median.value - end)] for end in _ends(key)],
        fmt="o",
        color=colour,
        ms=8,
        capsize=3.5,
        zorder=3,
        label="not surely above the constant" if is_unproven else label,
    )
    if len(key.by_seed) > 1:
        values = [100 * key.by_seed[seed] for seed in sorted(key.by_seed)]
        lanes = [place + _LANES[i % len(_LANES)] for i in range(len(values))]
        axes.plot(
            values, lanes, "o", color=colour, ms=4.5, alpha=0.45, mec="none", zorder=2,
            label="every seed",
        )  # fmt: skip
    said = f"{percent(key.median.value)}  {metric_name(key.name)}"
    axes.text(1.02, place, said, va="center", transform=axes.get_yaxis_transform())
