"""The tracking server: a client of it, the experiment, and models as outputs of its runs.

MLflow gets the URI of a model's files and their digest. Files of up to ``ALBERT_TRACKED_MODEL_MB``
megabytes (10) go there themselves, so that `mlflow.transformers` loads the model; those of a
registered version always do. Checkpoints stay where they are.
"""

import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric, Run
from mlflow.exceptions import MlflowException

from albert_core.stage import errors, results, servers, storage
from albert_core.stage.machine import whole_number
from albert_core.stage.manifest import flat, read_manifest

ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""Codes of MLflow's errors for a model, version, alias, run or file that does not exist."""
EXISTS = "RESOURCE_ALREADY_EXISTS"
EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
RUN_ID = "mlflow_run_id"
"""File in a stage's folder that has the id of its MLflow run."""
PARENT_TAG = "mlflow.parentRunId"

DIGEST_TAG = "model_digest"
REGISTRATION_TAG = "registration_key"
"""Tag of a model whose files are those of a registered version: nobody may change them."""
MODEL_ARTIFACT = "model"
"""Folder in Hugging Face's layout below ``artifacts`` among the files of a model in MLflow."""
CHECKPOINT = "checkpoint"

_FILES = "mlartifacts"
"""Folder of MLflow's files in the work folder."""
_MAX_DIGEST_CHARACTERS = 36
_TRACKED_MB = "ALBERT_TRACKED_MODEL_MB"
_MAX_PARAM_CHARACTERS = 6000
FROM_RUN = ("recipe", "text")
"""Tags of a run that its models have too."""
_NOT_ALLOWED = str.maketrans(dict.fromkeys("/:.%\"'", "-"))
"""Characters that a model's name can't have."""
_NOT_OF_TOKENIZER = ("config.json", "model.safetensors", "task.json")
_TASKS = {
    "PreTraining": ("fill-mask", "MaskedLM"),
    "SequenceClassification": ("text-classification", "SequenceClassification"),
    "QuestionAnswering": ("question-answering", "QuestionAnswering"),
    "MultipleChoice": ("multiple-choice", "MultipleChoice"),
}
"""Suffix of the model's class in config.json -> the pipeline's task, and suffix of its class."""
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""With this tag MLflow's pages open on the training runs, not on traces of language models."""

log = logging.getLogger("tracking")
for _library in ("alembic", "mlflow"):
    logging.getLogger(_library).setLevel(logging.WARNING)
# It prints the traceback of every error that it raises.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns at every retry


def open_client(work: str) -> MlflowClient:
    """Return a client of the tracking server and registry at `tracking_uri`.

    Raises:
        ConfigError: MLflow takes no such address, or has another version than its database.
    """
    uri = servers.tracking_uri(work)
    if file := servers.database_file(uri):
        create_database(file)
    try:
        return MlflowClient(uri, servers.registry_uri(work))
    except (MlflowException, ImportError) as error:
        if errors.is_transient(error) or errors.explained(error):
            raise
        raise errors.ConfigError(
            f"MLflow can't use {servers.shown_tracking_uri(work)}: {error} Set "
            f"{servers.TRACKING_URI} to the address of a server, http://HOST:PORT, or unset it"
        ) from error


@contextmanager
def suppress_codes(*codes: str) -> Iterator[None]:
    """Suppress MLflow's errors with one of these codes."""
    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


def active_run(client: MlflowClient, run_id: str) -> Run | None:
    """Return the run with this id; None if the id is empty, or there is no such run any more."""
    with suppress_codes(*ABSENT):
        run = client.get_run(run_id) if run_id else None
        return run if run and run.info.lifecycle_stage == "active" else None
    return None


def create_database(path: Path) -> None:
    """Create MLflow's database, if it is not there: whole or not at all.

    MLflow cannot go on with a part of the tables, which a full disk, a kill or two processes that
    create them together would leave.
    """
    if _is_created(path):  # perhaps in a folder that is only read
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if _is_created(path):
            return
        unfinished = path.with_name(f"{path.name}.new")
        for left in (unfinished, Path(f"{unfinished}-journal")):  # by a killed process
            left.unlink(missing_ok=True)
        MlflowClient(f"sqlite:///{unfinished}").search_experiments(max_results=1)
        storage.replace(unfinished, path)


def _is_created(database: Path) -> bool:
    return database.exists() and database.stat().st_size > 0


def experiment_name() -> str:
    """Return the name of the experiment of this process's runs."""
    return os.environ.get(EXPERIMENT) or "albert"


def experiment_id(client: MlflowClient, work: str, name: str = "") -> str:
    """Return the id of an experiment, which is created if it does not exist.

    A server chooses where its files go. With a database file they go to ``mlartifacts`` in
    ``work``; a warning tells if they go elsewhere, because ``work`` was moved.

    Args:
        client: client of the tracking server.
        work: folder for all results.
        name: name of the experiment; empty: `experiment_name`.

    Raises:
        ConfigError: it was deleted, with its runs, which only a person may bring back.
    """
    name = name or experiment_name()
    found = client.get_experiment_by_name(name)
    is_server = servers.tracking_uri(work).startswith(("http:", "https:", "databricks"))
    place = None if is_server else storage.absolute(storage.join(work, _FILES))
    if found is not None:
        if found.lifecycle_stage != "active":
            uri = servers.shown_tracking_uri(work)
            raise errors.ConfigError(
                f"MLflow's experiment {name} at {uri} was deleted. "
                f"Restore it (MLFLOW_TRACKING_URI={shlex.quote(uri)} python -m "
                f"mlflow experiments restore --experiment-id {found.experiment_id}), or set "
                f"{EXPERIMENT} to another name"
            )
        if place and servers.TRACKING_URI not in os.environ:
            _warn_if_moved(place, found.artifact_location)
        return str(found.experiment_id)
    with suppress_codes(EXISTS):
        return str(client.create_experiment(name, place, _EXPERIMENT_TAGS))
    return experiment_id(client, work, name)  # another process was faster


def _warn_if_moved(place: str, noted: str) -> None:
    here, then = Path(place), Path(noted.removeprefix("file://"))
    if then.name == _FILES and then.resolve() != here.resolve():
        log.warning(
            "MLflow keeps the files of %s in %s, where the folder was when its database was made. "
            "Move what is there to %s, and leave a link in its place: ln -s %s %s",
            *(here.parent, then, here),
            *(shlex.quote(str(each)) for each in (here.parent, then.parent)),
        )


def known_run_id(folder: str) -> str:
    """Return the id of the run of a stage's folder; empty if the folder does not have it yet."""
    uri = storage.join(folder, RUN_ID)
    noted = storage.read_bytes(uri).decode(errors="replace").strip() if storage.exists(uri) else ""
    return noted if re.fullmatch(r"[\w-]+", noted) else ""  # a damaged one finds no run either


def upload(client: MlflowClient, run_id: str, uri: str, artifact_folder: str | None) -> None:
    """Copy the file or folder at ``uri`` to ``artifact_folder`` of the run's files.

    Raises:
        FileNotFoundError: there is nothing at ``uri``.
    """
    with TemporaryDirectory() as scratch:
        path = local_copy(uri, scratch)
        log_path = client.log_artifacts if path.is_dir() else client.log_artifact
        log_path(run_id, str(path), artifact_folder)


def local_copy(uri: str, scratch: str) -> Path:
    """Return the file or folder at ``uri``, copied to the folder ``scratch`` if it is elsewhere.

    Raises:
        FileNotFoundError: there is nothing at ``uri``.
    """
    path = storage.local_path(uri)
    if path is None:
        fs, remote = storage.filesystem(uri)
        path = Path(scratch, uri.rstrip("/").rpartition("/")[2])
        fs.get(remote, str(path), recursive=bool(fs.isdir(remote)))
    if not path.exists():
        raise FileNotFoundError(uri)
    return path.absolute()


@dataclass(frozen=True)
class Output:
    """A model or a checkpoint that a run made. Its values go through JSON."""

    kind: Literal["pretrained", "fine-tuned", "checkpoint"]
    folder: str
    """URI of its files."""
    digest: str
    step: int
    """Updates that made it."""
    task: str = ""
    """Task that it was fine-tuned on."""
    params: Mapping[str, str] = field(default_factory=dict)
    measured: str = ""
    """Prefix of the run's metrics that measure it, at its step."""
    data: tuple[str, str] | None = None
    """Name and digest of the data set that these are measured on."""


def data_set(name: str, digest: str) -> tuple[str, str]:
    """Return name and digest of a data set as MLflow takes them."""
    return name, digest[:_MAX_DIGEST_CHARACTERS]


def output_of(manifest: str, digest: str) -> Output:
    """Return the model that a pretraining or a fine-tuning made.

    Args:
        manifest: URI of the stage's manifest.
        digest: digest of the model's files.
    """
    made = read_manifest(manifest)
    result = made.result_as(results.MODEL_RESULTS[made.stage])
    folder = storage.join(manifest.rpartition("/")[0], result.model_folder)
    if isinstance(result, results.FinetuningResult):
        params = params_of(made.settings | {"used": result.hyperparameters})
        dev = data_set(f"{result.title}/dev", made.inputs["dev"])
        step, task = result.best_step, result.task
        return Output("fine-tuned", folder, digest, step, task, params, "dev/", dev)
    assert isinstance(result, results.PretrainingResult)
    examples = made.inputs.get("examples")
    held_out = data_set("examples/held_out", examples) if examples else None
    params = params_of(result.settings)
    return Output("pretrained", folder, digest, result.step, "", params, "held_out/", held_out)


def log_output(client: MlflowClient, run_id: str, output: Output, key: str = "") -> LoggedModel:
    """Return the model that is an output of the run, with its parameters, metrics and data set.

    Called again, it completes a model that is incomplete.

    Args:
        client: client of the tracking server.
        run_id: the run that made it.
        output: the model.
        key: key of the registration that needs a model for itself; empty: any model will do.
    """
    run = client.get_run(run_id)
    experiment = run.info.experiment_id

    def usable() -> list[LoggedModel]:
        condition = f"source_run_id = '{run_id}' and tags.{DIGEST_TAG} = '{output.digest}'"
        found = client.search_logged_models([experiment], condition)
        return [each for each in found if not key or each.tags.get(REGISTRATION_TAG, key) == key]

    if not (found := usable()):
        tags = {name: run.data.tags[name] for name in FROM_RUN if name in run.data.tags}
        at = f"step-{output.step}" if output.kind == CHECKPOINT else ""
        parts = filter(None, (tags.get("recipe", "albert"), output.task, at))
        name = "-".join(parts).translate(_NOT_ALLOWED)
        tags |= {DIGEST_TAG: output.digest, "files": output.folder}
        params = dict(output.params)
        client.create_logged_model(experiment, name, run_id, tags, params, output.kind)
        found = usable()
        for twin in found[1:] if not key else ():  # MLflow's client repeats a lost request
            client.delete_logged_model(twin.model_id)
    model = found[0]
    outputs = run.outputs.model_outputs if run.outputs else []
    if model.model_id not in {each.model_id for each in outputs}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, output.step)])
    if output.measured:
        client.log_batch(run_id, metrics=list(_measured(client, run_id, output, model.model_id)))
    if not key:
        if model.status != LoggedModelStatus.READY and _is_small(output):
            _upload(client, model.model_id, run_id, output.folder)
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return model


def model_with(client: MlflowClient, experiment: str, digest: str) -> LoggedModel | None:
    """Return the newest model of an experiment with this digest, or None."""
    newest = [{"field_name": "creation_time", "ascending": False}]
    condition = f"tags.{DIGEST_TAG} = '{digest}'"
    found = client.search_logged_models([experiment], condition, max_results=1, order_by=newest)
    return next(iter(found), None)


def add_transformers(folder: Path) -> None:
    """Give a model's folder the flavour "transformers" besides those that it has.

    That flavour wants the tokenizer in a folder of its own; the weights are not copied. A model
    for which `transformers` has no pipeline loads with ``return_type="components"``.
    """
    from mlflow.models import Model

    model, tokenizer = folder / "artifacts" / MODEL_ARTIFACT, folder / "components" / "tokenizer"
    name = json.loads((model / "config.json").read_text())["architectures"][0]
    prefix, _, purpose = name.partition("For")
    task, purpose = _TASKS.get(purpose, ("feature-extraction", ""))
    tokenizer.mkdir(parents=True)
    for path in model.iterdir():
        if path.name not in _NOT_OF_TOKENIZER:
            shutil.copy(path, tokenizer)
    described = folder / "MLmodel"
    content = Model.load(str(described)) if described.exists() else Model()
    content.add_flavor(
        "transformers",
        task=task,
        instance_type="".join(map(str.capitalize, task.split("-"))) + "Pipeline",
        pipeline_model_type=f"{prefix}For{purpose}" if purpose else name,
        model_binary=f"artifacts/{MODEL_ARTIFACT}",
        components=["tokenizer"],
        tokenizer_type="PreTrainedTokenizerFast",
        code=None,
    )
    content.save(str(described))


def params_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as parameters, nested ones by their path; long values are cut."""
    return {name: str(value)[:_MAX_PARAM_CHARACTERS] for name, value in flat(settings).items()}


def _measured(client: MlflowClient, run_id: str, output: Output, model_id: str) -> Iterator[Metric]:
    """Yield the run's points that measure the model, linked to it and to their data set."""
    data = (None, None) if output.data is None else output.data
    for name in client.get_run(run_id).data.metrics:
        if name.startswith(output.measured):
            for point in client.get_metric_history(run_id, name):
                if point.step == output.step:
                    yield Metric(name, point.value, point.timestamp, point.step, model_id, *data)


def _is_small(output: Output) -> bool:
    if output.kind == CHECKPOINT or not storage.exists(output.folder):
        return False
    fs, path = storage.filesystem(output.folder)
    return int(fs.du(path)) <= whole_number(_TRACKED_MB, 10) * 1_000_000


def _upload(client: MlflowClient, model_id: str, run_id: str, folder: str) -> None:
    """Upload a model's files, as `mlflow.transformers` wants them."""
    from mlflow.models import Model

    with TemporaryDirectory() as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(local_copy(folder, scratch), copy / "artifacts" / MODEL_ARTIFACT)
        Model(run_id=run_id, model_id=model_id).save(str(copy / "MLmodel"))
        add_transformers(copy)
        client.log_model_artifacts(model_id, str(copy))
