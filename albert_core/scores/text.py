"""A score table as rows of text, and these for a terminal and as Markdown."""

import textwrap
from collections.abc import Mapping, Sequence

from albert_core.metrics import LOWER_IS_BETTER
from albert_core.scores.table import (
    GLUE_COLUMNS,
    PAPER_COLUMNS,
    MetricSummary,
    PublishedScores,
    ScoreTable,
    TaskScores,
)

METRIC_NAMES = {
    "accuracy": "acc",
    "accuracy_high": "acc high",
    "accuracy_middle": "acc middle",
    "exact_match": "EM",
    "f1": "F1",
    "mse": "MSE",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
"""Short names; any other metric goes by its own."""
LEGEND = (
    "Scores are per cent, except errors, on dev, of the best evaluation of each run, as in the "
    "paper. Over seeds: the median run with the 95 % interval that its examples give; the range "
    "from the worst to the best seed, and which was the worst. Constant: what the best constant "
    "answer gets; ! where the interval is not clear of it. Overlap: the share of dev that is also "
    "in the pretraining corpus."
)
_TERMINAL_COLUMNS = 100
_OTHER_SETS = {"ax": "AX", "mnli-mm": "mm"}
_SECOND_METRICS = {
    "mnli": "accuracy of mnli-mm",
    "mrpc": "f1",
    "qqp": "f1",
    "squad-1.1": "exact_match",
    "squad-2.0": "exact_match",
    "sts-b": "spearman",
}
"""For tasks with two metrics in GLUE's own table, or in the paper's."""
_DASH = "–"
_HALF_UP = 1e-9
"""So that the paper's 80.05 becomes 80.1, as there, whichever way its binary form errs."""
Rows = list[tuple[str, ...]]


def as_text(table: ScoreTable) -> str:
    """Return the table for a terminal."""
    parts = [part for title, rows in sections(table) for part in (title, _aligned(rows))]
    for note in notes(table):
        lines = note.splitlines()
        wrapped = [textwrap.fill(n, _TERMINAL_COLUMNS, subsequent_indent="  ") for n in lines]
        parts.append("\n".join(wrapped))
    return "\n\n".join(parts)


def as_markdown(table: ScoreTable) -> str:
    """Return the table for Prefect's pages."""
    parts = [f"# Scores of {table.model}"]
    for title, rows in sections(table):
        parts += [f"## {title}", _in_markdown(rows)]
    return "\n\n".join([*parts, *notes(table)]) + "\n"


def sections(table: ScoreTable) -> list[tuple[str, Rows]]:
    """Return the parts of the table that are not empty: title and rows, the first a header."""
    found = {
        "In the paper's columns": paper_rows(table),
        "GLUE and own tasks": glue_rows(table),
        "Task by task": detail_rows(table),
    }
    return [(title, rows) for title, rows in found.items() if rows]


def paper_rows(table: ScoreTable) -> Rows:
    """Return the paper's Table 2: header, model, published; empty if none of its tasks is there."""
    if not PAPER_COLUMNS.keys() & table.tasks.keys():
        return []
    rows = _in_columns(table, PAPER_COLUMNS, table.published)
    averages = ["Avg", percent(table.average), *(percent(row.average) for row in table.published)]
    return [(row[0], average, *row[1:]) for row, average in zip(rows, averages, strict=True)]


def glue_rows(table: ScoreTable) -> Rows:
    """Return GLUE's columns and those of own tasks; empty if the paper's columns have them all."""
    own = [task for task in table.tasks if task not in {*PAPER_COLUMNS, *GLUE_COLUMNS}]
    columns = [*(task for task in GLUE_COLUMNS if task in table.tasks), *own]
    new = set(columns) - PAPER_COLUMNS.keys()
    if not new:
        return []
    published = [row for row in table.published if row.scores.keys() & new]
    return _in_columns(table, {task: table.tasks[task].title for task in columns}, published)


def detail_rows(table: ScoreTable) -> Rows:
    """Return a header and a row for each metric of each task."""
    header = (
        "task", "metric", "score", "95 % interval", "seeds", "range", "worst",
        "constant", "dev", "overlap",
    )  # fmt: skip
    return [
        header,
        *(
            _detail_row(scores, metric, metric is scores.key)
            for scores in table.tasks.values()
            for metric in scores.metrics
        ),
    ]


def metric_name(name: str) -> str:
    """Return what the tables call a metric."""
    metric, _, other = name.partition(" of ")
    short = METRIC_NAMES.get(metric, metric.replace("_", " "))
    return f"{short} {_OTHER_SETS.get(other, other)}".rstrip()


def score_cell(scores: TaskScores) -> str:
    """Return a task's score as GLUE's table or the paper's has it: two metrics for some tasks."""
    second = _SECOND_METRICS.get(scores.task)
    shown = [metric for metric in scores.metrics if metric is scores.key or metric.name == second]
    return "/".join(percent(metric.median) for metric in shown)


def notes(table: ScoreTable) -> list[str]:
    """Return what is to be said below the table, a paragraph each."""
    said = [LEGEND]
    if table.average_lacks and PAPER_COLUMNS.keys() & table.tasks.keys():
        lacks = ", ".join(PAPER_COLUMNS[task] for task in table.average_lacks)
        said.append(f"No Avg of {table.model}: it is the mean of five tasks, without {lacks}.")
    if table.missing:
        said.append("Not scored:")
        said += [f"- {title}: {why}" for title, why in table.missing.items()]
    return said


def percent(value: float | None) -> str:
    """Return a share as per cent with one digit; a dash for None."""
    return _DASH if value is None else f"{100 * value + _HALF_UP:.1f}"


def _in_columns(
    table: ScoreTable, titles: Mapping[str, str], published: Sequence[PublishedScores]
) -> Rows:
    """Return a header of ``titles``, by task, the model's row and the published ones."""
    ours = [score_cell(table.tasks[task]) if task in table.tasks else _DASH for task in titles]
    theirs = [
        [
            "/".join(f"{value:.1f}" for value in row.scores[task]) if task in row.scores else _DASH
            for task in titles
        ]
        for row in published
    ]
    names = ["", table.model, *(f"{row.name} ({row.source})" for row in published)]
    cells = [titles.values(), ours, *theirs]
    return [(name, *row) for name, row in zip(names, cells, strict=True)]


def _detail_row(scores: TaskScores, metric: MetricSummary, is_key: bool) -> tuple[str, ...]:
    shown = _error if metric.name in LOWER_IS_BETTER else percent
    constant = _DASH if metric.baseline is None else shown(metric.baseline)
    if metric.beats_baseline is False:
        constant += " !"
    by_seed = list(metric.by_seed.values())
    spread, worst = f"{shown(by_seed[0])}..{shown(by_seed[-1])}", str(metric.worst_seed)
    if len(by_seed) == 1:
        spread = worst = _DASH
    overlap = _DASH if scores.contamination is None else f"{scores.contamination:.1%}"
    return (
        scores.title if is_key else "",
        metric_name(metric.name),
        shown(metric.median),
        f"[{shown(metric.low)}, {shown(metric.high)}]",
        str(scores.num_seeds) if is_key else "",
        spread,
        worst,
        constant,
        f"{scores.num_examples:,}" if is_key else "",
        overlap if is_key else "",
    )


def _error(value: float) -> str:
    return f"{value:.3g}"


def _aligned(rows: Rows) -> str:
    """Return the rows with their columns under each other, a line below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _in_markdown(rows: Rows) -> str:
    marks = ("---", *["---:"] * (len(rows[0]) - 1))
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], marks, *rows[1:]))
