"""The rule of the champion: a candidate becomes a version, and the best version is champion."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from albert_core.config import RegistrySettings
from albert_core.contract import storage
from albert_core.contract.manifest import Manifest, StagePlan, read_manifest
from albert_core.model_registry.model_versions import (
    CHAMPION,
    KEY_TAG,
    PREVIOUS,
    ServedCode,
    champion_of,
    create_name,
    find_version,
    fluent_uri,
    is_same,
    log_model,
    registry_errors,
)
from albert_core.model_registry.version_lineage import upload_lineage
from albert_core.tracking import experiment_id, open_client, tracking_uri

STAGE = "registration"
DIGEST_TAG = "model_digest"
_TASK_TAG, _SCORE_TAG = "task_digest", "score"

log = logging.getLogger(STAGE)

ChampionScore = Callable[[ModelVersion], float | None]
"""The present champion -> its score on the candidate's task, if that was measured anew."""


@dataclass(frozen=True)
class Candidate:
    """A model to register: what it is, how it scored, and where all of it came from."""

    name: str
    """Of the registered model."""
    model_folder: str
    digest: str
    """Of the model's files."""
    scores: Manifest
    """Of the fine-tuning."""
    task: str
    """A digest of what makes scores comparable."""
    lineage: dict[str, Manifest]
    """All manifests it was made of, by URI, the nearest first."""
    served: ServedCode

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version."""
        facts = self.scores.facts
        tags = {
            KEY_TAG: key,
            DIGEST_TAG: self.digest,
            _TASK_TAG: self.task,
            _SCORE_TAG: repr(facts["score"]),
            "task": str(facts["task"]),
            "metric": str(facts["metric"]),
            **{f"score.{name}": repr(value) for name, value in facts["scores"].items()},
        }
        for uri, manifest in self.lineage.items():
            for tag, value in (("lineage", manifest.key), ("manifest", uri)):
                name = f"{tag}.{manifest.stage}"
                tags[name] = f"{tags[name]}, {value}" if name in tags else value
        return tags


@dataclass(frozen=True)
class Decision:
    """Whether a version is champion, and why."""

    is_champion: bool
    reason: str
    champion_score: float | None
    """Of the champion there is now, on the candidate's task; None if unknown."""


def enter(
    plan: StagePlan,
    work: str,
    settings: RegistrySettings,
    candidate: Candidate,
    champion_score: ChampionScore,
) -> str:
    """Make a version of the candidate and perhaps champion, if not yet done; return the manifest.

    Args:
        plan: of the stage.
        work: folder for all results.
        settings: the rule.
        candidate: what to register.
        champion_score: what the champion is worth, where its tags do not say.

    Raises:
        RegistryError: the registry does not answer.
    """
    with registry_errors(work):
        client = open_client(work)
        done = plan.find(work)
        if done and (version := find_version(client, candidate.name, plan.key)):
            _keep_true(plan, work, client, version, read_manifest(done))
            return done
        version = find_version(client, candidate.name, plan.key) or _register(
            client, plan, work, candidate
        )
        decision = _decide(client, settings, candidate, version, champion_score)
        return _write(plan, work, client, version, decision)


def lineage_of(*uris: str) -> dict[str, Manifest]:
    """Return the manifests at ``uris`` and all before them, by URI, the nearest first."""
    found: dict[str, Manifest] = {}
    queue = list(uris)
    while queue:
        uri = storage.absolute(queue.pop(0))
        if uri not in found:
            found[uri] = read_manifest(uri)
            queue += found[uri].input_manifests.values()
    return found


def _decide(
    client: MlflowClient,
    settings: RegistrySettings,
    candidate: Candidate,
    version: ModelVersion,
    champion_score: ChampionScore,
) -> Decision:
    """Make ``version`` champion if the rule says so."""
    champion = champion_of(client, candidate.name)
    score: float = candidate.scores.facts["score"]
    if champion is not None and is_same(champion, version):
        return Decision(True, "it is the champion already", score)
    best = None if champion is None else _score_of(champion, candidate, champion_score)
    decision = _rule(candidate.scores.facts, champion, best, settings.min_score_gain)
    if decision.is_champion:
        if champion is not None:
            client.set_registered_model_alias(candidate.name, PREVIOUS, champion.version)
        client.set_registered_model_alias(candidate.name, CHAMPION, version.version)
    return decision


def _rule(
    facts: Mapping[str, Any], champion: ModelVersion | None, best: float | None, min_gain: float
) -> Decision:
    metric, score = facts["metric"], facts["score"]
    if champion is None:
        return Decision(True, f"the first champion, with {metric} {score:.3f}", score)
    if best is None:
        return Decision(
            False,
            f"the champion, version {champion.version}, was not scored on the same task data "
            "with the same settings: score it and give its manifest as champion_finetuning",
            None,
        )
    more = f" by more than {min_gain:g}" if min_gain else ""
    against = f"{metric} {score:.4f} against {best:.4f} of version {champion.version}"
    if score - best > min_gain:
        return Decision(True, f"better than the champion{more}: {against}", score)
    return Decision(False, f"not better than the champion{more}: {against}", best)


def _score_of(
    champion: ModelVersion, candidate: Candidate, champion_score: ChampionScore
) -> float | None:
    """Return the champion's score on the candidate's task, or None if there is none."""
    if (measured := champion_score(champion)) is not None:
        return measured
    is_comparable = champion.tags.get(_TASK_TAG) == candidate.task
    return float(champion.tags[_SCORE_TAG]) if is_comparable else None


def _write(
    plan: StagePlan, work: str, client: MlflowClient, version: ModelVersion, decision: Decision
) -> str:
    name = str(version.name)
    alias = CHAMPION if decision.is_champion else None
    log.info(
        "%s: %s, version %s, %s: %s",
        STAGE,
        name,
        version.version,
        f"alias {alias}" if alias else "no alias",
        decision.reason,
    )
    client.set_model_version_tag(name, version.version, "decision", decision.reason)
    return plan.write(
        work,
        shards=[],
        accounts=[],
        facts={
            "name": name,
            "version": str(version.version),
            "alias": alias,
            "reason": decision.reason,
            "model_uri": f"models:/{name}/{version.version}",
            "champion_score": decision.champion_score,
            "mlflow_run_id": version.run_id,
        },
    )


def _keep_true(
    plan: StagePlan, work: str, client: MlflowClient, version: ModelVersion, manifest: Manifest
) -> None:
    """Write the manifest again if the alias has moved since: it says what is, it decides nothing.

    A person may have moved it, and knows why.
    """
    champion = champion_of(client, str(version.name))
    is_champion = champion is not None and is_same(champion, version)
    if is_champion == (manifest.facts["alias"] == CHAMPION):
        return
    now = "none is" if champion is None else f"version {champion.version} is"
    reason = f"the alias was moved after the registration: now {now} champion"
    _write(plan, work, client, version, Decision(is_champion, reason, None))


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate
) -> ModelVersion:
    """Return a new version that holds the candidate."""
    name = candidate.name
    run_id = _open_run(client, plan, work, candidate)
    with fluent_uri(tracking_uri(work)), mlflow.start_run(run_id=run_id):
        upload_lineage(client, run_id, candidate.lineage)
        client.log_batch(run_id, metrics=_score_metrics(candidate.scores))
        model_uri = log_model(candidate.model_folder, candidate.served)
        create_name(client, name)
        return client.create_model_version(
            name,
            model_uri,
            run_id,
            tags=candidate.tags(plan.key),
            model_id=model_uri.partition("/")[2],
        )


def _open_run(client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate) -> str:
    """Return the MLflow run of the registration: that of a process that was killed, if any."""
    experiment, folder = experiment_id(client, work), plan.folder(work)
    unfinished = f"tags.stage_folder = '{folder}' and attributes.status != 'FINISHED'"
    for left in client.search_runs([experiment], unfinished, max_results=1):
        return str(left.info.run_id)
    created = client.create_run(
        experiment,
        run_name=f"registration-{candidate.name}",
        tags={"stage_folder": folder, DIGEST_TAG: candidate.digest},
    )
    return str(created.info.run_id)


def _score_metrics(scores: Manifest) -> list[mlflow.entities.Metric]:
    return [
        mlflow.entities.Metric(f"dev/{name}", value, 0, 0)
        for name, value in scores.facts["scores"].items()
    ]
