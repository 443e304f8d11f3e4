"""Stage: a model's fine-tunings on all tasks and seeds, and its pairs -> one table of scores.

It writes the table as data (scores.json), as Markdown, as a page and as a picture. In MLflow the
table is a run, and the fine-tunings are its children: a fine-tuning that two tables share is a
child of the later one.
"""

import json
from typing import Any

from albert_core.config import ScoringSettings
from albert_core.stage.command import stage_main
from albert_core.stage.errors import ConfigError
from albert_core.stage.lineage import ZERO_SHOT
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import ContaminationResult

STAGE = "scores"
_DEV = "dev"


def run(
    scoring: ScoringSettings,
    model: str,
    finetunings: str,
    missing: str = "{}",
    contamination: str = "",
    zero_shot: str = "",
    work: str = "work",
) -> str:
    """Lay the scores of a model out as one table; return the manifest.

    Args:
        scoring: settings.
        model: what the table calls the model.
        finetunings: a JSON list of their manifests; it may be empty if there is ``zero_shot``.
        missing: a JSON object: why a task was not scored, by its name.
        contamination: manifest that says how much of each dev set the corpus has, if one does.
        zero_shot: manifest of the scores on minimal pairs, if there are any.
        work: folder for all results.

    Raises:
        ConfigError: there are no scores, they do not go together, or an argument is no such JSON.
        IntegrityError: a manifest or the predictions are missing.
    """
    done, absent = _read(finetunings, zero_shot), _json(missing, "missing", dict)
    plan = _plan(scoring, model, done, absent, contamination, zero_shot)
    if found := plan.find(work):
        return found
    from albert_core.scores.written import write_table

    pairs = read_manifest(zero_shot) if zero_shot else None
    return write_table(plan, work, scoring, model, done, _overlaps(contamination), absent, pairs)


def find_done(
    scoring: ScoringSettings,
    model: str,
    finetunings: str,
    missing: str,
    contamination: str,
    zero_shot: str,
    work: str,
) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    absent = _json(missing, "missing", dict)
    done = _read(finetunings, zero_shot)
    return _plan(scoring, model, done, absent, contamination, zero_shot).done(work)


def _read(finetunings: str, zero_shot: str) -> dict[str, Manifest]:
    uris = _json(finetunings, "finetunings", list)
    if not uris and not zero_shot:
        raise ConfigError(
            "--finetunings is empty, and there is no --zero-shot: there are no scores. Give the "
            "manifest of at least one fine-tuning, or of scores on minimal pairs."
        )
    return {uri: read_manifest(uri) for uri in uris}


def _plan(
    scoring: ScoringSettings,
    model: str,
    done: dict[str, Manifest],
    absent: dict[str, str],
    contamination: str,
    zero_shot: str,
) -> StagePlan:
    inputs = {f"finetuning-{manifest.key}": manifest.content for manifest in done.values()}
    manifests = {f"finetuning-{manifest.key}": uri for uri, manifest in done.items()}
    if contamination:
        inputs["contamination"] = read_manifest(contamination).key
        manifests["contamination"] = contamination
    if zero_shot:
        inputs[ZERO_SHOT] = read_manifest(zero_shot).key
        manifests[ZERO_SHOT] = zero_shot
    return StagePlan(
        stage=STAGE,
        settings={"scoring": scoring.model_dump(), "model": model, "missing": absent},
        inputs=inputs,
        code=code_digest(__name__),
        libraries=library_versions("matplotlib"),
        input_manifests=manifests,
    )


def _overlaps(contamination: str) -> dict[str, float]:
    """Return the share of each task's dev examples that the corpus has, by the task's name."""
    if not contamination:
        return {}
    shares = read_manifest(contamination).result_as(ContaminationResult).shares
    return {task: splits[_DEV] for task, splits in shares.items() if _DEV in splits}


def _json(text: str, name: str, kind: type[Any]) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--{name} is not JSON ({error}): {text[:80]!r}") from error
    if not isinstance(value, kind):
        raise ConfigError(f"--{name} must be a JSON {kind.__name__}, got {text[:80]!r}")
    return value


if __name__ == "__main__":
    stage_main(run)
