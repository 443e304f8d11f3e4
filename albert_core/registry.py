"""Finished models in MLflow's registry: register one, make it champion, look one up.

A version is self-contained: the model folder in Hugging Face's layout, and the one file of code
(`registered_model`) that `mlflow.pyfunc` runs. Its tags say what it was made of, down to the
corpus, and how it scored.
"""

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from albert_core.config import RegistrySettings
from albert_core.contract import storage
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import RegistryError
from albert_core.contract.manifest import (
    Manifest,
    StagePlan,
    digest_of,
    read_manifest,
)
from albert_core.contract.stage_command import stage_main
from albert_core.finetuning import model_digest
from albert_core.tracking import (
    TRACKING_URI,
    experiment_id,
    open_client,
    shown_tracking_uri,
    tracking_uri,
    upload,
)

STAGE = "registration"
CHAMPION, PREVIOUS = "champion", "previous"
"""Aliases: the model to use, and the one that was it before."""
REQUIREMENTS = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas")
SERVED_CODE = "albert_core.registered_model"

_MODEL_ARTIFACT = "model"  # registered_model.MODEL_ARTIFACT, which is not imported: it is data here
_DOWNLOADS = "registered_models"
_KEY_TAG, _DIGEST_TAG = "registration_key", "model_digest"
_TASK_TAG, _SCORE_TAG = "task_digest", "score"
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")

log = logging.getLogger(STAGE)


def run(
    registry: RegistrySettings,
    pretraining: str,
    finetuning: str,
    champion_finetuning: str = "",
    work: str = "work",
) -> str:
    """Register the model and make it champion if it is the best; return the manifest.

    Args:
        registry: settings.
        pretraining: manifest of the model.
        finetuning: manifest of its scores.
        champion_finetuning: manifest of the present champion's scores on the same task, if any.
        work: folder for all results.

    Raises:
        RegistryError: the scores are another model's, or the registry does not answer.
    """
    candidate = Candidate.read(pretraining, finetuning)
    plan = _plan(registry, candidate, work)
    with _registry_errors(work):
        client = open_client(work)
        done = plan.find(work)
        if done and (version := _find_version(client, registry.model_name, plan.key)):
            _keep_true(plan, work, client, version, read_manifest(done))
            return done
        version = _find_version(client, registry.model_name, plan.key) or _register(
            client, plan, work, candidate, registry.model_name
        )
        decision = _decide(client, registry, candidate, version, champion_finetuning)
        return _write(plan, work, client, version, decision)


def champion_folder(name: str, work: str) -> str | None:
    """Return the local folder of the champion of ``name``, or None if there is none.

    Raises:
        RegistryError: the registry does not answer, or the champion is no ALBERT of this project.
    """
    with _registry_errors(work):
        champion = _champion(open_client(work), name)
    return None if champion is None else model_folder_of(f"models:/{name}/{champion.version}", work)


def model_folder_of(model_uri: str, work: str) -> str:
    """Return the local folder, in Hugging Face's layout, of a registered model.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results; what must be downloaded is kept there.

    Raises:
        RegistryError: there is no such version, or it holds no such folder.
    """
    with _registry_errors(work):
        client = open_client(work)
        version = _version_at(client, model_uri, work)
        folder = _downloaded(client, version, work)
    if not (folder / "config.json").exists():
        raise RegistryError(
            f"{model_uri} holds no model folder in Hugging Face's layout: it was not registered "
            "by this project. Give one that was, or a folder."
        )
    return str(folder)


@dataclass(frozen=True)
class Candidate:
    """A model to register: what it is, how it scored, and where all of it came from."""

    model_folder: str
    digest: str
    """Of the model's files."""
    scores: Manifest
    """Of the fine-tuning."""
    lineage: dict[str, Manifest]
    """All manifests it was made of, by URI, the nearest first."""

    @classmethod
    def read(cls, pretraining: str, finetuning: str) -> "Candidate":
        """Return the model of one manifest with the scores of the other.

        Raises:
            IntegrityError: a manifest or a file is missing.
            RegistryError: the scores are another model's.
        """
        model, scores = read_manifest(pretraining), read_manifest(finetuning)
        folder = storage.join(pretraining.rpartition("/")[0], model.facts["model_folder"])
        digest = model_digest(folder)
        if scores.inputs.get("model") != digest:
            raise RegistryError(
                f"{finetuning} scores the model {str(scores.inputs.get('model'))[:12]}, but "
                f"{pretraining} is of the model {digest[:12]}. Fine-tune the model in {folder}."
            )
        return cls(folder, digest, scores, _lineage(pretraining, finetuning))

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version."""
        facts = self.scores.facts
        tags = {
            _KEY_TAG: key,
            _DIGEST_TAG: self.digest,
            _TASK_TAG: task_digest(self.scores),
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


def task_digest(scores: Manifest) -> str:
    """Return a digest of what makes scores comparable: the task's files and the settings."""
    files = {name: digest for name, digest in scores.inputs.items() if name != "model"}
    return digest_of([files, scores.settings])


def _plan(registry: RegistrySettings, candidate: Candidate, work: str) -> StagePlan:
    nearest = list(candidate.lineage.items())[:2]
    return StagePlan(
        stage=STAGE,
        settings={"registry": registry.model_dump()},
        inputs={
            **{manifest.stage: manifest.content for _, manifest in nearest},
            "task": task_digest(candidate.scores),
            "model": candidate.digest,
            "registry": digest_of(tracking_uri(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(SERVED_CODE)])[:16],
        libraries=library_versions(*REQUIREMENTS),
        input_manifests={manifest.stage: uri for uri, manifest in nearest},
    )


def _lineage(*uris: str) -> dict[str, Manifest]:
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
    registry: RegistrySettings,
    candidate: Candidate,
    version: ModelVersion,
    champion_finetuning: str,
) -> Decision:
    """Make ``version`` champion if the rule says so."""
    champion = _champion(client, registry.model_name)
    score: float = candidate.scores.facts["score"]
    if champion is not None and _is_same(champion, version):
        return Decision(True, "it is the champion already", score)
    best = None if champion is None else _score_of(champion, candidate, champion_finetuning)
    decision = _rule(candidate.scores.facts, champion, best, registry.min_score_gain)
    if decision.is_champion:
        if champion is not None:
            client.set_registered_model_alias(registry.model_name, PREVIOUS, champion.version)
        client.set_registered_model_alias(registry.model_name, CHAMPION, version.version)
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
    champion: ModelVersion, candidate: Candidate, champion_finetuning: str
) -> float | None:
    """Return the champion's score on the candidate's task, or None if there is none."""
    task = task_digest(candidate.scores)
    if champion_finetuning:
        scores = read_manifest(champion_finetuning)
        if task_digest(scores) == task and scores.inputs.get("model") == champion.tags.get(
            _DIGEST_TAG
        ):
            return float(scores.facts["score"])
    return float(champion.tags[_SCORE_TAG]) if champion.tags.get(_TASK_TAG) == task else None


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
    champion = _champion(client, str(version.name))
    is_champion = champion is not None and _is_same(champion, version)
    if is_champion == (manifest.facts["alias"] == CHAMPION):
        return
    now = "none is" if champion is None else f"version {champion.version} is"
    reason = f"the alias was moved after the registration: now {now} champion"
    _write(plan, work, client, version, Decision(is_champion, reason, None))


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate, name: str
) -> ModelVersion:
    """Return a new version of ``name`` that holds the candidate."""
    mlflow_run = client.create_run(
        experiment_id(client, work),
        run_name=f"registration-{name}",
        tags={"stage_folder": plan.folder(work), _DIGEST_TAG: candidate.digest},
    )
    run_id = mlflow_run.info.run_id
    with _fluent_uri(tracking_uri(work)), mlflow.start_run(run_id=run_id):
        for uri, manifest in candidate.lineage.items():
            upload(client, run_id, uri, f"lineage/{manifest.stage}-{manifest.key}")
        client.log_batch(run_id, metrics=_score_metrics(candidate.scores))
        model_uri = _log_model(candidate.model_folder)
        _create_name(client, name)
        return client.create_model_version(
            name,
            model_uri,
            run_id,
            tags=candidate.tags(plan.key),
            model_id=model_uri.partition("/")[2],
        )


def _create_name(client: MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _score_metrics(scores: Manifest) -> list[mlflow.entities.Metric]:
    return [
        mlflow.entities.Metric(f"dev/{name}", value, 0, 0)
        for name, value in scores.facts["scores"].items()
    ]


def _log_model(model_folder: str) -> str:
    """Log the model folder with the code that serves it to the active run; return its URI."""
    code = find_spec(SERVED_CODE)
    assert code is not None
    assert code.origin is not None
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import and on type hints
        import mlflow.pyfunc

        logged = mlflow.pyfunc.log_model(
            name="albert",
            python_model=code.origin,
            artifacts={_MODEL_ARTIFACT: str(_local_model(model_folder, scratch))},
            signature=_signature(),
            pip_requirements=_requirements(),
        )
    return str(logged.model_uri)


def _signature() -> ModelSignature:
    return ModelSignature(
        inputs=Schema([ColSpec("string", "text"), ColSpec("string", "text_b", required=False)]),
        params=ParamSchema(
            [ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]
        ),
    )


def _requirements() -> list[str]:
    """Return what the version needs, pinned; without "+cpu" and its like, which PyPI lacks."""
    versions = library_versions(*REQUIREMENTS)
    return [f"{name}=={version.partition('+')[0]}" for name, version in versions.items()]


def _local_model(model_folder: str, scratch: str) -> Path:
    """Return the model folder as a local one named "model", copied if it is elsewhere."""
    path = storage.local_path(model_folder)
    if path is not None and path.name == _MODEL_ARTIFACT:
        return path.absolute()
    fs, remote = storage.filesystem(model_folder)
    copy = Path(scratch, _MODEL_ARTIFACT)
    fs.get(f"{remote.rstrip('/')}/", f"{copy}/", recursive=True)
    return copy


def _find_version(client: MlflowClient, name: str, key: str) -> ModelVersion | None:
    """Return the version that was registered under ``key``, if it is there."""
    escaped = name.replace("'", "''")
    found = client.search_model_versions(f"name = '{escaped}' AND tags.{_KEY_TAG} = '{key}'")
    ready = [version for version in found if version.status == "READY"]
    if not ready:
        return None
    newest = max(ready, key=lambda version: int(version.version))
    return client.get_model_version(name, newest.version)


def _is_same(one: ModelVersion, other: ModelVersion) -> bool:
    return str(one.version) == str(other.version)  # a number from a database, text from a server


def _champion(client: MlflowClient, name: str) -> ModelVersion | None:
    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if error.error_code in _ABSENT:
            return None
        raise


def _version_at(client: MlflowClient, model_uri: str, work: str) -> ModelVersion:
    match = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri)
    if match is None:
        raise RegistryError(
            f"{model_uri!r} is no registered model: expected models:/<name>@<alias> or "
            "models:/<name>/<version>."
        )
    name, alias, version = match.groups()
    try:
        if alias:
            return client.get_model_version_by_alias(name, alias)
        return client.get_model_version(name, version)
    except MlflowException as error:
        if error.error_code not in _ABSENT:
            raise
        raise RegistryError(
            f"{model_uri} is not in the registry at {shown_tracking_uri(work)}. Register a model "
            f"under this name first, or set {TRACKING_URI} to the registry that has it."
        ) from None


def _downloaded(client: MlflowClient, version: ModelVersion, work: str) -> Path:
    """Return the local model folder of ``version``: where it lies, or a copy in ``work``."""
    source = client.get_model_version_download_uri(version.name, version.version)
    if (local := _local_source(client, source)) is not None:
        return local
    kept = storage.local_path(work) or Path(tempfile.gettempdir())
    target = kept / _DOWNLOADS / digest_of([source, version.name, version.version])[:16]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            with _fluent_uri(tracking_uri(work)):
                found = mlflow.artifacts.download_artifacts(
                    artifact_uri=f"models:/{version.name}/{version.version}", dst_path=scratch
                )
            Path(found).replace(target)
    return target / "artifacts" / _MODEL_ARTIFACT


def _local_source(client: MlflowClient, source: str) -> Path | None:
    if source.startswith("models:/"):
        source = client.get_logged_model(source.removeprefix("models:/")).artifact_location
    path = storage.local_path(source) if "://" not in source or source.startswith("file:") else None
    return path / "artifacts" / _MODEL_ARTIFACT if path is not None and path.exists() else None


@contextmanager
def _fluent_uri(uri: str) -> Iterator[None]:
    """Point MLflow's global functions at ``uri``, and back at what the environment says."""
    before = os.environ.get(TRACKING_URI)
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri("")
        os.environ.pop(TRACKING_URI, None)
        if before is not None:
            os.environ[TRACKING_URI] = before


@contextmanager
def _registry_errors(work: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        raise RegistryError(
            f"the registry at {shown_tracking_uri(work)} refuses or does not answer: {error}. "
            f"Check {TRACKING_URI} and that its server runs."
        ) from error


if __name__ == "__main__":
    stage_main(run)
