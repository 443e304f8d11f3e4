"""A candidate becomes a version; the gate says whether it becomes champion; all of it is kept."""

import json
import logging
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array, Map
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import check_model
from albert_core.registry import candidate as candidates
from albert_core.registry import versions
from albert_core.registry.candidate import Candidate
from albert_core.registry.gate import ByTask, Decision, first_gate, gate
from albert_core.registry.versions import DECISION_TAG, MOVED_TAG, RegisteredVersion
from albert_core.stage import errors, lineage, results, storage
from albert_core.stage.manifest import StagePlan, read_manifest, sha256_of
from albert_core.stage.provenance import reachable_sources
from albert_core.tracking import run, server
from albert_core.tracking.journal import ServerUnavailableError, send_left

_VERDICT_TAG, _AGAINST_TAG = f"{DECISION_TAG}.verdict", f"{DECISION_TAG}.against"
_PARTS = ("difference", "lower_bound", "tasks")
_PROMOTED = ("first", "promoted")
SHA256 = "sha256"
"""In the configuration of what MLflow serves: the digest of each file of the model, by its name."""
_OPTIONAL = ("text_b", "start", "end", "score", "no_answer_probability")
_TEXTS = {"text": "string", "text_b": "string"}
_Columns = Mapping[str, str | Array | Map]
_COLUMNS: dict[str, tuple[_Columns, _Columns]] = {
    "pretrained": (
        _TEXTS,
        {"row": "long", "mask": "long", "piece": "string", "probability": "double"},
    ),
    "classification": (
        _TEXTS,
        {"label": "string", "probability": "double", "probabilities": Map(DataType.double)},
    ),
    "regression": (_TEXTS, {"value": "double"}),
    "choice": (
        {"article": "string", "question": "string", "options": Array(DataType.string)},
        {
            "option": "string",
            "index": "long",
            "probability": "double",
            "probabilities": Array(DataType.double),
        },
    ),
    "spans": (
        {"question": "string", "context": "string"},
        {"answer": "string", "start": "long", "end": "long"}
        | {"score": "double", "no_answer_probability": "double"},
    ),
}
"""Kind of model -> the columns that it takes and returns, as `served_model.py` and
`FinetunedModel.predict` say."""

log = logging.getLogger(lineage.REGISTRATION)


def signature_of(kind: str) -> ModelSignature:
    """Return what a version of this kind of model, "pretrained" or a task's, takes and returns."""
    inputs, outputs = (
        Schema([ColSpec(of, name, required=name not in _OPTIONAL) for name, of in columns.items()])
        for columns in _COLUMNS[kind]
    )
    if kind != "pretrained":
        return ModelSignature(inputs, outputs)
    params = [ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]
    return ModelSignature(inputs, outputs, ParamSchema(params))


def enter(
    plan: StagePlan,
    work: str,
    settings: RegistrySettings,
    candidate: Candidate,
    champion_scores: str = "",
) -> str:
    """Make a version of the candidate and perhaps champion, if not yet done; return the manifest.

    What was decided is not decided again, whatever is champion by then, unless the candidate could
    not be compared. A person may have moved the alias since, or a better model came: then the
    manifest is written again, and says so.

    Args:
        plan: of the stage; its libraries are those that the version needs.
        work: folder for all results.
        settings: of the gate.
        candidate: what to register.
        champion_scores: manifest of the champion's scores; empty: those it was registered with.

    Raises:
        IntegrityError: the model changed after it was written.
        RegistryError: the registry does not answer.
    """
    with versions.open_registry(work) as client:
        done, version = plan.find(work), versions.find_version(client, candidate.name, plan.key)
        if version is None:
            version = _register(client, plan, work, candidate)
        with versions.promotion_lock(client, candidate.name):
            decision, against = _decide(client, settings, candidate, version, champion_scores)
            champion = versions.champion_of(client, candidate.name)
        is_champion = champion is not None and champion.version == version.version
        reason = decision.reason
        if is_champion != decision.is_promoted:
            now = f"version {champion.version} is" if champion else "none is"
            reason += f"; the alias was moved after the registration: now {now} champion"
        log.info("%s: %s: %s, %s", lineage.REGISTRATION, version.uri, decision.verdict, reason)
        result = results.RegistrationResult(
            name=version.name,
            version=version.version,
            alias=versions.CHAMPION if is_champion else None,
            **(vars(decision) | {"reason": reason}),
            against=against,
            model_uri=version.uri,
            mlflow_run_id=version.mlflow_run_id,
        )
    if done and read_manifest(done).result_as(results.RegistrationResult) == result:
        return done
    return plan.write(work, [], [], result)


def _decide(
    client: MlflowClient,
    settings: RegistrySettings,
    candidate: Candidate,
    version: RegisteredVersion,
    champion_scores: str,
) -> tuple[Decision, str]:
    """Make ``version`` champion if the gate says so, and keep the decision with it.

    The verdict is written last: without it, another process was killed on the way. The lock must
    be held: of several that set an alias which nobody has yet, MLflow refuses all but one.

    Returns:
        The decision, and the number of the version that it was compared with, if any.
    """
    name, number, tags = version.name, version.version, version.tags
    against, verdict = tags.get(_AGAINST_TAG, ""), tags.get(_VERDICT_TAG, "undecided")
    if verdict != "undecided":
        return _kept(verdict, tags), against
    champion = versions.champion_of(client, name)
    newer = versions.version_with(client, name, versions.CANDIDATE)
    if champion is not None and champion.version == number:  # a process that was killed made it so
        decision = _kept("promoted" if against else "first", tags)
        versions.make_champion(client, version)
    else:
        if newer is None or int(newer.version) < int(number):
            versions.make_candidate(client, version)
        decision, against = _compared(client, settings, candidate, champion_scores)
        client.update_model_version(name, number, candidate.page(version.uri, decision))
        for tag, value in decision_tags(decision, against).items():
            client.set_model_version_tag(name, number, tag, value)
        if decision.is_promoted:
            versions.make_champion(client, version)
    client.set_model_version_tag(name, number, _VERDICT_TAG, decision.verdict)
    return decision, against


def decision_tags(decision: Decision, against: str) -> dict[str, str]:
    """Return what is kept with the version, except the verdict, which is written last."""
    tasks = [task.model_dump() for task in decision.tasks]
    parts = (decision.difference, decision.lower_bound, tasks)
    kept = {
        f"{DECISION_TAG}.{name}": json.dumps(part) for name, part in zip(_PARTS, parts, strict=True)
    }
    return kept | {DECISION_TAG: decision.reason, _AGAINST_TAG: against}


def _kept(verdict: str, tags: Mapping[str, str]) -> Decision:
    """Return the decision that `decision_tags` has kept."""
    parts = (json.loads(tags.get(f"{DECISION_TAG}.{name}", "null")) for name in _PARTS)
    difference, lower_bound, tasks = parts
    return Decision(
        verdict=cast(results.Verdict, verdict),
        reason=tags.get(DECISION_TAG, "it is the champion already"),
        difference=difference,
        lower_bound=lower_bound,
        tasks=tuple(results.TaskDifference(**task) for task in tasks or ()),
    )


def _compared(
    client: MlflowClient, settings: RegistrySettings, candidate: Candidate, champion_scores: str
) -> tuple[Decision, str]:
    """Return what the gate says, and the number of the version that it compared with, if any."""
    while True:
        champion = versions.champion_of(client, candidate.name)
        # If somebody deleted the champion, the one before it still counts.
        against = champion or versions.version_with(client, candidate.name, versions.PREVIOUS)
        if against is None:
            decision = first_gate(settings, candidate.measured, candidate.over_seeds)
        else:
            theirs = _champion_measured(client, against, champion_scores)
            earlier = [
                candidates.read_measured(client, version)
                for version in versions.versions_of(client, candidate.name)
                if version.version != against.version
                and (version.tags.get(_VERDICT_TAG) in _PROMOTED or MOVED_TAG in version.tags)
            ]
            decision = gate(settings, candidate.measured, theirs, candidate.over_seeds, earlier)
        now = versions.champion_of(client, candidate.name)
        if (now and now.version) == (champion and champion.version):
            return decision, against.version if against else ""
        # It took so long that another process took its turn.


def _champion_measured(client: MlflowClient, champion: RegisteredVersion, scores: str) -> ByTask:
    if scores:
        try:
            return candidates.read_scores(scores, champion.tags.get(server.DIGEST_TAG, ""))
        except errors.RegistryError as error:
            log.warning("%s: the champion changed meanwhile: %s", lineage.REGISTRATION, error)
    return candidates.read_measured(client, champion)


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate
) -> RegisteredVersion:
    """Return a new version that holds the candidate, as an output of the run that trained it."""
    name, output = candidate.name, candidate.output
    check_model(output.folder, output.digest)
    run_id = _source_run(client, plan, work, candidate)
    model = server.log_output(client, run_id, output, plan.key)
    with tempfile.TemporaryDirectory() as scratch:
        files = _model_files(candidate, plan.libraries, Path(scratch), run_id, model.model_id)
        versions.write_lineage(candidate.lineage, files / versions.LINEAGE)
        candidates.write_measured(candidate.measured, files)
        client.set_logged_model_tags(model.model_id, {server.REGISTRATION_TAG: plan.key})
        client.log_model_artifacts(model.model_id, str(files))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_batch(run_id, metrics=list(_scores(candidate, model.model_id)))
    try:
        client.create_registered_model(name, description=candidates.model_page(name))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    about = {tag: model.tags[tag] for tag in ("recipe", "text") if tag in model.tags}
    tags = candidate.tags(plan.key) | about
    with _fluent_uri(storage.tracking_uri(work)):
        made = client.create_model_version(
            name, model.model_uri, run_id, tags=tags, model_id=model.model_id
        )
    named = json.dumps([{"name": name, "version": str(made.version)}])
    client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: named})
    version = versions.numbered_version(client, name, str(made.version))
    assert version is not None
    return version


def _scores(candidate: Candidate, model_id: str) -> Iterator[Metric]:
    """Yield how the candidate does, at its step and on the dev sets that it was scored on."""
    now, step = int(time.time() * 1000), candidate.output.step
    data = {}
    for result in candidate.lineage.of_stage(lineage.FINETUNING):
        tuned = result.manifest.result_as(results.FinetuningResult)
        data[tuned.task] = server.data_set(f"{tuned.title}/dev", result.manifest.inputs["dev"])
    for task, each in candidate.measured.items():
        yield Metric(f"dev/{task}", each.score, now, step, model_id, *data.get(task, (None, None)))
    if candidate.score is not None:
        yield Metric("score", candidate.score, now, step, model_id)


def _source_run(client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate) -> str:
    """Return the run that trained the candidate; one made for it if the server knows none."""
    trained = candidate.trained.rpartition("/")[0]
    with suppress(ServerUnavailableError):
        deque(send_left(work, trained), maxlen=0)  # what was logged while the server was away
    noted = read_manifest(candidate.trained).result.get("mlflow_run_id")
    for run_id in filter(None, (server.known_run_id(trained), noted)):
        with versions.suppress_absent():
            if client.get_run(run_id).info.lifecycle_stage == "active":
                return str(run_id)
    experiment, folder = server.experiment_id(client, work), plan.folder(work)
    for left in client.search_runs([experiment], f"tags.stage_folder = '{folder}'", max_results=1):
        return str(left.info.run_id)
    name = run.run_name(lineage.REGISTRATION, {"model": candidate.name}, plan.key)
    made = client.create_run(experiment, run_name=name, tags={"stage_folder": folder})
    client.set_terminated(made.info.run_id)
    return str(made.info.run_id)


@contextmanager
def _fluent_uri(uri: str) -> Iterator[None]:
    """Point MLflow's global functions at ``uri``, and back at what the environment says."""
    before = os.environ.get(storage.TRACKING_URI)
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri("")
        os.environ.pop(storage.TRACKING_URI, None)
        if before is not None:
            os.environ[storage.TRACKING_URI] = before


def _model_files(
    candidate: Candidate, libraries: Mapping[str, str], scratch: Path, run_id: str, model_id: str
) -> Path:
    """Write what MLflow gets to ``scratch``: the model, the code that serves it, both flavours."""
    code = find_spec(candidate.served_by)
    assert code is not None
    assert code.origin is not None
    files = scratch / "files"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import and on type hints
        import mlflow.pyfunc

        folder = server.local_copy(candidate.output.folder, str(scratch))
        mlflow.pyfunc.save_model(
            str(files),
            model_config={SHA256: {path.name: sha256_of(str(path)) for path in folder.iterdir()}},
            mlflow_model=Model(run_id=run_id, model_id=model_id),
            python_model=code.origin,
            artifacts={server.MODEL_ARTIFACT: str(folder)},
            code_paths=_copied_code(candidate.served_by, scratch / "code"),
            signature=candidate.signature,
            input_example=candidate.example,
            pip_requirements=[  # without "+cpu" and its like, which PyPI lacks
                f"{library}=={version.partition('+')[0]}"
                for library, version in libraries.items()
                if library != "python"
            ],
        )
    server.add_transformers(files)
    return files


def _copied_code(module: str, folder: Path) -> list[str] | None:
    """Write all that ``module`` reaches below ``folder``; return the packages' folders, if any."""
    sources = {name: text for name, text in reachable_sources(module).items() if name != module}
    for package in {name.rpartition(".")[0] for name in sources} - {""}:
        sources.setdefault(package, "")
    for name, source in sources.items():
        is_package = any(other.startswith(f"{name}.") for other in sources)
        place = folder.joinpath(*name.split("."))
        path = place / "__init__.py" if is_package else place.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return sorted(str(path) for path in folder.iterdir()) if sources else None
