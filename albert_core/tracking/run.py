"""A stage's run in MLflow: what it logs goes to disk at once, and to the server in the background.

Nothing here may stop or slow a training. A tracking server that is away for a while gets later
what it missed; one that is still away at the end gets it from the next run in the work folder, or
from ``albert send-journals``.

A run's latest metrics are at ``http://127.0.0.1:PORT/metrics`` if a port is given. Prometheus asks
for them, so that a run waits for nobody; OpenTelemetry would need a collector to send to.

What the machine does (processor, memory, disk, network, GPUs) is measured by MLflow's collectors.
Its thread that sends what they find is not used: it gives up when the server is away. Here the
numbers are points of the run's curves.
"""

import atexit
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from albert_core.stage import storage
from albert_core.stage.environment import shown_tracking_uri
from albert_core.stage.errors import ConfigError
from albert_core.stage.log import note_ids
from albert_core.tracking.journal import Journal
from albert_core.tracking.sender import JournalSender, ServerAwayError, said, send_left
from albert_core.tracking.server import PARENT_TAG

PARENT_VARIABLE = "ALBERT_MLFLOW_PARENT"
"""Environment variable with the id of the run that the runs of a process are nested in."""
OPENING_SECONDS = 30.0
"""How long to wait for the id of a run."""
CLOSING_SECONDS = 60.0
"""How long to wait at the end for what is still to be sent."""
AWAY_SECONDS = 10.0
"""The same when the server does not answer."""
MAX_SECONDS_BETWEEN_TRIES = 30.0

_FIRST_SECONDS_BETWEEN_TRIES = 1.0
_MAX_PARAM_CHARACTERS = 6000

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("tracking")


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


class TrackedRun:
    """The MLflow run of one stage's folder: opened, or continued if it was opened before.

    No method raises or waits, but for `run_id` and `finish`, which wait for a limited time.

    Args:
        work: folder for all results.
        folder: the stage's folder, which keeps the id of its run.
        name: what MLflow's pages show.
        tags: of the run.
        began: seconds since 1970, where it began before this call.
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
        """How long the callers of this object were held up by it."""
        self._work, self._folder = work, storage.absolute(folder)
        parent, stage = os.environ.get(PARENT_VARIABLE), self._folder.split("/")[-2]
        header = {
            "server": shown_tracking_uri(work),
            "folder": self._folder,
            "name": name,
            **({"time": int(began * 1000)} if began else {}),
            "tags": {
                "stage_folder": self._folder,
                "stage": stage,
                "mlflow.source.name": stage,
                "mlflow.source.type": "JOB",
                **({PARENT_TAG: parent} if parent else {}),
                **(tags or {}),
            },
        }
        self._num_unwritten = 0
        self._is_away = False
        self._written, self._closing = threading.Event(), threading.Event()
        self._tried_to_open = threading.Event()
        self._journal = Journal.begin(work, self._folder, header)
        self._sender = JournalSender(work, self._journal, is_new=True)
        self._thread = threading.Thread(target=self._send, name="mlflow", daemon=True)
        self._thread.start()
        atexit.register(self.finish, "FAILED")

    @property
    def num_failures(self) -> int:
        """Entries that the server refused, or that the disk had no room for."""
        return self._sender.num_refused + self._num_unwritten

    @property
    def key(self) -> str:
        """The name of the stage's folder."""
        return self._folder.rpartition("/")[2]

    @property
    def num_waiting(self) -> int:
        """Entries that are not at the server yet."""
        return self._journal.num_entries - 1 - self._sender.num_arrived

    @property
    @_counted
    def run_id(self) -> str | None:
        """The run's id, or None if the tracking server did not give one in time."""
        self._tried_to_open.wait(OPENING_SECONDS)
        return self._sender.run_id

    @property
    def known_run_id(self) -> str | None:
        """The run's id if it is known already."""
        return self._sender.run_id

    @_counted
    def log_params(self, settings: Mapping[str, Any]) -> None:
        """Log settings, nested ones by their path; what is too long is cut."""
        flat = {key: str(value)[:_MAX_PARAM_CHARACTERS] for key, value in _flat(settings)}
        self._append({"params": flat})

    @_counted
    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log ``metrics`` of ``step``, but for those that were logged before a resume."""
        self._append(
            {"step": step, "metrics": {name: float(value) for name, value in metrics.items()}}
        )

    @_counted
    def log_dataset(self, name: str, digest: str, source: str, context: str = "training") -> None:
        """Log that the run reads, or made, the data set ``name``.

        Args:
            name: what MLflow's pages show.
            digest: of its content.
            source: URI of its manifest or folder.
            context: what the run has to do with it.
        """
        entry = {"name": name, "digest": digest, "source": source, "context": context}
        self._append({"dataset": entry})

    @_counted
    def log_artifact(self, uri: str, artifact_folder: str | None = None) -> None:
        """Log the file or folder at ``uri`` below ``artifact_folder`` of the run's files."""
        self._append({"artifact": uri, "artifact_folder": artifact_folder})

    @_counted
    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._append({"tags": dict(tags)})

    def adopt(self, stage: str, folder: str, run_id: str | None = None) -> None:
        """Make the run of another stage a child of this one: MLflow's pages show it nested.

        One that ended before this run began, and has a parent, keeps it; a tag points to it.

        Args:
            stage: name of the other.
            folder: its folder, which tells its run.
            run_id: of its run, if the folder does not tell.
        """
        child = {"stage": stage, "folder": storage.absolute(folder), "run": run_id or ""}
        self._append({"child": child})

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, or as the exception says."""
        if kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED, without waiting; once.

        A process that ends without it ends its run as FAILED; one that is killed, as KILLED when
        its journal is found.
        """
        if self._closing.is_set():
            return
        self._append({"end": status})
        self._closing.set()
        self._written.set()

    @_counted
    def finish(self, status: str) -> None:
        """End the run, if it has not ended; wait for a limited time until all is sent."""
        atexit.unregister(self.finish)
        self.end(status)
        self._wait_to_close()
        if self._thread.is_alive():
            log.warning(
                "MLflow at %s is %s: %d entries of this run wait in %s. The next run in this work "
                "folder sends them, or: albert send-journals --work %s",
                shown_tracking_uri(self._work),
                "away" if self._is_away else "slow",
                self.num_waiting,
                self._journal.path,
                self._work,
            )
        elif self.num_failures > 1:
            log.warning("MLflow: %d entries of this run were not logged", self.num_failures)

    def _wait_to_close(self) -> None:
        deadline = time.monotonic() + CLOSING_SECONDS
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            arrived = self._sender.num_arrived
            self._thread.join(min(AWAY_SECONDS, left))
            if self._is_away and self._sender.num_arrived == arrived:
                return

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            self._journal.append(entry)
        except (OSError, ValueError) as error:
            self._num_unwritten += 1
            if self._num_unwritten == 1:
                log.warning("%s; the run goes on without MLflow", said(error))
        self._written.set()

    def _send(self) -> None:
        """Send what is written until the run has ended and all has arrived."""
        pause, began_to_miss = _FIRST_SECONDS_BETWEEN_TRIES, 0.0
        while True:
            try:
                is_last = self._closing.is_set()
                self._written.clear()
                self._send_once()
            except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
                began_to_miss = began_to_miss or time.monotonic()
                self._note_away(error)
                self._closing.wait(pause)
                if self._closing.is_set():
                    time.sleep(_FIRST_SECONDS_BETWEEN_TRIES)
                pause = min(2 * pause, MAX_SECONDS_BETWEEN_TRIES)
                continue
            if self._is_away:
                self._is_away = False
                away = time.monotonic() - began_to_miss
                log.info("MLflow answers again after %.0f s: all that waited was sent", away)
            pause, began_to_miss = _FIRST_SECONDS_BETWEEN_TRIES, 0.0
            if is_last:
                self._journal.remove()
                return
            self._written.wait()

    def _send_once(self) -> None:
        if self._sender.run_id is not None:
            self._sender.send()
            return
        while send_left(self._work, self._folder, but=self._journal.path).num_busy:
            time.sleep(_FIRST_SECONDS_BETWEEN_TRIES)  # another process is at it
        self._sender.send()
        note_ids(mlflow_run_id=str(self._sender.run_id))
        self._tried_to_open.set()
        threading.Thread(target=_send_left_quietly, args=[self._work], daemon=True).start()

    def _note_away(self, error: Exception) -> None:
        self._tried_to_open.set()
        if self._is_away:
            return
        self._is_away = True
        log.warning(
            "MLflow at %s does not answer (%s); the run goes on, and what it logs waits in %s",
            shown_tracking_uri(self._work),
            error if isinstance(error, ServerAwayError) else said(error),
            self._journal.path,
        )


def tracked_run(
    work: str, folder: str, name: str, tags: Mapping[str, str] | None = None
) -> TrackedRun:
    """Return the MLflow run of the stage in ``folder``, opened or continued."""
    return TrackedRun(work, folder, name, tags)


def _send_left_quietly(work: str) -> None:
    """Send what dead processes left; should the server go away, the next run does it."""
    try:
        found = send_left(work)
    except ServerAwayError:
        return
    if found.run_ids:
        log.info("MLflow: sent what earlier processes left of %d runs", len(found.run_ids))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


PORT, HOST = "ALBERT_METRICS_PORT", "ALBERT_METRICS_HOST"
_LOOPBACK = "127.0.0.1"


class MetricsEndpoint:
    """A page with a gauge ``albert_NAME`` for each metric, with the run's key as a label.

    Args:
        host: address to listen on.
        port: a free one.
        run: key of the run.
    """

    def __init__(self, host: str, port: int, run: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry, self._run, self._make = CollectorRegistry(), run, Gauge
        self._gauges: dict[str, Gauge] = {}
        self._server, self._thread = start_http_server(port, host, self._registry)

    @classmethod
    def of_environment(cls, run: str) -> Self | None:
        """Return the endpoint that the environment asks for; None if it does not.

        A port that is taken is no reason to end a run: it is said, and there is no endpoint.

        Raises:
            ConfigError: the port is no number, or prometheus_client is not installed.
        """
        if not (text := os.environ.get(PORT)):
            return None
        if not text.isdecimal():
            raise ConfigError(f"{PORT}={text!r} must be a number, of a free port")
        host = os.environ.get(HOST) or _LOOPBACK
        try:
            return cls(host, int(text), run)
        except ImportError as error:
            raise ConfigError(f"{PORT} needs prometheus_client: pip install it") from error
        except OSError as error:
            log.warning("no metrics at %s:%s (%s); the run goes on without", host, text, error)
            return None

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show ``metrics`` of ``step`` from now on."""
        for name, value in {**metrics, "step": float(step)}.items():
            if name not in self._gauges:
                safe = re.sub(r"\W", "_", name)
                gauge = self._make(f"albert_{safe}", name, ["run"], registry=self._registry)
                self._gauges[name] = gauge
            self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


if TYPE_CHECKING:
    from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor

PREFIX = "system/"
"""MLflow's pages show such metrics on a tab of their own."""


class SystemMetrics:
    """Measures now and then; the processor's load is the mean since the time before."""

    def __init__(self) -> None:
        # MLflow takes a second or two to load, and a run that is done already measures nothing.
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with suppress(ImportError, RuntimeError):  # no nvidia-ml-py, or no GPU
            self._monitors.append(GPUMonitor())
        self.measure()

    def measure(self) -> dict[str, float]:
        """Return the metrics of this moment, by the names of MLflow's own."""
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found.update(monitor.aggregate_metrics())
            monitor.clear_metrics()
        return {f"{PREFIX}{name}": float(value) for name, value in found.items()}
