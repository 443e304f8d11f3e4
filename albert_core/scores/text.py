"""A score table as text for a terminal, and as Markdown."""

import textwrap
from collections.abc import Iterable, Sequence

from albert_core.metrics import LOWER_IS_BETTER
from albert_core.scores.table import (
    GLUE_COLUMNS,
    PAPER_COLUMNS,
    MetricSummary,
    ModelScores,
    PublishedScores,
    ScoreTable,
    TaskScores,
    in_order,
    published_average,
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
"""Short names; any other metric has its own."""
TITLES = {
    "squad-1.1": "SQuAD1.1",
    "squad-2.0": "SQuAD2.0",
    "mnli": "MNLI",
    "sst-2": "SST-2",
    "race": "RACE",
    "cola": "CoLA",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "sts-b": "STS-B",
}
"""Of the paper's tables."""
LEGEND = (
    "Scores are per cent (but errors), of dev, the best evaluation of each run, as in the paper. "
    "Over seeds: the median run with the 95 % interval that its examples give; the range from the "
    "worst to the best seed, and which was the worst. Constant: what the best constant answer "
    "gets; ! where the interval does not lie above it. Overlap: the share of dev that the "
    "pretraining corpus has."
)
_COLUMNS = 100
"""Of a terminal, for the notes."""
_OTHER_SETS = {"ax": "AX", "mnli-mm": "mm"}
_SECOND_METRICS = {
    "mnli": "accuracy of mnli-mm",
    "mrpc": "f1",
    "qqp": "f1",
    "squad-1.1": "exact_match",
    "squad-2.0": "exact_match",
    "sts-b": "spearman",
}
"""Of tasks that have two in GLUE's own table, or in the paper's."""
_DASH = "–"
_HALF_UP = 1e-9
"""So that the paper's 80.05 becomes 80.1, as there, whichever way its binary form errs."""
Rows = list[tuple[str, ...]]


def as_text(table: ScoreTable) -> str:
    """Return the table for a terminal."""
    parts = [_laid_out(rows) for rows in (paper_rows(table), glue_rows(table)) if rows]
    parts += [
        f"{model.name}, task by task\n\n{_laid_out(detail_rows(model))}" for model in table.models
    ]
    wrapped = (
        "\n".join(textwrap.fill(line, _COLUMNS, subsequent_indent="  ") for line in lines)
        for lines in map(str.splitlines, notes(table))
    )
    return "\n\n".join([*parts, *wrapped])


def as_markdown(table: ScoreTable) -> str:
    """Return the table for Prefect's pages."""
    parts = ["# Scores"]
    parts += [_in_markdown(rows) for rows in (paper_rows(table), glue_rows(table)) if rows]
    for model in table.models:
        parts += [f"## {model.name}, task by task", _in_markdown(detail_rows(model))]
    return "\n\n".join([*parts, *notes(table)]) + "\n"


def paper_rows(table: ScoreTable) -> Rows:
    """Return the paper's Table 2: a header, then a row a model; empty if no task of it is there."""
    if not set(PAPER_COLUMNS) & set(table.tasks):
        return []
    header = ("", "Avg", *(TITLES[task] for task in PAPER_COLUMNS))
    ours = [
        (model.name, percent(model.average), *_cells(model, PAPER_COLUMNS))
        for model in table.models
    ]
    beside = [
        (
            f"{row.name} ({row.source})",
            percent(published_average(row)),
            *_published_cells(row, PAPER_COLUMNS),
        )
        for row in table.published
    ]
    return [header, *ours, *beside]


def glue_rows(table: ScoreTable) -> Rows:
    """Return GLUE's columns and those of own tasks; empty if there is none."""
    present = set(table.tasks)
    own = in_order(present.difference(PAPER_COLUMNS, GLUE_COLUMNS))
    columns = (*(task for task in GLUE_COLUMNS if task in present), *own)
    if not set(columns).difference(PAPER_COLUMNS):
        return []
    titles = {task: model.tasks[task].title for model in table.models for task in model.tasks}
    ours = [(model.name, *_cells(model, columns)) for model in table.models]
    beside = [
        (f"{row.name} ({row.source})", *_published_cells(row, columns))
        for row in table.published
        if set(row.scores) & set(columns).difference(PAPER_COLUMNS)
    ]
    return [("", *(titles[task] for task in columns)), *ours, *beside]


def detail_rows(model: ModelScores) -> Rows:
    """Return a header and a row for each metric of each task."""
    header = (
        "task", "metric", "score", "95 % interval", "seeds", "range", "worst",
        "constant", "dev", "overlap",
    )  # fmt: skip
    return [
        header,
        *(
            _detail_row(scores, metric, metric is scores.key)
            for scores in model.tasks.values()
            for metric in scores.metrics
        ),
    ]


def metric_name(name: str) -> str:
    """Return what the tables call a metric."""
    metric, _, other = name.partition(" of ")
    short = METRIC_NAMES.get(metric, metric.replace("_", " "))
    return f"{short} {_OTHER_SETS.get(other, other)}".rstrip()


def _detail_row(scores: TaskScores, metric: MetricSummary, is_key: bool) -> tuple[str, ...]:
    shown = error if metric.name in LOWER_IS_BETTER else percent
    spread, worst = _DASH, _DASH
    if len(scores.seeds) > 1:
        spread = f"{shown(metric.worst)}..{shown(metric.best)}"
        worst = str(metric.worst_seed)
    constant = _DASH if metric.baseline is None else shown(metric.baseline)
    if metric.beats_baseline is False:
        constant += " !"
    contaminated = _DASH if scores.contamination is None else f"{scores.contamination:.1%}"
    return (
        scores.title if is_key else "",
        metric_name(metric.name),
        shown(metric.median),
        f"[{shown(metric.low)}, {shown(metric.high)}]",
        str(len(scores.seeds)) if is_key else "",
        spread,
        worst,
        constant,
        f"{scores.num_examples:,}" if is_key else "",
        contaminated if is_key else "",
    )


def score_cell(scores: TaskScores) -> str:
    """Return a task's score as GLUE's table or the paper's has it: of some tasks two metrics."""
    second = _SECOND_METRICS.get(scores.task)
    shown = [metric for metric in scores.metrics if metric is scores.key or metric.name == second]
    return "/".join(percent(metric.median) for metric in shown)


def _cells(model: ModelScores, columns: Iterable[str]) -> list[str]:
    return [score_cell(model.tasks[task]) if task in model.tasks else _DASH for task in columns]


def _published_cells(row: PublishedScores, columns: Iterable[str]) -> list[str]:
    return [
        "/".join(f"{value:.1f}" for value in row.scores[task]) if task in row.scores else _DASH
        for task in columns
    ]


def notes(table: ScoreTable) -> list[str]:
    """Return what is to be said below the table, a paragraph each."""
    said = [LEGEND]
    for model in table.models:
        if model.average_lacks and set(model.tasks) & set(PAPER_COLUMNS):
            lacks = ", ".join(TITLES[task] for task in model.average_lacks)
            said.append(f"No Avg of {model.name}: it is the mean of five tasks, without {lacks}.")
    if table.missing:
        said.append("Not scored:")
        said += [f"- {title}: {why}" for title, why in table.missing.items()]
    return said


def percent(value: float | None) -> str:
    """Return a share as per cent with one digit; a dash for None."""
    return _DASH if value is None else f"{100 * value + _HALF_UP:.1f}"


def error(value: float) -> str:
    """Return an error, which is no share, with three digits."""
    return f"{value:.3g}"


def _laid_out(rows: Rows) -> str:
    """Return the rows with their columns under each other, a line below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _in_markdown(rows: Sequence[tuple[str, ...]]) -> str:
    header, *others = rows
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, tuple(marks), *others))
