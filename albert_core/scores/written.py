"""The table of scores as files, and as a run of MLflow with its fine-tunings as children."""

import json
from collections.abc import Mapping
from typing import Any

from albert_core.config import ScoringSettings
from albert_core.scores.page import as_page
from albert_core.scores.plot import plot
from albert_core.scores.table import PUBLISHED, Run, ScoreTable, TaskScores, build_table
from albert_core.scores.text import as_markdown, as_text
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Manifest, StagePlan, shard_of
from albert_core.tracking.run import TrackedRun

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

    Raises:
        ConfigError: the fine-tunings do not go together.
    """
    runs = [Run.of_facts(manifest.facts) for manifest in done.values()]
    published = [PUBLISHED[name] for name in scoring.published]
    try:
        table = build_table(model, runs, overlaps, published, absent)
    except ValueError as error:
        raise ConfigError(f"these fine-tunings make no table: {error}") from error
    with TrackedRun(work, plan.folder(work), f"scores-{model}", {"model": model}) as tracked:
        return _write(plan, work, table, done, tracked)


def _write(
    plan: StagePlan, work: str, table: ScoreTable, done: Finetunings, tracked: TrackedRun
) -> str:
    folder = plan.folder(work)
    contents = {
        DATA: (json.dumps(as_data(table), indent=1) + "\n").encode(),
        MARKDOWN: as_markdown(table).encode(),
        PAGE: as_page(table, _provenance(done)).encode(),
        PICTURE: plot(table, "png"),
    }
    uris = [storage.join(folder, name) for name in contents]
    for file, content in zip(uris, contents.values(), strict=True):
        storage.write_bytes(file, content)
    uri = plan.write(
        work,
        [shard_of(file, folder, plan.stage, len(table.tasks)) for file in uris],
        [],
        {
            "model": table.model,
            "average": table.average,
            "scores": {task: _medians(scores) for task, scores in table.tasks.items()},
            "tasks": {task: _task_data(scores) for task, scores in table.tasks.items()},
            "text": as_text(table),
            "page": PAGE,
            "mlflow_run_id": tracked.run_id,
        },
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
    if table.average is not None:
        metrics["average"] = table.average
    tracked.log_metrics(0, metrics)
    sets = {
        (f"{manifest.facts['title']}/{split}", digest): uri
        for uri, manifest in done.items()
        for split, digest in manifest.inputs.items()
        if split != "model"
    }
    for (name, digest), uri in sets.items():
        tracked.log_dataset(name, digest, uri)
    for uri, manifest in done.items():
        tracked.adopt(manifest.stage, uri.rpartition("/")[0], manifest.facts["mlflow_run_id"])


def as_data(table: ScoreTable) -> dict[str, Any]:
    """Return the table as JSON values; scores are shares, not per cent."""
    return {
        "models": {
            table.model: {
                "average": table.average,
                "average_lacks": list(table.average_lacks),
                "tasks": {task: _task_data(scores) for task, scores in table.tasks.items()},
            }
        },
        "published": [row.name for row in table.published],
        "missing": dict(table.missing),
    }


def _task_data(scores: TaskScores) -> dict[str, Any]:
    return {
        "title": scores.title,
        "num_examples": scores.num_examples,
        "num_train": scores.num_train,
        "dev_overlap": scores.contamination,
        "metrics": {
            metric.name: {
                "median": metric.median,
                "interval": [metric.low, metric.high],
                "by_seed": {str(seed): score for seed, score in sorted(metric.by_seed.items())},
                "worst_seed": metric.worst_seed,
                "constant_answer": metric.baseline,
            }
            for metric in scores.metrics
        },
    }


def _medians(scores: TaskScores) -> dict[str, float]:
    return {metric.name: metric.median for metric in scores.metrics}


def _provenance(done: Finetunings) -> dict[str, str]:
    models = sorted({manifest.inputs["model"][:12] for manifest in done.values()})
    return {"Digest of what was fine-tuned": ", ".join(models)}
