"""A candidate becomes a version; the gate says whether it becomes champion; all of it is kept.

Only one process at a time decides who is champion of a registered model. MLflow has no lock, so
this one is made of tags. Each process that wants to decide writes a claim under a key of its own
and then reads all claims. A process that finds only its own claim goes on. Of several, the first by
key waits, and the others withdraw and try again. Two processes cannot both find themselves alone:
of two claims, the second one is written before its writer reads, so its writer finds the first.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import cast
from uuid import uuid4

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.config import RegistrySettings
from albert_core.registry.gate import Decision, Measured, Verdict, gate
from albert_core.registry.measured import ARTIFACT, write_measured
from albert_core.registry.version_lineage import upload_lineage
from albert_core.registry.versions import (
    CANDIDATE,
    CHAMPION,
    KEY_TAG,
    PREVIOUS,
    RIGHT,
    THREADS_TAG,
    ServedCode,
    champion_of,
    check_is_right,
    create_name,
    find_version,
    fluent_uri,
    is_same,
    log_model,
    make_candidate,
    make_champion,
    registry_errors,
    version_with,
)
from albert_core.stage import storage
from albert_core.stage.environment import tracking_uri
from albert_core.stage.lineage import REGISTRATION
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest
from albert_core.tracking.server import experiment_id, open_client

CLAIM = "promotion_claim."
"""What the key of a claim's tag begins with."""
STALE_SECONDS = 90.0
"""A claim that stays as it is for so long is a dead process's: who waits renews his own, and what
is done under one takes seconds."""
_WAIT_SECONDS = 0.25

log = logging.getLogger(__name__)


@contextmanager
def promotion_lock(
    client: MlflowClient, name: str, stale_seconds: float = STALE_SECONDS
) -> Iterator[None]:
    """Wait until no other process decides about the registered model ``name``; then hold it off.

    Args:
        client: of the registry.
        name: of the registered model, which exists.
        stale_seconds: how long another's claim may stand before it is removed.
    """
    own = CLAIM + uuid4().hex
    first_seen: dict[tuple[str, str], float] = {}
    try:
        while not _is_alone(client, name, own, first_seen, stale_seconds):
            time.sleep(_WAIT_SECONDS)
        yield
    finally:
        _withdraw(client, name, own)


def _is_alone(
    client: MlflowClient,
    name: str,
    own: str,
    first_seen: dict[tuple[str, str], float],
    stale_seconds: float,
) -> bool:
    """Write the claim ``own``; return whether it is the only one, and withdraw it if it must."""
    client.set_registered_model_tag(name, own, uuid4().hex)
    now = time.monotonic()
    tags = client.get_registered_model(name).tags
    others = {key for key in tags if key.startswith(CLAIM)} - {own}
    for key in others:
        if now - first_seen.setdefault((key, tags[key]), now) > stale_seconds:
            log.warning("%s: removed the claim of a process that is gone", name)
            _withdraw(client, name, key)
    if others and min(others) < own:
        _withdraw(client, name, own)
    return not others


def _withdraw(client: MlflowClient, name: str, key: str) -> None:
    try:
        client.delete_registered_model_tag(name, key)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise


STAGE = REGISTRATION
DIGEST_TAG = "model_digest"
DECISION_TAG = "decision"
"""The sentence; what stands after a point in the names of others is a part of the decision."""
_VERDICT_TAG, _AGAINST_TAG = f"{DECISION_TAG}.verdict", f"{DECISION_TAG}.against"


ChampionMeasured = Callable[[MlflowClient, ModelVersion], Mapping[str, Measured]]
"""The present champion -> how it does on the candidate's tasks; empty if that is not known."""


@dataclass(frozen=True)
class Candidate:
    """A model to register: what it is, how it does, and where all of it came from."""

    name: str
    """Of the registered model."""
    model_folder: str
    digest: str
    """Of the model's files."""
    measured: Mapping[str, Measured]
    """By the tasks' names."""
    over_seeds: bool
    """See `gate`."""
    lineage: dict[str, Manifest]
    """All manifests it was made of, by URI, the nearest first."""
    served: ServedCode

    @property
    def score(self) -> float:
        """The mean over the tasks."""
        return mean(task.score for task in self.measured.values())

    def description(self, version: str, decision: Decision) -> str:
        """Return what the registry's page says of its version, as Markdown."""
        scores = ", ".join(f"{task} {each.score:.4f}" for task, each in self.measured.items())
        return (
            f"On dev: {scores}.\n\n"
            f"The gate: {decision.verdict}, {decision.reason}.\n\n"
            f"What it was made of: `albert lineage models:/{self.name}/{version}`"
        )

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version."""
        tags = {
            KEY_TAG: key,
            DIGEST_TAG: self.digest,
            THREADS_TAG: RIGHT,  # `log_model` takes no other code
            "score": repr(self.score),
            **{f"score.{name}": repr(task.score) for name, task in self.measured.items()},
        }
        for uri, manifest in self.lineage.items():
            for tag, value in (("lineage", manifest.key), ("manifest", uri)):
                name = f"{tag}.{manifest.stage}"
                tags[name] = f"{tags[name]}, {value}" if name in tags else value
        return tags


def enter(
    plan: StagePlan,
    work: str,
    settings: RegistrySettings,
    candidate: Candidate,
    champion_measured: ChampionMeasured,
) -> str:
    """Make a version of the candidate and perhaps champion, if not yet done; return the manifest.

    What was decided once is not decided again, whatever is champion by then; only a candidate
    that could not be compared is.

    Args:
        plan: of the stage.
        work: folder for all results.
        settings: of the gate.
        candidate: what to register.
        champion_measured: how the champion does.

    Raises:
        RegistryError: the registry does not answer, or the code to serve it with is wrong for
            several threads.
    """
    with registry_errors(work):
        client = open_client(work)
        done, version = plan.find(work), find_version(client, candidate.name, plan.key)
        if done and version and read_manifest(done).facts["verdict"] != "undecided":
            _keep_true(plan, work, client, version, read_manifest(done))
            return done
        if version is None:
            version = _register(client, plan, work, candidate)
        elif not done:
            _finish_registration(client, version)
        with promotion_lock(client, candidate.name):
            decision = _decide(client, settings, candidate, version, champion_measured)
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
    champion_measured: ChampionMeasured,
) -> Decision:
    """Make ``version`` champion if the gate says so, and keep the decision with it."""
    name, number = candidate.name, str(version.version)
    before = cast(Verdict, version.tags.get(_VERDICT_TAG, "undecided"))
    if before != "undecided":
        return Decision(before, version.tags[DECISION_TAG])
    check_is_right(client, version)
    champion = champion_of(client, name)
    if champion is not None and is_same(champion, version):  # made so by a process killed then
        verdict: Verdict = "promoted" if version.tags.get(_AGAINST_TAG) else "first"
        decision = Decision(verdict, version.tags.get(DECISION_TAG, "it is the champion already"))
        make_champion(client, version)
    else:
        decision, against = _compared(client, settings, candidate, champion, champion_measured)
        about = candidate.description(number, decision)
        client.update_model_version(name, number, about)
        for tag, value in decision_tags(decision, against).items():
            client.set_model_version_tag(name, number, tag, value)
        if decision.is_promoted:
            make_champion(client, version)
    client.set_model_version_tag(name, number, _VERDICT_TAG, decision.verdict)
    return decision


def _compared(
    client: MlflowClient,
    settings: RegistrySettings,
    candidate: Candidate,
    champion: ModelVersion | None,
    champion_measured: ChampionMeasured,
) -> tuple[Decision, str]:
    """Return what the gate says, and the number of the version that it compared with, if any."""
    while True:
        # Without a champion, if somebody deleted it, the one before it still counts.
        against = champion or version_with(client, candidate.name, PREVIOUS)
        if against is None:
            decision = Decision("first", f"the first champion: its score is {candidate.score:.4f}")
        else:
            theirs = champion_measured(client, against)
            decision = gate(settings, candidate.measured, theirs, candidate.over_seeds)
        now = champion_of(client, candidate.name)
        if _number(now) == _number(champion):
            return decision, _number(against)
        champion = now  # this took so long that another process took its turn


def _number(version: ModelVersion | None) -> str:
    return "" if version is None else str(version.version)


def decision_tags(decision: Decision, against: str) -> dict[str, str]:
    """Return what is kept with the version but the verdict: that comes last, once all is done."""
    facts = decision.facts()
    return {
        DECISION_TAG: decision.reason,
        _AGAINST_TAG: against,
        f"{DECISION_TAG}.difference": json.dumps(facts["difference"]),
        f"{DECISION_TAG}.lower_bound": json.dumps(facts["lower_bound"]),
        f"{DECISION_TAG}.tasks": json.dumps(facts["tasks"]),
    }


def _write(
    plan: StagePlan, work: str, client: MlflowClient, version: ModelVersion, decision: Decision
) -> str:
    name, champion = str(version.name), champion_of(client, str(version.name))
    alias = CHAMPION if champion is not None and is_same(champion, version) else None
    log.info(
        "%s: %s, version %s, %s: %s",
        STAGE,
        name,
        version.version,
        decision.verdict,
        decision.reason,
    )
    return plan.write(
        work,
        shards=[],
        accounts=[],
        facts={
            "name": name,
            "version": str(version.version),
            "alias": alias,
            **decision.facts(),
            "against": client.get_model_version(name, str(version.version)).tags[_AGAINST_TAG],
            "model_uri": f"models:/{name}/{version.version}",
            "mlflow_run_id": version.run_id,
        },
    )


def _keep_true(
    plan: StagePlan, work: str, client: MlflowClient, version: ModelVersion, manifest: Manifest
) -> None:
    """Write the manifest again if the alias has moved since: it says what is, it decides nothing.

    A person may have moved it, and knows why; or a better model came.
    """
    champion = champion_of(client, str(version.name))
    is_champion = champion is not None and is_same(champion, version)
    if is_champion == (manifest.facts["alias"] == CHAMPION):
        return
    now = "none is" if champion is None else f"version {champion.version} is"
    moved = {
        "alias": CHAMPION if is_champion else None,
        "reason": f"the alias was moved after the registration: now {now} champion",
    }
    log.info("%s: %s", STAGE, moved["reason"])
    plan.write(work, shards=[], accounts=[], facts=manifest.facts | moved)


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate
) -> ModelVersion:
    """Return a new version that holds the candidate."""
    name = candidate.name
    run_id = _open_run(client, plan, work, candidate)
    with fluent_uri(tracking_uri(work)), mlflow.start_run(run_id=run_id):
        upload_lineage(client, run_id, candidate.lineage)
        _keep_measured(client, run_id, candidate.measured)
        model_uri = log_model(candidate.model_folder, candidate.served)
        create_name(client, name)
        version = client.create_model_version(
            name,
            model_uri,
            run_id,
            tags=candidate.tags(plan.key),
            model_id=model_uri.partition("/")[2],
        )
    make_candidate(client, version)
    return version


def _finish_registration(client: MlflowClient, version: ModelVersion) -> None:
    """Do what `_register` does last, for a process that was killed before that."""
    client.set_terminated(str(version.run_id))
    newer = version_with(client, str(version.name), CANDIDATE)
    champion = champion_of(client, str(version.name))
    if champion is not None and is_same(champion, version):
        return
    if newer is None or int(newer.version) < int(version.version):
        make_candidate(client, version)


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


def _keep_measured(client: MlflowClient, run_id: str, measured: Mapping[str, Measured]) -> None:
    """Log how the candidate does: as numbers, and as what later candidates are compared with."""
    points = [
        mlflow.entities.Metric(f"dev/{task}", each.score, 0, 0) for task, each in measured.items()
    ]
    client.log_batch(run_id, metrics=points)
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Path(scratch, ARTIFACT))
        write_measured(measured, path)
        client.log_artifact(run_id, path)
