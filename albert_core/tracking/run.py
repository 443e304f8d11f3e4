"""A stage's run in MLflow: what it logs goes to disk first, and to the server in the background.

Nothing here may stop or slow a training. A tracking server that is unavailable for a while gets
what it missed later. If it is still unavailable at the end, the next run in the work folder sends
the rest, or ``albert send-journals`` does.

A run's latest metrics are at ``http://127.0.0.1:PORT/metrics`` if a port is given, where Prometheus
reads them, so that a run waits for nobody. OpenTelemetry would need a collector to send to.

MLflow's collectors measure the machine: processor, memory, disk, network, GPUs. MLflow's own thread
that sends their numbers gives up when the server does not answer, so here they are points of the
run's curves.
"""

import atexit
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Self

from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from albert_core.stage import errors, storage
from albert_core.stage.log import note_ids
from albert_core.tracking.journal import LIVING, Journal, ServerUnavailableError, said, send_left
from albert_core.tracking.server import PARENT_TAG, Output, experiment_name, flat

PARENT_VARIABLE = "ALBERT_MLFLOW_PARENT"
"""Environment variable with the id of the run that the runs of a process are nested in."""
TAGS_VARIABLE = "ALBERT_MLFLOW_TAGS"
"""Environment variable with tags of all runs of a process, as JSON: "recipe", "model" (by name) and
"text" are among them, if they are known, and make a run's name."""
OPENING_SECONDS = 30.0
"""How long to wait for the id of a run."""
UNAVAILABLE_SECONDS = 10.0
"""How long to wait at the end for what is not sent yet."""
CLOSING_SECONDS = 50.0
"""How long to go on waiting if the server answers."""
RETRY_SECONDS = 5.0
"""Pause before the next try if the server does not answer."""

_SECONDS_BETWEEN_SENDS = 1.0

log = logging.getLogger("tracking")


class TrackedRun:
    """The MLflow run of one stage's folder: created, or continued if the folder has one.

    No method raises. Only `run_id` and `finish` wait, and only for a limited time.

    Args:
        work: folder for all results.
        folder: the stage's folder, where the id of its run is kept.
        name: what the run does, for its name on MLflow's pages.
        tags: further tags of the run.
        began: start of the run in seconds since 1970, if not now.
    """

    def __init__(
        self,
        work: str,
        folder: str,
        name: str,
        tags: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> None:
        self.seconds = 0.0
        """How long the callers of this object had to wait for it."""
        self._work, self._folder = work, storage.absolute(folder)
        parent, stage = os.environ.get(PARENT_VARIABLE), self._folder.split("/")[-2]
        tags = {**(tags or {}), **json.loads(os.environ.get(TAGS_VARIABLE) or "{}")}
        header = {
            "server": storage.shown_tracking_uri(work),
            "experiment": experiment_name(),
            "folder": self._folder,
            "name": run_name(name, tags, self.key, began),
            **({"time": int(began * 1000)} if began else {}),
            "tags": {
                "stage_folder": self._folder,
                "stage": stage,
                "mlflow.source.name": stage,
                "mlflow.source.type": "JOB",
                **({PARENT_TAG: parent} if parent else {}),
                **tags,
            },
        }
        self._journal = Journal.begin(work, self._folder, header)
        self._unavailable_since: float | None = None
        self._tried_to_open, self._ended, self._done = (threading.Event() for _ in range(3))
        threading.Thread(target=self._send, name="mlflow", daemon=True).start()
        atexit.register(self.finish, "FAILED")

    @property
    def num_failures(self) -> int:
        """Entries that the server refused, or that the disk had no room for."""
        return self._journal.num_lost

    @property
    def key(self) -> str:
        """Name of the stage's folder."""
        return self._folder.rpartition("/")[2]

    @property
    def num_waiting(self) -> int:
        """Entries that are not at the server yet."""
        return self._journal.num_appended - self._journal.num_arrived

    @property
    def run_id(self) -> str | None:
        """The run's id, or None if the tracking server did not give one in time."""
        with self._timed():
            self._tried_to_open.wait(OPENING_SECONDS)
        return self.known_run_id

    @property
    def known_run_id(self) -> str | None:
        """The run's id if it is known already."""
        return self._journal.run_id or None

    def log_params(self, settings: Mapping[str, Any]) -> None:
        """Log settings, nested ones by their path. Values that are too long are cut."""
        self._append({"params": flat(settings)})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log ``metrics`` of ``step``, except those that were logged before a resume."""
        values = {name: float(value) for name, value in metrics.items()}
        self._append({"step": step, "metrics": values})

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Log that the run reads, or made, the data set ``name``.

        Args:
            name: the data set's name on MLflow's pages.
            digest: digest of its content.
            source: URI of its manifest or folder.
            context: its role in the run, e.g. train, held_out or dev.
        """
        entry = {"name": name, "digest": digest, "source": source, "context": context}
        self._append({"dataset": entry})

    def log_artifact(self, uri: str, artifact_folder: str | None = None) -> None:
        """Copy the file or folder at ``uri`` to ``artifact_folder`` of the run's files."""
        self._append({"artifact": uri, "artifact_folder": artifact_folder})

    def log_model(self, output: Output) -> None:
        """Log a model that the run made, by the URI and the digest of its files."""
        self._append({"model": asdict(output)})

    def log_used_model(self, digest: str) -> None:
        """Log that the run uses the model with this digest, if MLflow knows one."""
        self._append({"uses": digest})

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._append({"tags": dict(tags)})

    def adopt(self, stage: str, folder: str, run_id: str | None = None) -> None:
        """Make the run of another stage a child of this one: MLflow's pages show it nested.

        A run that has a parent and ended before this run began keeps its parent. A tag of this run
        points to it.

        Args:
            stage: name of the other stage.
            folder: its folder, which has the id of its run.
            run_id: id of its run, in case the folder does not have it.
        """
        child = {"stage": stage, "folder": storage.absolute(folder), "run": run_id or ""}
        self._append({"child": child})

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, FAILED for an Exception, KILLED for a KeyboardInterrupt or so."""
        if kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED, without waiting. Later calls do nothing.

        If a process ends without this call, its run ends as FAILED. If it is killed, its run ends
        as KILLED when another process finds its journal.
        """
        if not self._ended.is_set():
            self._append({"end": status})
            self._ended.set()

    def finish(self, status: str) -> None:
        """End the run, if it has not ended; wait for a limited time until all is sent."""
        atexit.unregister(self.finish)
        self.end(status)
        with self._timed():
            if not self._done.wait(UNAVAILABLE_SECONDS) and self._unavailable_since is None:
                self._done.wait(CLOSING_SECONDS)
        if not self._done.is_set():
            log.warning(
                "MLflow at %s is %s: %d entries of this run wait in %s. The next run in this work "
                "folder sends them, or: albert send-journals --work %s",
                storage.shown_tracking_uri(self._work),
                "slow" if self._unavailable_since is None else "unavailable",
                self.num_waiting,
                self._journal.path,
                self._work,
            )
        elif self.num_failures > 1:
            log.warning("MLflow: %d entries of this run were not logged", self.num_failures)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self._timed():
            try:
                self._journal.append(entry)
            except (OSError, ValueError) as error:
                self._journal.note_lost("MLflow's journal does not take an entry", error)

    def _send(self) -> None:
        """Send this run's entries until all of it is sent; in between, what others left behind."""
        left = send_left(self._work)
        while not self._done.is_set():
            is_last = self._ended.is_set()
            try:
                self._send_new()
                self._note_answer()
                if is_last:
                    self._journal.remove()
                    self._done.set()
                elif not next(left, None):
                    self._ended.wait(_SECONDS_BETWEEN_SENDS)
            except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
                self._note_outage(error)
                time.sleep(_SECONDS_BETWEEN_SENDS)
                self._ended.wait(RETRY_SECONDS)

    def _send_new(self) -> None:
        if not self._journal.run_id:
            while LIVING in send_left(self._work, self._folder, before=self._journal.path):
                time.sleep(_SECONDS_BETWEEN_SENDS)  # another process sends this run's earlier part
            self._journal.open()
            note_ids(mlflow_run_id=self._journal.run_id)
            self._tried_to_open.set()
        self._journal.send()

    def _note_outage(self, error: Exception) -> None:
        self._tried_to_open.set()
        if self._unavailable_since is not None:
            return
        self._unavailable_since = time.monotonic()
        log.warning(
            "MLflow at %s does not answer (%s); the run goes on, and what it logs waits in %s",
            storage.shown_tracking_uri(self._work),
            error if isinstance(error, ServerUnavailableError) else said(error),
            self._journal.path,
        )

    def _note_answer(self) -> None:
        if self._unavailable_since is not None:
            seconds = time.monotonic() - self._unavailable_since
            self._unavailable_since = None
            log.info("MLflow answers again after %.0f s: all that waited was sent", seconds)


def run_name(name: str, tags: Mapping[str, str], key: str, began: float | None = None) -> str:
    """Return e.g. ``pretraining: albert-tiny on wiki, 2026-11-21 03:00`` (UTC)."""
    about = " on ".join(tags[each] for each in ("model", "text") if each in tags)
    when = datetime.fromtimestamp(began or time.time(), UTC)
    return f"{name}: {about or key[:8]}, {when:%Y-%m-%d %H:%M}"


PORT, HOST = "ALBERT_METRICS_PORT", "ALBERT_METRICS_HOST"
_LOOPBACK = "127.0.0.1"


class MetricsEndpoint:
    """A page with a gauge ``albert_NAME`` for each metric, with the run's key as a label.

    Args:
        host: address to listen on.
        port: a free port.
        run: key of the run.
    """

    def __init__(self, host: str, port: int, run: str) -> None:
        self._registry, self._run = CollectorRegistry(), run
        self._gauges: dict[str, Gauge] = {}
        self._server, self._thread = start_http_server(port, host, self._registry)

    @classmethod
    def of_environment(cls, run: str) -> Self | None:
        """Return the endpoint that the environment asks for, or None if it asks for none.

        If the port is taken, a warning is logged and there is no endpoint: the run continues.

        Raises:
            ConfigError: the port is no number.
        """
        if not (text := os.environ.get(PORT)):
            return None
        if not text.isdecimal():
            raise errors.ConfigError(f"{PORT}={text!r} must be a number, of a free port")
        host = os.environ.get(HOST) or _LOOPBACK
        try:
            return cls(host, int(text), run)
        except OSError as error:
            log.warning("no metrics at %s:%s (%s); the run continues without", host, text, error)
            return None

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show ``metrics`` of ``step`` from now on."""
        for name, value in {**metrics, "step": float(step)}.items():
            if name not in self._gauges:
                safe = re.sub(r"\W", "_", name)
                self._gauges[name] = Gauge(f"albert_{safe}", name, ["run"], registry=self._registry)
            self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


PREFIX = "system/"
"""MLflow's pages show metrics with this prefix on a tab of their own."""


class SystemMetrics:
    """Measures the machine on demand; the processor's load is the mean since the last time."""

    def __init__(self) -> None:
        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with suppress(ImportError, RuntimeError):  # no nvidia-ml-py, or no GPU
            self._monitors.append(GPUMonitor())
        self.measure()

    def measure(self) -> dict[str, float]:
        """Return the metrics of this moment, by MLflow's own names."""
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found.update(monitor.aggregate_metrics())
            monitor.clear_metrics()
        return {f"{PREFIX}{name}": float(value) for name, value in found.items()}
