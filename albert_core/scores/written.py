"""The table of scores as files and as one HTML page, and as a run of MLflow."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from albert_core.config import ScoringSettings
from albert_core.scores.plot import COLOURS, plot
from albert_core.scores.table import (
    PUBLISHED,
    Rows,
    ScoreTable,
    TaskScores,
    as_markdown,
    as_text,
    build_table,
    notes,
    percent,
    sections,
)
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.lineage import ZERO_SHOT
from albert_core.stage.manifest import Manifest, StagePlan, shard_of
from albert_core.stage.results import (
    FinetuningResult,
    MetricResult,
    ScoresResult,
    TaskScoresResult,
    ZeroShotResult,
)
from albert_core.tracking.run import TrackedRun

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #fff; --ink: #1d2433;
  --soft: #6b7280; --faint: #e8e6e1; --constant: #cfc8bb; --model: #2454c5; --unproven: #c2660a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e9ebf0;
  --soft: #9aa3b2; --faint: #2c323d; --constant: #434b59; --model: #7aa2ff; --unproven: #ffab57; } }
body { margin: 0 auto; max-width: 1080px; padding: 40px 28px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; justify-content: space-between; align-items: end; gap: 32px; }
h1 { font-size: 30px; line-height: 1.15; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; }
.average { text-align: right; }
.average b { display: block; font-size: 44px; line-height: 1; }
header p, th, footer { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--faint); border-radius: 12px;
  padding: 22px 26px; margin: 20px 0; overflow-x: auto; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; white-space: nowrap; }
th, td { text-align: right; padding: 6px 0 6px 16px; border-bottom: 1px solid var(--faint); }
th { font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
@media print { body { background: #fff; } }
"""


def as_page(table: ScoreTable, provenance: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        table: what it shows.
        provenance: where the numbers are from, by name, to say at the foot.
    """
    said = [escape(note) for note in notes(table)]
    said += [
        f"{escape(name)}: <code>{escape(value)}</code>"
        for name, value in (provenance or {}).items()
    ]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Scores of {escape(table.model)}</title><style>{_STYLE}</style></head>",
        f"<body>{_header(table)}",
        f"<section><h2>All scores</h2>{_plot(table)}</section>",
        *(
            f"<section><h2>{escape(title)}</h2>{_in_html(rows)}</section>"
            for title, rows in sections(table)
        ),
        f"<footer>{''.join(f'<p>{note}</p>' for note in said)}</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _header(table: ScoreTable) -> str:
    about = f"Sets of minimal pairs: {len(table.minimal_pairs)}."
    if table.tasks:
        seeds = sorted({scores.num_seeds for scores in table.tasks.values()})
        counts = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        about = f"Tasks: {len(table.tasks)}. Seeds of each: {counts}. Scored on dev. {about}"
    average = ""
    if table.average is not None:
        average = f"<b>{percent(table.average)}</b>the paper's Avg of five tasks"
    return (
        f"<header><div><h1>{escape(table.model)}</h1><p>{about}</p></div>"
        f'<p class="average">{average}</p></header>'
    )


def _plot(table: ScoreTable) -> str:
    """Return the plot as an SVG element, in the colours of the page's style."""
    file = plot(table, "svg").decode()
    svg = file[file.index("<svg") :]  # without the prolog of an XML file
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return f'<div role="img" aria-label="Scores with their 95 % intervals">{svg}</div>'


def _in_html(rows: Rows) -> str:
    lines: list[str] = []
    for row in rows:
        cell = "td" if lines else "th"
        cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


DATA, MARKDOWN, PAGE, PICTURE = "scores.json", "scores.md", "scores.html", "scores.png"
Finetunings = Mapping[str, Manifest]
"""URI of the manifest -> manifest."""


def write_table(
    plan: StagePlan,
    work: str,
    scoring: ScoringSettings,
    model: str,
    done: Finetunings,
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
        done: the fine-tunings.
        overlaps: share of each task's dev examples that the corpus has, by the task's name.
        absent: why a task was not scored, by its name.
        pairs: the scores of the pretrained model on minimal pairs, if there are any.

    Raises:
        ConfigError: the fine-tunings do not go together, or ``pairs`` are another model's.
    """
    of_model = {manifest.inputs["model"] for manifest in done.values()}
    if pairs and done and pairs.inputs["model"] not in of_model:
        raise ConfigError(
            f"{plan.input_manifests[ZERO_SHOT]} has scores of the model "
            f"{pairs.inputs['model'][:12]}, which no fine-tuning starts from. Score the model that "
            "was fine-tuned."
        )
    minimal_pairs = pairs.result_as(ZeroShotResult).sets if pairs else {}
    runs = [manifest.result_as(FinetuningResult) for manifest in done.values()]
    published = [PUBLISHED[name] for name in scoring.published]
    try:
        table = build_table(model, runs, overlaps, published, absent, minimal_pairs)
    except ValueError as error:
        raise ConfigError(f"these fine-tunings make no table: {error}") from error
    with TrackedRun(work, plan.folder(work), plan.stage, {"model": model}) as tracked:
        return _write(plan, work, table, done, pairs, tracked)


def _write(
    plan: StagePlan,
    work: str,
    table: ScoreTable,
    done: Finetunings,
    pairs: Manifest | None,
    tracked: TrackedRun,
) -> str:
    folder = plan.folder(work)
    contents = {
        DATA: (json.dumps(as_data(table), indent=1) + "\n").encode(),
        MARKDOWN: as_markdown(table).encode(),
        PAGE: as_page(table, _provenance([*done.values(), *([pairs] if pairs else [])])).encode(),
        PICTURE: plot(table, "png"),
    }
    uris = [storage.join(folder, name) for name in contents]
    for file, content in zip(uris, contents.values(), strict=True):
        storage.write_bytes(file, content)
    uri = plan.write(
        work,
        [shard_of(file, folder, plan.stage, len(table.tasks)) for file in uris],
        [],
        ScoresResult(
            model=table.model,
            average=table.average,
            scores={task: _medians(scores) for task, scores in table.tasks.items()},
            tasks={task: _task_result(scores) for task, scores in table.tasks.items()},
            minimal_pairs=dict(table.minimal_pairs),
            text=as_text(table),
            page=PAGE,
            mlflow_run_id=tracked.run_id,
        ),
    )
    _track(tracked, table, done)
    for file in (uri, *uris):
        tracked.log_artifact(file)
    return uri


def _track(tracked: TrackedRun, table: ScoreTable, done: Finetunings) -> None:
    metrics = {
        f"{task}/{name.replace(' ', '_')}": value
        for task, scores in table.tasks.items()
        for name, value in _medians(scores).items()
    }
    for name, scores_on_pairs in table.minimal_pairs.items():
        metrics[f"{name}_pairs/accuracy"] = scores_on_pairs.accuracy.value
    if table.average is not None:
        metrics["average"] = table.average
    tracked.log_metrics(0, metrics)
    sets = {
        (f"{manifest.result_as(FinetuningResult).title}/{split}", digest): uri
        for uri, manifest in done.items()
        for split, digest in manifest.inputs.items()
        if split != "model"
    }
    for (name, digest), uri in sets.items():
        tracked.log_dataset(name, digest, uri, name.rpartition("/")[2])
    for digest in {manifest.inputs["model"] for manifest in done.values()}:
        tracked.log_used_model(digest)
    for uri, manifest in done.items():
        run_id = manifest.result_as(FinetuningResult).mlflow_run_id
        tracked.adopt(manifest.stage, uri.rpartition("/")[0], run_id)


def as_data(table: ScoreTable) -> dict[str, Any]:
    """Return the table as JSON values; scores are shares, not per cent."""
    return {
        "models": {
            table.model: {
                "average": table.average,
                "average_lacks": list(table.average_lacks),
                "tasks": {
                    task: _task_result(scores).model_dump() for task, scores in table.tasks.items()
                },
                "minimal_pairs": {
                    name: scores.model_dump() for name, scores in table.minimal_pairs.items()
                },
            }
        },
        "published": [row.name for row in table.published],
        "missing": dict(table.missing),
    }


def _task_result(scores: TaskScores) -> TaskScoresResult:
    return TaskScoresResult(
        title=scores.title,
        num_examples=scores.num_examples,
        num_train=scores.num_train,
        dev_overlap=scores.contamination,
        metrics={
            metric.name: MetricResult(
                median=metric.median,
                by_seed={str(seed): score for seed, score in sorted(metric.by_seed.items())},
                worst_seed=metric.worst_seed,
                constant_answer=metric.baseline,
            )
            for metric in scores.metrics
        },
    )


def _medians(scores: TaskScores) -> dict[str, float]:
    return {metric.name: metric.median.value for metric in scores.metrics}


def _provenance(made: Iterable[Manifest]) -> dict[str, str]:
    models = sorted({manifest.inputs["model"][:12] for manifest in made})
    return {"Digest of what was fine-tuned or scored": ", ".join(models)}
