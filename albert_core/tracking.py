"""The one place that talks to MLflow tracking: curves, settings, data sets and files of a run.

Nothing here may stop or slow a training: every call is done in order by one thread in the
background, and one that fails is counted, said once and left out.
"""

import atexit
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

# MLflow reads some of them on import; what the environment says already is left alone.
os.environ.update(
    {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
    | dict(os.environ)
)

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException

from albert_core.contract import storage

EXPERIMENT = "albert"
RUN_ID = "mlflow_run_id"
"""File in a stage's folder that says which MLflow run is its own."""
PARENT_TAG = "mlflow.parentRunId"
TRACKING_URI = "MLFLOW_TRACKING_URI"
OPENING_SECONDS = 30.0
"""How long to wait for the id of a run."""
CLOSING_SECONDS = 60.0
"""How long to wait at the end for what is still to be logged."""

_MAX_PARAM_CHARACTERS = 6000
_PARAMS_IN_BATCH = 100
_MAX_DIGEST_CHARACTERS = 36

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("tracking")
for _library in ("alembic", "mlflow"):
    logging.getLogger(_library).setLevel(logging.WARNING)


def _counted(method: Callable[Concatenate["TrackedRun", P], R]) -> Callable[..., R]:
    """Add to the run's `seconds` what a call of ``method`` takes."""

    @wraps(method)
    def counted(run: "TrackedRun", *args: P.args, **kwargs: P.kwargs) -> R:
        began = time.perf_counter()
        try:
            return method(run, *args, **kwargs)
        finally:
            run.seconds += time.perf_counter() - began

    return counted


Call = Callable[[MlflowClient, str], None]
"""What to do, given a client and the run's id."""


def tracking_uri(work: str) -> str:
    """Return where MLflow keeps runs and models.

    That is ``MLFLOW_TRACKING_URI`` when it is set, else a SQLite file in ``work``; in the
    working directory when ``work`` is not on this machine.
    """
    folder = storage.local_path(work) or Path()
    return os.environ.get(TRACKING_URI) or f"sqlite:///{folder.absolute() / 'mlflow.db'}"


def shown_tracking_uri(work: str) -> str:
    """Return `tracking_uri` for a message: without a user's name and password."""
    return re.sub(r"//[^/@]*@", "//", tracking_uri(work))


def open_client(work: str) -> MlflowClient:
    """Return a client of the tracking server and registry at `tracking_uri`."""
    uri = tracking_uri(work)
    registry_uri = os.environ.get("MLFLOW_REGISTRY_URI") or uri
    path = uri.removeprefix("sqlite:///")
    if path == uri:
        return MlflowClient(uri, registry_uri)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{path}.lock").open("w") as lock:  # two that make its tables at once break them
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(uri, registry_uri)
        client.search_experiments(max_results=1)
    return client


def experiment_id(client: MlflowClient, work: str) -> str:
    """Return the id of the experiment, which is created when it is not there.

    A server chooses itself where its files go; beside a database they go to ``mlartifacts`` in
    ``work``.
    """
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    uri = tracking_uri(work)
    is_server = uri.startswith(("http:", "https:", "databricks"))
    place = None if is_server else storage.absolute(storage.join(work, "mlartifacts"))
    try:
        return str(client.create_experiment(EXPERIMENT, artifact_location=place))
    except MlflowException:
        found = client.get_experiment_by_name(EXPERIMENT)  # another process was faster
        if found is None:
            raise
        return str(found.experiment_id)


class TrackedRun:
    """The MLflow run of one stage's folder: opened, or continued if it was opened before.

    No method raises or waits, but for `run_id` and `finish`, which wait for a limited time.

    Args:
        work: folder for all results.
        folder: the stage's folder, which keeps the id of its run.
        name: what MLflow's pages show.
        tags: of the run.
    """

    def __init__(
        self, work: str, folder: str, name: str, tags: Mapping[str, str] | None = None
    ) -> None:
        self.num_failures = 0
        """Calls that did not get through."""
        self.seconds = 0.0
        """How long the callers of this object were held up by it."""
        self._work, self._folder, self._name = work, folder, name
        self._tags = {"stage_folder": storage.absolute(folder), **(tags or {})}
        self._client: MlflowClient | None = None
        self._run_id: str | None = None
        self._last_steps: dict[str, int] = {}
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._tried_to_open = threading.Event()
        self._thread = threading.Thread(target=self._do_calls, name="mlflow", daemon=True)
        self._thread.start()
        self._calls.put(lambda client, run_id: None)
        atexit.register(self.finish, "FAILED")

    @property
    @_counted
    def run_id(self) -> str | None:
        """The run's id, or None if the tracking server did not give one in time."""
        self._tried_to_open.wait(OPENING_SECONDS)
        return self._run_id

    @_counted
    def log_params(self, settings: Mapping[str, Any]) -> None:
        """Log settings, nested ones by their path; what is too long is cut."""
        params = [Param(key, str(value)[:_MAX_PARAM_CHARACTERS]) for key, value in _flat(settings)]
        for begin in range(0, len(params), _PARAMS_IN_BATCH):
            batch = params[begin : begin + _PARAMS_IN_BATCH]
            self._calls.put(partial(_log_params, batch))

    @_counted
    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log ``metrics`` of ``step``, but for those that were logged before a resume."""
        now = int(time.time() * 1000)
        points = [Metric(name, float(value), now, step) for name, value in metrics.items()]

        def call(client: MlflowClient, run_id: str) -> None:
            new = [p for p in points if p.step > self._last_steps.get(p.key, -1)]
            if new:
                client.log_batch(run_id, metrics=new)

        self._calls.put(call)

    @_counted
    def log_dataset(self, name: str, digest: str, source: str) -> None:
        """Log that the run reads the data set ``name``.

        Args:
            name: what MLflow's pages show.
            digest: of its content.
            source: URI of its manifest or folder.
        """
        dataset = Dataset(name, digest[:_MAX_DIGEST_CHARACTERS], "uri", json.dumps({"uri": source}))
        entry = DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])
        self._calls.put(lambda client, run_id: client.log_inputs(run_id, [entry]))

    @_counted
    def log_artifact(self, uri: str, artifact_folder: str | None = None) -> None:
        """Log the file or folder at ``uri`` below ``artifact_folder`` of the run's files."""
        self._calls.put(lambda client, run_id: upload(client, run_id, uri, artifact_folder))

    def adopt(self, run_id: str) -> None:
        """Make the run ``run_id`` a child of this one: MLflow's pages show it nested."""

        def call(client: MlflowClient, own: str) -> None:
            client.set_tag(run_id, PARENT_TAG, own)

        self._calls.put(call)

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, or as the exception says."""
        if kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    @_counted
    def finish(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; does nothing if it has ended.

        A process that ends without it ends its run as FAILED.
        """
        atexit.unregister(self.finish)
        if not self._thread.is_alive():
            return
        self._calls.put(lambda client, run_id: client.set_terminated(run_id, status))
        self._calls.put(None)
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            log.warning(
                "MLflow at %s is slow: gave up after %.0f s with %d entries not logged",
                shown_tracking_uri(self._work),
                CLOSING_SECONDS,
                self._calls.qsize(),
            )
        elif self.num_failures > 1:
            log.warning("MLflow: %d entries of this run were not logged", self.num_failures)

    def _do_calls(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                call(*self._opened())
            except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
                self._count_failure(error)
            finally:
                self._tried_to_open.set()

    def _count_failure(self, error: Exception) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            reason = next(iter(str(error).splitlines()), "")[:200]
            log.warning(
                "MLflow at %s does not log (%s: %s); the run goes on without",
                shown_tracking_uri(self._work),
                type(error).__name__,
                reason,
            )

    def _opened(self) -> tuple[MlflowClient, str]:
        if self._client is None or self._run_id is None:
            client = open_client(self._work)
            self._run_id = self._continue(client) or self._create(client)
            self._client = client
        return self._client, self._run_id

    def _continue(self, client: MlflowClient) -> str | None:
        uri = storage.join(self._folder, RUN_ID)
        if not storage.exists(uri):
            return None
        run_id = storage.read_bytes(uri).decode().strip()
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        if run.info.lifecycle_stage != "active":
            return None
        self._last_steps = {
            name: max(point.step for point in client.get_metric_history(run_id, name))
            for name in run.data.metrics
        }
        client.update_run(run_id, status="RUNNING")
        return run_id

    def _create(self, client: MlflowClient) -> str:
        run = client.create_run(
            experiment_id(client, self._work), tags=self._tags, run_name=self._name
        )
        storage.write_bytes(storage.join(self._folder, RUN_ID), run.info.run_id.encode())
        return str(run.info.run_id)


def tracked_run(
    work: str, folder: str, name: str, tags: Mapping[str, str] | None = None
) -> TrackedRun:
    """Return the MLflow run of the stage in ``folder``, opened or continued."""
    return TrackedRun(work, folder, name, tags)


def upload(client: MlflowClient, run_id: str, uri: str, artifact_folder: str | None) -> None:
    """Put the file or folder at ``uri`` among the run's files."""
    with TemporaryDirectory() as scratch:
        path = storage.local_path(uri)
        if path is None:
            fs, remote = storage.filesystem(uri)
            path = Path(scratch, uri.rstrip("/").rpartition("/")[2])
            fs.get(remote, str(path), recursive=bool(fs.isdir(remote)))
        log_path = client.log_artifacts if path.is_dir() else client.log_artifact
        log_path(run_id, str(path), artifact_folder)


def _log_params(params: list[Param], client: MlflowClient, run_id: str) -> None:
    client.log_batch(run_id, params=params)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
