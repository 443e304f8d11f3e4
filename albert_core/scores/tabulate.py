"""Stage: the fine-tunings of a model on all tasks and seeds -> one table of scores.

It writes the table as data (scores.json), as Markdown, as a page and as a picture. In MLflow the
table is a run, and the fine-tunings are its children: a fine-tuning that two tables share is a
child of the one made last.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from albert_core.config import ScoringSettings
from albert_core.scores.page import as_page, as_png
from albert_core.scores.table import (
    PUBLISHED,
    ModelScores,
    Run,
    ScoreTable,
    TaskScores,
    build_table,
)
from albert_core.scores.text import as_markdown, as_text
from albert_core.stage import storage
from albert_core.stage.code_version import code_digest, library_versions
from albert_core.stage.command import stage_main
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest, shard_of
from albert_core.tracking.run import TrackedRun, tracked_run

STAGE = "scores"
DATA, MARKDOWN, PAGE, PICTURE = "scores.json", "scores.md", "scores.html", "scores.png"
_DEV = "dev"

log = logging.getLogger(STAGE)


def run(
    scoring: ScoringSettings,
    model: str,
    finetunings: str,
    missing: str = "{}",
    contamination: str = "",
    work: str = "work",
) -> str:
    """Lay the scores of fine-tunings out as one table; return the manifest.

    Args:
        scoring: settings.
        model: what the table calls the model.
        finetunings: a JSON list of their manifests.
        missing: a JSON object: why a task was not scored, by its name.
        contamination: manifest that says how much of each dev set the corpus has, if one does.
        work: folder for all results.

    Raises:
        ConfigError: the fine-tunings do not go together, or an argument is no such JSON.
        IntegrityError: a manifest or the predictions are missing.
    """
    done = [Finetuned.read(uri) for uri in _json(finetunings, "finetunings", list)]
    absent = _json(missing, "missing", dict)
    inputs = {f"finetuning-{each.manifest.key}": each.manifest.content for each in done}
    manifests = {f"finetuning-{each.manifest.key}": each.uri for each in done}
    shares: dict[str, float] = {}
    if contamination:
        overlap = read_manifest(contamination)
        shares = dev_overlap(overlap)
        inputs["contamination"], manifests["contamination"] = overlap.key, contamination
    plan = StagePlan(
        stage=STAGE,
        settings={"scoring": scoring.model_dump(), "model": model, "missing": absent},
        inputs=inputs,
        code=code_digest(__name__),
        libraries=library_versions("matplotlib"),
        input_manifests=manifests,
    )
    if found := plan.find(work):
        return found
    table = _table(scoring, model, done, shares, absent)
    with tracked_run(work, plan.folder(work), f"scores-{model}", {"model": model}) as tracked:
        return _write(plan, work, table, done, tracked)


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuning as its manifest has it."""

    uri: str
    manifest: Manifest

    @classmethod
    def read(cls, uri: str) -> "Finetuned":
        """Return the fine-tuning of the manifest at ``uri``.

        Raises:
            IntegrityError: there is none.
        """
        return cls(uri, read_manifest(uri))

    @property
    def folder(self) -> str:
        """Of the manifest."""
        return self.uri.rpartition("/")[0]


def dev_overlap(contamination: Manifest) -> dict[str, float]:
    """Return the share of each task's dev examples that the corpus has, by the task's name."""
    found: dict[str, dict[str, float]] = contamination.facts["shares"]
    return {task: splits[_DEV] for task, splits in found.items() if _DEV in splits}


def _table(
    scoring: ScoringSettings,
    model: str,
    done: Sequence[Finetuned],
    shares: Mapping[str, float],
    missing: Mapping[str, str],
) -> ScoreTable:
    runs = [Run.of_facts(model, each.manifest.facts) for each in done]
    beside = [PUBLISHED[name] for name in scoring.published]
    try:
        return build_table(runs, shares, beside, missing)
    except ValueError as error:
        raise ConfigError(f"these fine-tunings make no table: {error}") from error


def _write(
    plan: StagePlan, work: str, table: ScoreTable, done: Sequence[Finetuned], tracked: TrackedRun
) -> str:
    folder = plan.folder(work)
    (model,) = table.models
    contents = {
        DATA: (json.dumps(as_data(table), indent=1) + "\n").encode(),
        MARKDOWN: as_markdown(table).encode(),
        PAGE: as_page(table, _provenance(done)).encode(),
        PICTURE: as_png(table),
    }
    for name, content in contents.items():
        storage.write_bytes(storage.join(folder, name), content)
    uri = plan.write(
        work,
        [
            shard_of(storage.join(folder, name), folder, STAGE, len(model.tasks))
            for name in contents
        ],
        [],
        {
            "model": model.name,
            "average": model.average,
            "scores": {task: _medians(scores) for task, scores in model.tasks.items()},
            "tasks": {task: _task_data(scores) for task, scores in model.tasks.items()},
            "text": as_text(table),
            "page": PAGE,
            "mlflow_run_id": tracked.run_id,
        },
    )
    _track(tracked, model, done, [uri, *(storage.join(folder, name) for name in contents)])
    return uri


def _track(
    tracked: TrackedRun, model: ModelScores, done: Sequence[Finetuned], files: Sequence[str]
) -> None:
    metrics = {
        f"{task}/{name.replace(' ', '_')}": value
        for task, scores in model.tasks.items()
        for name, value in _medians(scores).items()
    }
    if model.average is not None:
        metrics["average"] = model.average
    tracked.log_metrics(0, metrics)
    sets = {
        (f"{each.manifest.facts['title']}/{split}", digest): each.uri
        for each in done
        for split, digest in each.manifest.inputs.items()
        if split != "model"
    }
    for (name, digest), uri in sets.items():
        tracked.log_dataset(name, digest, uri)
    for each in done:
        tracked.adopt(each.manifest.stage, each.folder, each.manifest.facts["mlflow_run_id"])
    for uri in files:
        tracked.log_artifact(uri)


def as_data(table: ScoreTable) -> dict[str, Any]:
    """Return the table as JSON values; scores are shares, not per cent."""
    return {
        "models": {
            model.name: {
                "average": model.average,
                "average_lacks": list(model.average_lacks),
                "tasks": {task: _task_data(scores) for task, scores in model.tasks.items()},
            }
            for model in table.models
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
                "by_seed": {str(seed): score for seed, score in metric.by_seed.items()},
                "worst_seed": metric.worst_seed,
                "constant_answer": metric.baseline,
            }
            for metric in scores.metrics
        },
    }


def _medians(scores: TaskScores) -> dict[str, float]:
    return {metric.name: metric.median for metric in scores.metrics}


def _provenance(done: Sequence[Finetuned]) -> dict[str, str]:
    models = sorted({each.manifest.inputs["model"][:12] for each in done})
    return {"Digest of what was fine-tuned": ", ".join(models)}


def _json(text: str, name: str, kind: type[Any]) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--{name} is not JSON ({error}): {text[:80]!r}") from error
    if not isinstance(value, kind) or (name == "finetunings" and not value):
        raise ConfigError(f"--{name} must be a JSON {kind.__name__}, not empty, got {text[:80]!r}")
    return value


if __name__ == "__main__":
    stage_main(run)
