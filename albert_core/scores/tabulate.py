"""Stage: a model's fine-tunings on all tasks and seeds, and its pairs -> one table of scores.

It writes the table as data (scores.json), as a page and as a picture. In MLflow the table is a run,
and the fine-tunings are its children: a fine-tuning that two tables share is a child of the later
one.
"""

import json
from typing import Any

from albert_core.config import ScoringSettings
from albert_core.stage.command import stage_main
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import CONTAMINATION, SCORES, ZERO_SHOT, ContaminationResult


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
        model: name of the model in the table.
        finetunings: a JSON list of their manifests; it may be empty if there is ``zero_shot``.
        missing: a JSON object: why a task was not scored, by its name.
        contamination: manifest that says how much of each dev set the corpus has, if one does.
        zero_shot: manifest of the scores on minimal pairs, if there are any.
        work: folder for all results.

    Raises:
        ConfigError: there are no scores, they do not go together, or an argument is no such JSON.
        IntegrityError: a manifest or the predictions are missing.
    """
    plan = stage_plan(scoring, model, finetunings, missing, contamination, zero_shot)
    if found := plan.find(work):
        return found
    from albert_core.scores.table import write_table

    read = {uri: read_manifest(uri) for uri in plan.input_manifests.values()}
    overlaps = {}
    if contamination:
        searched = read[contamination].result_as(ContaminationResult)
        overlaps = {
            task: (share["dev"], searched.num_judged[task]["dev"])
            for task, share in searched.shares.items()
            if "dev" in share
        }
    return write_table(
        plan,
        work,
        scoring,
        model,
        done={uri: made for uri, made in read.items() if uri not in (contamination, zero_shot)},
        overlaps=overlaps,
        absent=plan.settings["missing"],
        pairs=read.get(zero_shot),
    )


def stage_plan(
    scoring: ScoringSettings,
    model: str,
    finetunings: str,
    missing: str,
    contamination: str,
    zero_shot: str,
) -> StagePlan:
    """Return what the table depends on."""
    uris = _json(finetunings, "finetunings", list)
    if not uris and not zero_shot:
        raise ConfigError(
            "--finetunings is empty, and there is no --zero-shot: there are no scores. Give the "
            "manifest of at least one fine-tuning, or of scores on minimal pairs."
        )
    read = {uri: read_manifest(uri) for uri in (*uris, contamination, zero_shot) if uri}
    names = {uri: f"finetuning-{read[uri].key}" for uri in uris}
    names |= {uri: name for name, uri in ((CONTAMINATION, contamination), (ZERO_SHOT, zero_shot))}
    return StagePlan(
        stage=SCORES,
        settings={
            "scoring": scoring.model_dump(),
            "model": model,
            "missing": _json(missing, "missing", dict),
        },
        inputs={
            names[uri]: made.content if uri in uris else made.key for uri, made in read.items()
        },
        code=code_digest(__name__),
        libraries=library_versions("matplotlib"),
        input_manifests={names[uri]: uri for uri in read},
    )


def _json(text: str, name: str, kind: type[Any]) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise ConfigError(f"--{name} must be a JSON {kind.__name__}, got {text[:80]!r}")
    return value


if __name__ == "__main__":
    stage_main(run)
