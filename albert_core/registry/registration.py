"""A model becomes a version; the gate says whether it becomes champion; all of it is kept."""

import json
import logging
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, cast

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import check_model
from albert_core.registry.champion import (
    CANDIDATE,
    PREVIOUS,
    is_champion,
    make_candidate,
    make_champion,
    promotion_lock,
)
from albert_core.registry.description import HELD_OUT, describe_model, describe_version, made_of
from albert_core.registry.gate import ByTask, Decision, first_gate, gate
from albert_core.registry.measured import read_measured, read_scores, write_measured
from albert_core.registry.versions import (
    CHAMPION,
    LINEAGE,
    MANIFEST_TAG,
    RegisteredVersion,
    champion_of,
    find_version,
    numbered_version,
    open_registry,
    suppress_absent,
    version_with,
    versions_of,
    write_lineage,
)
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import FINETUNING, REGISTRATION, Lineage
from albert_core.stage.manifest import StagePlan, read_manifest, sha256_of
from albert_core.stage.provenance import reachable_sources
from albert_core.stage.results import FinetuningResult, RegistrationResult, Verdict
from albert_core.stage.storage import TRACKING_URI, tracking_uri
from albert_core.tracking.journal import ServerUnavailableError, known_run_id, send_left
from albert_core.tracking.models import (
    DIGEST_TAG,
    MODEL_ARTIFACT,
    REGISTRATION_TAG,
    Output,
    add_transformers,
    data_set,
    log_output,
)
from albert_core.tracking.run import run_name
from albert_core.tracking.server import experiment_id, local_copy

DECISION_TAG = "decision"
"""The sentence; what stands after a point in the names of others is a part of the decision."""
_VERDICT_TAG, _AGAINST_TAG = f"{DECISION_TAG}.verdict", f"{DECISION_TAG}.against"
SHA256 = "sha256"
"""In the configuration of what MLflow serves: the digest of each file of the model, by its name."""
MOVED_TAG = "champion_by_hand"
"""Why and when a person made a version champion."""
THREADS_TAG, RIGHT = "threads", "right"
"""The tag of a version whose code was looked at when it was registered, and is `RIGHT`."""
FAULT = "answers wrongly where a server asks it from several threads"
WORD_TABLE = "albert_core.text.word_table"
TEXT_COLUMNS: list[ColSpec | TensorSpec] = [
    ColSpec("string", "text"),
    ColSpec("string", "text_b", required=False),
]
"""Of a model that reads a text, or a pair of them."""
PRETRAINED_SIGNATURE = ModelSignature(
    inputs=Schema(TEXT_COLUMNS),
    outputs=Schema(
        [
            ColSpec("long", "row"),
            ColSpec("long", "mask"),
            ColSpec("string", "piece"),
            ColSpec("double", "probability"),
        ]
    ),
    params=ParamSchema([ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]),
)

PRETRAINED_EXAMPLE = {"text": "The [MASK] is on the table."}

log = logging.getLogger(REGISTRATION)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to register: what it is, how it does, and what it was made of."""

    name: str
    """Of the registered model."""
    trained: str
    """Manifest of the stage that made it."""
    output: Output
    """The model."""
    measured: ByTask
    over_seeds: bool
    """See `gate`."""
    lineage: Lineage
    served_by: str
    """The module that `mlflow.pyfunc` runs, one file that ends with `mlflow.models.set_model`."""
    signature: ModelSignature
    example: Mapping[str, Any]
    """A row of its input."""
    takes_along: str = ""
    """A module of this project that it imports: it and all it reaches go along. Empty: none."""

    @property
    def score(self) -> float | None:
        """The mean over the tasks; None without any, as where only minimal pairs were scored."""
        return mean(task.score for task in self.measured.values()) if self.measured else None

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version: what it is first, then what programs ask for.

        MLflow's pages sort them by name. Of the results it was made of, the nearest comes first.
        What the held-out scores are, its metrics say.
        """
        about = made_of(self.lineage, self.trained)
        tags = {
            **{f"about.{name}": said for name, said in about.items() if name != HELD_OUT},
            **({} if self.score is None else {"score": repr(self.score)}),
            **{f"score.{name}": repr(task.score) for name, task in self.measured.items()},
            REGISTRATION_TAG: key,
            DIGEST_TAG: self.output.digest,
            THREADS_TAG: RIGHT,
        }
        for result in reversed(self.lineage.results.values()):
            stage = result.manifest.stage
            for tag, value in (
                (f"lineage.{stage}", result.manifest.key),
                (f"{MANIFEST_TAG}{stage}", result.uri),
            ):
                tags[tag] = f"{tags[tag]}, {value}" if tag in tags else value
        return tags


def enter(
    plan: StagePlan,
    work: str,
    settings: RegistrySettings,
    candidate: Candidate,
    champion_scores: str = "",
) -> str:
    """Make a version of the candidate and perhaps champion, if not yet done; return the manifest.

    What was decided is not decided again, whatever is champion by then, unless the candidate could
    not be compared.

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
    with open_registry(work) as client:
        done, version = plan.find(work), find_version(client, candidate.name, plan.key)
        if done and version:
            before = read_manifest(done).result_as(RegistrationResult)
            if before.verdict != "undecided":
                _keep_true(plan, work, client, version, before)
                return done
        is_unfinished = version is None or not done
        if version is None:
            version = _register(client, plan, work, candidate)
        with promotion_lock(client, candidate.name):
            if is_unfinished:
                _finish_registration(client, version)
            decision, against = _decide(client, settings, candidate, version, champion_scores)
        log.info("%s: %s: %s, %s", REGISTRATION, version.uri, decision.verdict, decision.reason)
        result = RegistrationResult(
            name=version.name,
            version=version.version,
            alias=CHAMPION if is_champion(client, version) else None,
            **vars(decision),
            against=against,
            model_uri=version.uri,
            mlflow_run_id=version.mlflow_run_id,
        )
        return plan.write(work, [], [], result)


def _decide(
    client: MlflowClient,
    settings: RegistrySettings,
    candidate: Candidate,
    version: RegisteredVersion,
    champion_scores: str,
) -> tuple[Decision, str]:
    """Make ``version`` champion if the gate says so, and keep the decision with it.

    Returns:
        The decision, and the number of the version that it was compared with, if any.
    """
    name, number, tags = version.name, version.version, version.tags
    before, against = tags.get(_VERDICT_TAG, "undecided"), tags.get(_AGAINST_TAG, "")
    if before != "undecided":
        return Decision(cast(Verdict, before), tags[DECISION_TAG]), against
    if is_champion(client, version):  # a process that was killed made it so
        verdict: Verdict = "promoted" if against else "first"
        decision = Decision(verdict, tags.get(DECISION_TAG, "it is the champion already"))
        make_champion(client, version)
    else:
        decision, against = _compared(client, settings, candidate, champion_scores)
        about, measured = made_of(candidate.lineage, candidate.trained), candidate.measured
        said = describe_version(version.uri, about, measured, decision)
        client.update_model_version(name, number, said)
        for tag, value in decision_tags(decision, against).items():
            client.set_model_version_tag(name, number, tag, value)
        if decision.is_promoted:
            make_champion(client, version)
    client.set_model_version_tag(name, number, _VERDICT_TAG, decision.verdict)
    return decision, against


def _compared(
    client: MlflowClient, settings: RegistrySettings, candidate: Candidate, champion_scores: str
) -> tuple[Decision, str]:
    """Return what the gate says, and the number of the version that it compared with, if any."""
    while True:
        champion = champion_of(client, candidate.name)
        # If somebody deleted the champion, the one before it still counts.
        against = champion or version_with(client, candidate.name, PREVIOUS)
        if against is None:
            decision = first_gate(settings, candidate.measured, candidate.over_seeds)
        else:
            theirs = _champion_measured(client, against, champion_scores)
            earlier = list(_earlier_champions(client, against))
            decision = gate(settings, candidate.measured, theirs, candidate.over_seeds, earlier)
        now = champion_of(client, candidate.name)
        if (now and now.version) == (champion and champion.version):
            return decision, against.version if against else ""
        # It took so long that another process took its turn.


def _champion_measured(client: MlflowClient, champion: RegisteredVersion, scores: str) -> ByTask:
    if scores:
        try:
            return read_scores(scores, champion.tags.get(DIGEST_TAG, ""))
        except RegistryError as error:
            log.warning("%s: the champion changed meanwhile: %s", REGISTRATION, error)
    return read_measured(client, champion)


def _earlier_champions(client: MlflowClient, champion: RegisteredVersion) -> Iterator[ByTask]:
    """Yield how each version did that was champion and is not ``champion``."""
    for version in versions_of(client, champion.name):
        was_champion = version.tags.get(_VERDICT_TAG) in ("first", "promoted")
        was_champion |= MOVED_TAG in version.tags
        if was_champion and version.version != champion.version:
            yield read_measured(client, version)


def decision_tags(decision: Decision, against: str) -> dict[str, str]:
    """Return what is kept with the version, except the verdict, which is written last."""
    return {
        DECISION_TAG: decision.reason,
        _AGAINST_TAG: against,
        f"{DECISION_TAG}.difference": json.dumps(decision.difference),
        f"{DECISION_TAG}.lower_bound": json.dumps(decision.lower_bound),
        f"{DECISION_TAG}.tasks": json.dumps([task.model_dump() for task in decision.tasks]),
    }


def _keep_true(
    plan: StagePlan,
    work: str,
    client: MlflowClient,
    version: RegisteredVersion,
    result: RegistrationResult,
) -> None:
    """Write the manifest again if the alias has moved since; this decides nothing.

    A person may have moved it for a reason, or a better model came.
    """
    champion = champion_of(client, version.name)
    alias = CHAMPION if champion is not None and champion.version == version.version else None
    if alias == result.alias:
        return
    now = "none is" if champion is None else f"version {champion.version} is"
    reason = f"the alias was moved after the registration: now {now} champion"
    log.info("%s: %s", REGISTRATION, reason)
    plan.write(work, [], [], result.model_copy(update={"alias": alias, "reason": reason}))


def _register(
    client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate
) -> RegisteredVersion:
    """Return a new version that holds the candidate, as an output of the run that trained it."""
    name, output = candidate.name, candidate.output
    check_model(output.folder, output.digest)
    run_id = _source_run(client, plan, work, candidate)
    model = log_output(client, run_id, output, plan.key)
    with tempfile.TemporaryDirectory() as scratch:
        files = _model_files(candidate, plan.libraries, Path(scratch), run_id, model.model_id)
        write_lineage(candidate.lineage, files / LINEAGE)
        write_measured(candidate.measured, files)
        client.set_logged_model_tags(model.model_id, {REGISTRATION_TAG: plan.key})
        client.log_model_artifacts(model.model_id, str(files))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_batch(run_id, metrics=list(_scores(candidate, model.model_id)))
    try:
        client.create_registered_model(name, description=describe_model(name))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    about = {tag: model.tags[tag] for tag in ("recipe", "text") if tag in model.tags}
    with _fluent_uri(tracking_uri(work)):
        made = client.create_model_version(
            name,
            model.model_uri,
            run_id,
            tags=candidate.tags(plan.key) | about,
            model_id=model.model_id,
        )
    number = str(made.version)
    versions = json.dumps([{"name": name, "version": number}])
    client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: versions})
    version = numbered_version(client, name, number)
    assert version is not None
    return version


def _scores(candidate: Candidate, model_id: str) -> Iterator[Metric]:
    """Yield how the candidate does, at its step and on the dev sets that it was scored on."""
    now, step = int(time.time() * 1000), candidate.output.step
    data = {}
    for result in candidate.lineage.of_stage(FINETUNING):
        tuned = result.manifest.result_as(FinetuningResult)
        data[tuned.task] = data_set(f"{tuned.title}/dev", result.manifest.inputs["dev"])
    for task, each in candidate.measured.items():
        yield Metric(f"dev/{task}", each.score, now, step, model_id, *data.get(task, (None, None)))
    if candidate.score is not None:
        yield Metric("score", candidate.score, now, step, model_id)


def _finish_registration(client: MlflowClient, version: RegisteredVersion) -> None:
    """Make the newest version the candidate.

    Under the lock: of several that set an alias which nobody has yet, MLflow refuses all but one.
    """
    newer = version_with(client, version.name, CANDIDATE)
    is_newest = newer is None or int(newer.version) < int(version.version)
    if is_newest and not is_champion(client, version):
        make_candidate(client, version)


def _source_run(client: MlflowClient, plan: StagePlan, work: str, candidate: Candidate) -> str:
    """Return the run that trained the candidate; one made for it if the server knows none."""
    trained = candidate.trained.rpartition("/")[0]
    with suppress(ServerUnavailableError):
        deque(send_left(work, trained), maxlen=0)  # what was logged while the server was away
    noted = read_manifest(candidate.trained).result.get("mlflow_run_id")
    for run_id in filter(None, (known_run_id(trained), noted)):
        with suppress_absent():
            if client.get_run(run_id).info.lifecycle_stage == "active":
                return str(run_id)
    experiment, folder = experiment_id(client, work), plan.folder(work)
    for left in client.search_runs([experiment], f"tags.stage_folder = '{folder}'", max_results=1):
        return str(left.info.run_id)
    name = run_name(REGISTRATION, {"model": candidate.name}, plan.key)
    made = client.create_run(experiment, run_name=name, tags={"stage_folder": folder})
    client.set_terminated(made.info.run_id)
    return str(made.info.run_id)


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

        folder = local_copy(candidate.output.folder, str(scratch))
        mlflow.pyfunc.save_model(
            str(files),
            model_config={SHA256: {path.name: sha256_of(str(path)) for path in folder.iterdir()}},
            mlflow_model=Model(run_id=run_id, model_id=model_id),
            python_model=code.origin,
            artifacts={MODEL_ARTIFACT: str(folder)},
            code_paths=_copied_code(candidate.takes_along, scratch / "code"),
            signature=candidate.signature,
            input_example=candidate.example,
            pip_requirements=[  # without "+cpu" and its like, which PyPI lacks
                f"{library}=={version.partition('+')[0]}"
                for library, version in libraries.items()
                if library != "python"
            ],
        )
    add_transformers(files)
    return files


def _copied_code(module: str, folder: Path) -> list[str] | None:
    """Write ``module`` and all that it reaches below ``folder``; return the packages' folders.

    Raises:
        RegistryError: it is wrong for several threads.
    """
    if not module:
        return None
    sources = reachable_sources(module)
    if WORD_TABLE in sources and not has_lock(sources[WORD_TABLE]):
        spec = find_spec(WORD_TABLE)
        raise RegistryError(
            f"{WORD_TABLE if spec is None else spec.origin} has no lock, so that a model with it "
            f"{FAULT}. Register with this project's present code: update that checkout, or "
            "install the project again."
        )
    for package in {name.rpartition(".")[0] for name in sources} - {""}:
        sources.setdefault(package, "")
    for name, source in sources.items():
        is_package = any(other.startswith(f"{name}.") for other in sources)
        place = folder.joinpath(*name.split("."))
        path = place / "__init__.py" if is_package else place.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return sorted(str(path) for path in folder.iterdir())


def has_lock(word_table: str) -> bool:
    """Return whether this source of the word table is right for several threads."""
    return "threading.Lock" in word_table
