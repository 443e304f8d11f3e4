"""The table of scores as files, among them a page and its plot, and as a run of MLflow."""

import io
import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from albert_core.config import ScoringSettings
from albert_core.scores import table as tables
from albert_core.scores.table import ScoreTable
from albert_core.stage import errors, lineage, results, storage
from albert_core.stage.manifest import Manifest, StagePlan, shard_of
from albert_core.tracking.run import TrackedRun

DATA, MARKDOWN, PAGE, PICTURE = "scores.json", "scores.md", "scores.html", "scores.png"


def write_table(
    plan: StagePlan,
    work: str,
    scoring: ScoringSettings,
    model: str,
    done: Mapping[str, Manifest],
    overlaps: Mapping[str, float],
    absent: Mapping[str, str],
    pairs: Manifest | None = None,
) -> str:
    """Write the table; return the manifest.

    Args:
        plan: of the stage.
        work: folder for all results.
        scoring: settings.
        model: what the table calls the model.
        done: the fine-tunings by the URI of their manifest.
        overlaps: share of each task's dev examples that the corpus has, by the task's name.
        absent: why a task was not scored, by its name.
        pairs: the scores of the pretrained model on minimal pairs, if there are any.

    Raises:
        ConfigError: the fine-tunings do not go together, or ``pairs`` are another model's.
    """
    digests = {manifest.inputs["model"] for manifest in done.values()}
    if pairs and (scored := pairs.inputs["model"]) not in digests:
        if done:
            raise errors.ConfigError(
                f"{plan.input_manifests[lineage.ZERO_SHOT]} has scores of the model {scored[:12]}, "
                "which no fine-tuning starts from. Score the model that was fine-tuned."
            )
        digests = {scored}
    minimal_pairs = pairs.result_as(results.ZeroShotResult).sets if pairs else {}
    runs = [manifest.result_as(results.FinetuningResult) for manifest in done.values()]
    published = [tables.PUBLISHED[name] for name in scoring.published]
    try:
        table = tables.build_table(model, runs, overlaps, published, absent, minimal_pairs)
    except ValueError as error:
        raise errors.ConfigError(f"these fine-tunings make no table: {error}") from error
    folder = plan.folder(work)
    contents = {
        DATA: (json.dumps(as_data(table), indent=1) + "\n").encode(),
        MARKDOWN: tables.as_markdown(table).encode(),
        PAGE: as_page(table, digests).encode(),
        PICTURE: plot(table, "png"),
    }
    uris = [storage.join(folder, name) for name in contents]
    for file, content in zip(uris, contents.values(), strict=True):
        storage.write_bytes(file, content)
    with TrackedRun(work, folder, plan.stage, {"model": model}) as tracked:
        uri = plan.write(
            work,
            [shard_of(file, folder, plan.stage, len(table.tasks)) for file in uris],
            [],
            results.ScoresResult(
                model=model,
                average=table.average,
                scores=_medians(table),
                tasks=dict(table.tasks),
                minimal_pairs=minimal_pairs,
                text=tables.as_text(table),
                page=PAGE,
                mlflow_run_id=tracked.run_id,
            ),
        )
        _track(tracked, table, done)
        for file in (uri, *uris):
            tracked.log_artifact(file)
    return uri


def _track(tracked: TrackedRun, table: ScoreTable, done: Mapping[str, Manifest]) -> None:
    metrics = {
        f"{task}/{name.replace(' ', '_')}": value
        for task, medians in _medians(table).items()
        for name, value in medians.items()
    }
    for name, scores in table.minimal_pairs.items():
        metrics[f"{name}_pairs/accuracy"] = scores.accuracy.value
    if table.average is not None:
        metrics["average"] = table.average
    tracked.log_metrics(0, metrics)
    sets = {}
    for uri, manifest in done.items():
        tuned = manifest.result_as(results.FinetuningResult)
        for split, digest in manifest.inputs.items():
            sets[f"{tuned.title}/{split}", digest] = uri, split
        tracked.adopt(manifest.stage, uri.rpartition("/")[0], tuned.mlflow_run_id)
    for (name, digest), (uri, split) in sets.items():
        if split == "model":
            tracked.log_used_model(digest)
        else:
            tracked.log_dataset(name, digest, uri, split)


def _medians(table: ScoreTable) -> dict[str, dict[str, float]]:
    return {
        task: {name: metric.median.value for name, metric in scores.metrics.items()}
        for task, scores in table.tasks.items()
    }


def as_data(table: ScoreTable) -> dict[str, Any]:
    """Return the table as JSON values; scores are shares, not per cent."""
    pairs = table.minimal_pairs.items()
    return {
        "models": {
            table.model: {
                "average": table.average,
                "average_lacks": table.average_lacks,
                "tasks": {task: scores.model_dump() for task, scores in table.tasks.items()},
                "minimal_pairs": {name: scores.model_dump() for name, scores in pairs},
            }
        },
        "published": [row.name for row in table.published],
        "missing": dict(table.missing),
    }


# The page

_STYLE = """
body { margin: 0 auto; max-width: 1080px; padding: 40px 28px; color: #1d2433;
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
section { overflow-x: auto; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; white-space: nowrap; }
th, td { text-align: right; padding: 6px 0 6px 16px; border-bottom: 1px solid #e8e6e1; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th, footer { color: #6b7280; font-size: 13px; font-weight: 500; }
"""


def as_page(table: ScoreTable, digests: Iterable[str] = ()) -> str:
    """Return the page, which needs no other file.

    Args:
        table: what it shows.
        digests: of the models that were fine-tuned or scored, to say at the foot.
    """
    about = f"Tasks: {len(table.tasks)}. Sets of minimal pairs: {len(table.minimal_pairs)}."
    if table.average is not None:
        about += f" The paper's Avg of five tasks: <b>{tables.percent(table.average)}</b>."
    short = ", ".join(digest[:12] for digest in sorted(digests))
    said = [*tables.notes(table), f"Digest of what was fine-tuned or scored: {short}."]
    title, svg = escape(f"Scores of {table.model}"), plot(table, "svg").decode()
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{title}</h1><p>{about}</p>",
        '<section role="img" aria-label="Scores with their 95 % intervals">',
        svg[svg.index("<svg") :],  # without the prolog of an XML file
        "</section>",
        *(
            f"<section><h2>{escape(title)}</h2>{_in_html(rows)}</section>"
            for title, rows in tables.sections(table)
        ),
        f"<footer>{''.join(f'<p>{escape(note)}</p>' for note in said)}</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _in_html(rows: tables.Rows) -> str:
    lines: list[str] = []
    for row in rows:
        cell = "td" if lines else "th"
        cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


# The plot

_INK, _SOFT, _FAINT = "#1d2433", "#6b7280", "#e8e6e1"
_CONSTANT, _MODEL, _UNPROVEN = "#cfc8bb", "#2454c5", "#c2660a"
_WIDTH, _TASK_HEIGHT, _MARGINS = 10.0, 0.45, 1.4
"""Inches; the margins are those above and below together."""
_LANES = (0.0, -0.14, 0.14, -0.24, 0.24)
"""Vertical offsets of the seeds' dots, so that equal scores stay apart."""
_GRID = 20
_PLOT_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "scores",
    "text.color": _INK,
    "text.parse_math": False,  # a title may have a dollar sign
    "ytick.labelcolor": _INK,
    "xtick.labelcolor": _SOFT,
}


def plot(table: ScoreTable, kind: Literal["png", "svg"]) -> bytes:
    """Return the plot of every task's key metric and every set of pairs, in per cent, as a file.

    The same table gives the same bytes.
    """
    no_date = ["Creator", "Date", "Format", "Type"] if kind == "svg" else ["Software"]
    content = io.BytesIO()
    with rc_context(_PLOT_STYLE):
        draw(table).savefig(content, format=kind, dpi=144, metadata=dict.fromkeys(no_date))
    return content.getvalue()


def draw(table: ScoreTable) -> Figure:
    """Return the plot as a figure whose lines are tasks and sets of pairs, the first on top.

    A line has a dot and a whisker: the median run with its interval.
    """
    lines = [(task.title, *next(iter(task.metrics.items()))) for task in table.tasks.values()]
    for name, scores in table.minimal_pairs.items():
        title = f"{tables.SET_TITLES.get(name, name)} pairs"
        lines.append((title, "accuracy", tables.of_pairs(scores)))
    figure = Figure((_WIDTH, _MARGINS + _TASK_HEIGHT * len(lines)), layout="constrained")
    axes = figure.subplots()
    intervals = np.array([_interval(key) for *_, key in lines])
    values = 100 * np.array([key.median.value for *_, key in lines])
    seeds = [
        (100 * score, place + _LANES[number % len(_LANES)])
        for place, (*_, key) in enumerate(lines)
        for number, (_, score) in enumerate(sorted(key.by_seed.items()))
        if len(key.by_seed) > 1
    ]
    lowest = min(0, _GRID * int(min(intervals.min(), *(x for x, _ in seeds), 0) // _GRID))
    axes.set(xlim=(lowest, 100), ylim=(len(lines) - 0.4, -0.6))
    axes.set_xticks(range(lowest, 101, _GRID))
    axes.set_yticks(range(len(lines)), [title for title, *_ in lines])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_FAINT)
    axes.axvline(0, color=_SOFT, lw=0.8, zorder=-1)
    constants = [100 * (key.constant_answer or 0) for *_, key in lines]
    axes.barh(range(len(lines)), constants, 0.34, color=_CONSTANT, label="best constant answer")
    is_unproven = np.array([tables.beats_constant(name, key) is False for _, name, key in lines])
    for rows, colour, label in (
        (~is_unproven, _MODEL, "median run, or pretrained; 95 % interval"),
        (is_unproven, _UNPROVEN, "not surely above the constant"),
    ):
        reach = np.abs(intervals[rows] - values[rows, None]).T
        x, y = values[rows], np.flatnonzero(rows)
        axes.errorbar(x, y, xerr=reach, fmt="o", color=colour, ms=8, capsize=3.5, label=label)
    dots = [(seeds, "o", "every seed", _MODEL)]
    for row in table.published:
        scored = [
            (i, row.scores[task][0]) for i, task in enumerate(table.tasks) if task in row.scores
        ]
        dots.append(([(score, place - 0.3) for place, score in scored], "v", row.name, "none"))
    for points, marker, label, colour in dots:
        x, y = np.array(points).reshape(-1, 2).T
        axes.plot(x, y, marker, ms=5, mfc=colour, mec=_INK, alpha=0.5, label=label)
    for place, (_, name, key) in enumerate(lines):
        said = f"{tables.percent(key.median.value)}  {tables.metric_name(name)}"
        axes.text(1.02, place, said, va="center", transform=axes.get_yaxis_transform())
    axes.set_title(f"{table.model}: per cent on dev", loc="left", weight="bold", pad=12)
    figure.legend(loc="outside lower left", ncols=3, frameon=False)
    return figure


def _interval(key: results.MetricResult) -> list[float]:
    """Return the ends of the interval in per cent; without one, the score itself."""
    ends = (key.median.low, key.median.high)
    return [100 * (key.median.value if end is None else end) for end in ends]
