"""A model becomes a version; the gate says whether it becomes champion; all of it is kept."""

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import cast

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

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
from albert_core.registry.gate import Decision, Measured, gate
from albert_core.registry.measured import log_measured, read_measured, read_scores
from albert_core.registry.versions import (
    CHAMPION,
    KEY_TAG,
    MANIFEST_TAG,
    MODEL_ARTIFACT,
    RegisteredVersion,
    champion_of,
    find_version,
    numbered_version,
    open_registry,
    upload_lineage,
    version_with,
)
from albert_core.stage import storage
from albert_core.stage.environment import TRACKING_URI, tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import REGISTRATION, Lineage
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import reachable_sources
from albert_core.stage.results import RegistrationResult, Verdict
from albert_core.tracking.server import experiment_id

DIGEST_TAG = "model_digest"
DECISION_TAG = "decision"
"""The sentence; what stands after a point in the names of others is a part of the decision."""
_VERDICT_TAG, _AGAINST_TAG = f"{DECISION_TAG}.verdict", f"{DECISION_TAG}.against"
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
    params=ParamSchema([ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]),
)

log = logging.getLogger(REGISTRATION)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to register: what it is, how it does, and what it was made of."""

    name: str
    """Of the registered model."""
    model_folder: str
    digest: str
    """Of the model's files."""
    measured: Mapping[str, Measured]
    """By the tasks' names."""
    over_seeds: bool
    """See `gate`."""
    lineage: Lineage
    served_by: str
    """The module that `mlflow.pyfunc` runs, one file that ends with `mlflow.models.set_model`."""
    signature: ModelSignature
    takes_along: str = ""
    """A module of this project that it imports: it and all it reaches go along. Empty: none."""

    @property
    def score(self) -> float | None:
        """The mean over the tasks; None without any, as where only minimal pairs were scored."""
        return mean(task.score for task in self.measured.values()) if self.measured else None

    def description(self, version: str, decision: Decision) -> str:
        """Return the text of its version's page, as Markdown."""
        scores = ", ".join(f"{task} {each.score:.4f}" for task, each in self.measured.items())
        return (
            f"On dev: {scores or 'no task'}.\n\n"
            f"The gate: {decision.verdict}, {decision.reason}.\n\n"
            f"What it was made of: `albert lineage models:/{self.name}/{version}`"
        )

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version; of the results it was made of, the nearest first."""
        tags = {
            KEY_TAG: key,
            DIGEST_TAG: self.digest,
            THREADS_TAG: RIGHT,
            **({} if self.score is None else {"score": repr(self.score)}),
            **{f"score.{name}": repr(task.score) for name, task in self.measured.items()},
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
        client.update_model_version(name, number, candidate.description(number, decision))
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
            score = "" if candidate.score is None else f": its score is {candidate.score:.4f}"
            decision = Decision("first", f"the first champion{score}")
        else:
            theirs = _champion_measured(client, against, champion_scores)
            decision = gate(settings, candidate.measured, theirs, candidate.over_seeds)
        now = champion_of(client, candidate.name)
        if (now and now.version) == (champion and champion.version):
            return decision, against.version if against else ""
        # It took so long that another process took its turn.


def _champion_measured(
    client: MlflowClient, champion: RegisteredVersion, scores: str
) -> Mapping[str, Measured]:
    if scores:
        try:
            return read_scores(scores, champion.tags.get(DIGEST_TAG, ""))
        except RegistryError as error:
            log.warning("%s: the champion changed meanwhile: %s", REGISTRATION, error)
    return read_measured(client, champion.mlflow_run_id)


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
    """Return a new version that holds the candidate."""
    check_model(candidate.model_folder, candidate.digest)
    name, run_id = candidate.name, _open_run(client, plan, work, candidate)
    with _fluent_uri(tracking_uri(work)), mlflow.start_run(run_id=run_id):
        upload_lineage(client, run_id, candidate.lineage)
        log_measured(client, run_id, candidate.measured)
        model_uri = _log_model(candidate, plan.libraries)
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        made = client.create_model_version(
            name,
            model_uri,
            run_id,
            tags=candidate.tags(plan.key),
            model_id=model_uri.partition("/")[2],
        )
    version = numbered_version(client, name, str(made.version))
    assert version is not None
    return version


def _finish_registration(client: MlflowClient, version: RegisteredVersion) -> None:
    """End the version's run, which a killed process left open, and make the newest the candidate.

    Under the lock: of several that set an alias which nobody has yet, MLflow refuses all but one.
    """
    client.set_terminated(version.mlflow_run_id)
    newer = version_with(client, version.name, CANDIDATE)
    is_newest = newer is None or int(newer.version) < int(version.version)
    if is_newest and not is_champion(client, version):
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


def _log_model(candidate: Candidate, libraries: Mapping[str, str]) -> str:
    """Log the model folder with the code that serves it to the active run; return its URI."""
    code = find_spec(candidate.served_by)
    assert code is not None
    assert code.origin is not None
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import and on type hints
        import mlflow.pyfunc

        logged = mlflow.pyfunc.log_model(
            name="albert",
            python_model=code.origin,
            artifacts={MODEL_ARTIFACT: str(_local_model(candidate.model_folder, scratch))},
            code_paths=_copied_code(candidate.takes_along, Path(scratch, "code")),
            signature=candidate.signature,
            pip_requirements=[  # without "+cpu" and its like, which PyPI lacks
                f"{library}=={version.partition('+')[0]}"
                for library, version in libraries.items()
                if library != "python"
            ],
        )
    return str(logged.model_uri)


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


def _local_model(model_folder: str, scratch: str) -> Path:
    """Return the model folder as a local one, copied if it is elsewhere."""
    path = storage.local_path(model_folder)
    if path is not None:
        return path.absolute()
    fs, remote = storage.filesystem(model_folder)
    copy = Path(scratch, MODEL_ARTIFACT)
    fs.get(f"{remote.rstrip('/')}/", f"{copy}/", recursive=True)
    return copy
