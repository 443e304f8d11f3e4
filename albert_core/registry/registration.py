"""Register a candidate, ask the gate whether it becomes champion, and keep the decision."""

import json
import logging
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.models import Model
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from albert_core.conversion.model_files import check_model
from albert_core.registry import version_files, versions
from albert_core.registry.candidate import Candidate
from albert_core.registry.gate import ByTask, Measured, first_gate, gate
from albert_core.registry.measured import read_measured, read_scores, write_measured
from albert_core.registry.versions import DECISION_TAG, RegisteredVersion
from albert_core.stage import errors, results, servers, storage
from albert_core.stage.manifest import StagePlan, read_manifest, sha256_of
from albert_core.stage.provenance import reachable_sources
from albert_core.tracking import server
from albert_core.tracking.journal import send_left
from albert_core.tracking.run import run_name

OBJECTIVE = "objective"
"""Field of the configuration of a served model: what it learned from pairs, None for a fine-tuned
one."""
_AGAINST_TAG = f"{DECISION_TAG}.against"
_PARTS = ("difference", "lower_bound", "tasks")

log = logging.getLogger(results.REGISTRATION)


def _model_page(name: str) -> str:
    """Return the text of a registered model's page, as Markdown."""
    return (
        "A version is a model that was trained and scored; its page says what it was made of, and "
        "its source run is the training. The alias `champion` is the best one so far, `previous` "
        "the champion before, `candidate` the newest that is not champion.\n\n"
        f'`mlflow.pyfunc.load_model("models:/{name}@champion")` serves it, '
        f'`mlflow.transformers.load_model("models:/{name}@champion")` is its pipeline.'
    )


def enter(plan: StagePlan, work: str, candidate: Candidate) -> str:
    """Register the candidate and make it champion if the gate says so; return the manifest.

    A decision is final, whatever is champion by now, unless the candidate could not be compared. If
    a person or a better model moved the alias since, the manifest is written again, and says so.

    Args:
        plan: plan of the stage; its libraries are those that the version needs.
        work: folder for all results.
        candidate: the model to register.

    Raises:
        IntegrityError: the model changed after it was written.
        RegistryError: the registry does not answer.
    """
    with versions.open_registry(work, creates=True) as client:
        done = plan.find(work)
        version = version_files.find_version(client, candidate.name, plan.key)
        version = version or _register(client, plan, work, candidate)
        with versions.promotion_lock(client, candidate.name) as check:
            decision = _decide(client, candidate, version, check)
            champion = versions.champion_of(client, candidate.name)
        is_champion = champion is not None and champion.version == version.version
        reason = decision.reason
        if is_champion != decision.is_promoted:
            now = f"version {champion.version} is" if champion else "none is"
            reason += f"; the alias was moved after the registration: now {now} champion"
        log.info("%s: %s: %s, %s", results.REGISTRATION, version.uri, decision.verdict, reason)
        result = results.RegistrationResult(
            name=version.name,
            version=version.version,
            alias=results.CHAMPION if is_champion else None,
            **(dict(decision) | {"reason": reason}),
            model_uri=version.uri,
            mlflow_run_id=version.mlflow_run_id,
        )
    if done and read_manifest(done).result_as(results.RegistrationResult) == result:
        return done
    return plan.write(work, [], [], result)


def _decide(
    client: MlflowClient,
    candidate: Candidate,
    version: RegisteredVersion,
    check: Callable[[], None],
) -> results.Decision:
    """Make ``version`` champion if the gate says so, keep the decision with it, and return it.

    The verdict is written last: without it, another process was killed on the way. The lock must
    be held: of several that set an alias which nobody has yet, MLflow refuses all but one.
    """
    name, number, tags = version.name, version.version, version.tags
    verdict = tags.get(versions.VERDICT_TAG, results.UNDECIDED)
    if verdict != results.UNDECIDED:
        return _kept(verdict, tags)
    champion = versions.champion_of(client, name)
    newer = versions.version_with(client, name, versions.CANDIDATE)
    is_champion = champion is not None and champion.version == number
    if is_champion and versions.MOVED_TAG in tags:  # a person made it so
        return _kept(verdict, tags)
    if is_champion:  # a process that was killed made it so
        decision = _kept("promoted" if tags.get(_AGAINST_TAG) else "first", tags)
        versions.make_champion(client, version)
    else:
        if newer is None or int(newer.version) < int(number):
            versions.make_candidate(client, version)
        decision = _compared(client, candidate)
        check()
        client.update_model_version(name, number, candidate.page(version.uri, decision))
        for tag, value in decision_tags(decision).items():
            client.set_model_version_tag(name, number, tag, value)
        if decision.is_promoted:
            versions.make_champion(client, version)
    client.set_model_version_tag(name, number, versions.VERDICT_TAG, decision.verdict)
    return decision


def decision_tags(decision: results.Decision) -> dict[str, str]:
    """Return the tags that keep a decision, except the verdict, which is written last."""
    parts = decision.model_dump(include=set(_PARTS))
    kept = {f"{DECISION_TAG}.{name}": json.dumps(part) for name, part in parts.items()}
    return kept | {DECISION_TAG: decision.reason, _AGAINST_TAG: decision.against}


def _kept(verdict: str, tags: Mapping[str, str]) -> results.Decision:
    """Return the decision that `decision_tags` has kept."""
    parts = {name: json.loads(tags.get(f"{DECISION_TAG}.{name}", "null")) for name in _PARTS}
    parts["tasks"] = tuple(parts["tasks"] or ())
    parts["against"] = tags.get(_AGAINST_TAG, "")
    reason = tags.get(DECISION_TAG, "it is the champion already")
    return results.Decision.model_validate({**parts, "verdict": verdict, "reason": reason})


def _compared(client: MlflowClient, candidate: Candidate) -> results.Decision:
    """Return the gate's decision about the candidate."""
    settings, ours, over_seeds = candidate.settings, candidate.measured, candidate.over_seeds
    while True:
        champion = versions.champion_of(client, candidate.name)
        before = [
            version
            for version in versions.versions_of(client, candidate.name)
            if version.tags.get(versions.VERDICT_TAG) in ("first", "promoted")
            or versions.MOVED_TAG in version.tags
        ]
        # If somebody deleted the champion, or its alias, the one before it still counts.
        against = champion or versions.version_with(client, candidate.name, versions.PREVIOUS)
        against = against or next(iter(before), None)
        if against is None:
            decision = first_gate(settings, ours, over_seeds)
        else:
            registered = read_measured(client, against)
            theirs = registered | _scored_again(against, candidate.champion_scores)
            earlier = [
                read_measured(client, version)
                for version in before
                if version.version != against.version
            ]
            decision = gate(settings, ours, theirs, over_seeds, earlier)
            decision = _with_other_data(decision, registered, theirs)
        now = versions.champion_of(client, candidate.name)
        if (now and now.version) == (champion and champion.version):
            return decision.model_copy(update={"against": against.version if against else ""})
        # It took so long that another process took its turn.


def _scored_again(champion: RegisteredVersion, scores: str) -> dict[str, Measured]:
    """Return the champion's new scores, if there are any.

    On other tasks those that it was registered with still count: so the gate sees a task that is
    gone, on which the candidate might be worse.
    """
    if scores:
        try:
            return read_scores(scores, champion.tags.get(server.DIGEST_TAG, ""))
        except errors.RegistryError as error:
            log.warning("%s: the champion changed meanwhile: %s", results.REGISTRATION, error)
    return {}


def _with_other_data(
    decision: results.Decision, registered: ByTask, theirs: ByTask
) -> results.Decision:
    """Return the decision, which names what the champion was registered with on other data.

    A task made from held-out documents is another one with each text, whatever its name.
    """
    others = [
        f"{each.score:.4f} on {task}"
        for task, each in sorted(registered.items())
        if each.data != theirs[task].data
    ]
    if not others:
        return decision
    said = f"the champion was registered with {', '.join(others)}, of other files or settings"
    return decision.model_copy(update={"reason": f"{decision.reason}; {said}"})


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate
) -> RegisteredVersion:
    """Return a version that holds the candidate, as an output of the run that trained it.

    It is a new one, unless there is one that had lost the files that were just uploaded.
    """
    name, output = candidate.name, candidate.output
    check_model(output.folder, output.digest)
    run_id = _source_run(client, plan, work, candidate)
    model = server.log_output(client, run_id, output, plan.key)
    with tempfile.TemporaryDirectory() as scratch:
        files = _model_files(candidate, plan.libraries, Path(scratch), run_id, model.model_id)
        version_files.write_lineage(candidate.lineage, files / version_files.LINEAGE)
        write_measured(candidate.measured, files)
        code = version_files.code_digest(files)
        client.set_logged_model_tags(model.model_id, {server.REGISTRATION_TAG: plan.key})
        client.log_model_artifacts(model.model_id, str(files))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_batch(run_id, metrics=list(_scores(candidate, model.model_id)))
    with server.suppress_codes(server.EXISTS):
        client.create_registered_model(name, description=_model_page(name))
    if found := version_files.find_version(client, name, plan.key):
        client.set_model_version_tag(name, found.version, version_files.CODE_TAG, code)
        return found
    about = {tag: model.tags[tag] for tag in server.FROM_RUN if tag in model.tags}
    tags = candidate.tags(plan.key) | about | {version_files.CODE_TAG: code}
    # MLflow's registry in a database asks the server that the environment names for the model.
    with patch.dict(os.environ, {servers.TRACKING_URI: servers.tracking_uri(work)}):
        made = client.create_model_version(
            name, model.model_uri, run_id, tags=tags, model_id=model.model_id
        )
    named = json.dumps([{"name": name, "version": str(made.version)}])
    client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: named})
    version = versions.numbered_version(client, name, str(made.version))
    assert version is not None
    return version


def _scores(candidate: Candidate, model_id: str) -> Iterator[Metric]:
    """Yield the candidate's scores, at its step and on the dev sets that it was scored on."""
    now, step = int(time.time() * 1000), candidate.output.step
    data = {}
    for result in candidate.lineage.of_stage(results.FINETUNING):
        tuned = result.manifest.result_as(results.FinetuningResult)
        data[tuned.task] = server.data_set(f"{tuned.title}/dev", result.manifest.inputs["dev"])
    for task, each in candidate.measured.items():
        yield Metric(f"dev/{task}", each.score, now, step, model_id, *data.get(task, (None, None)))
    if candidate.score is not None:
        yield Metric("score", candidate.score, now, step, model_id)


def _source_run(client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate) -> str:
    """Return the run that trained the candidate; one made for it if the server knows none."""
    trained = candidate.trained.rpartition("/")[0]
    with suppress(errors.OutageError):
        deque(send_left(work, trained), maxlen=0)  # logged while the server was away
    noted = read_manifest(candidate.trained).result.get("mlflow_run_id") or ""
    for run_id in (server.known_run_id(trained), noted):
        if server.active_run(client, run_id):
            return str(run_id)
    experiment, folder = server.experiment_id(client, work), plan.folder(work)
    for left in client.search_runs([experiment], f"tags.stage_folder = '{folder}'", max_results=1):
        return str(left.info.run_id)
    name = run_name(results.REGISTRATION, {"model": candidate.name}, plan.key)
    made = client.create_run(experiment, run_name=name, tags={"stage_folder": folder})
    client.set_terminated(made.info.run_id)
    return str(made.info.run_id)


def _model_files(
    candidate: Candidate, libraries: Mapping[str, str], scratch: Path, run_id: str, model_id: str
) -> Path:
    """Write the files for MLflow below ``scratch``: the model and its code, with both flavours."""
    files = scratch / "files"
    code = Path(__file__).with_name(f"{candidate.served_by.rpartition('.')[2]}.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import and on type hints
        import mlflow.pyfunc

        source = candidate.output.folder
        folder = server.local_copy(source, str(scratch))
        names = storage.list_names(source)  # compared with their manifest, which a copy has not
        mlflow.pyfunc.save_model(
            str(files),
            model_config={
                version_files.SHA256: {
                    name: sha256_of(storage.join(source, name)) for name in names
                },
                OBJECTIVE: read_manifest(candidate.trained).result.get("objective"),
            },
            mlflow_model=Model(run_id=run_id, model_id=model_id),
            python_model=str(code),
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
