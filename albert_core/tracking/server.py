"""The tracking server: a client of it, the experiment, the files of a run."""

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.stage import storage
from albert_core.stage.storage import tracking_uri

EXPERIMENT, EXPERIMENT_NAME = "albert", "MLFLOW_EXPERIMENT_NAME"
"""The experiment; and MLflow's own variable, which names another one."""
RUN_ID = "mlflow_run_id"
"""File in a stage's folder that has the id of its MLflow run."""
PARENT_TAG = "mlflow.parentRunId"

_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""With this tag MLflow's pages open on the training runs, not on traces of language models."""

for _library in ("alembic", "mlflow"):
    logging.getLogger(_library).setLevel(logging.WARNING)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns at every retry


def open_client(work: str) -> MlflowClient:
    """Return a client of the tracking server and registry at `tracking_uri`."""
    uri = tracking_uri(work)
    registry_uri = os.environ.get("MLFLOW_REGISTRY_URI") or uri
    path = uri.removeprefix("sqlite:///")
    if path == uri:
        return MlflowClient(uri, registry_uri)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # two processes that create the tables together break them
        client = MlflowClient(uri, registry_uri)
        client.search_experiments(max_results=1)
    return client


def experiment_name() -> str:
    """Return the name of the experiment of this process's runs."""
    return os.environ.get(EXPERIMENT_NAME) or EXPERIMENT


def experiment_id(client: MlflowClient, work: str, name: str = "") -> str:
    """Return the id of an experiment, which is created if it does not exist.

    A server chooses where its files go. With a database file they go to ``mlartifacts`` in
    ``work``.

    Args:
        client: of the tracking server.
        work: folder for all results.
        name: of the experiment; empty: `experiment_name`.
    """
    name = name or experiment_name()
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    is_server = tracking_uri(work).startswith(("http:", "https:", "databricks"))
    place = None if is_server else storage.absolute(storage.join(work, "mlartifacts"))
    try:
        return str(client.create_experiment(name, place, _EXPERIMENT_TAGS))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return experiment_id(client, work, name)  # another process was faster


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
