"""The run of a stage in MLflow: logged to disk at once, and sent to the server in the background.

Nothing here may stop or slow a training: what is logged is written to a `Journal`, and a thread
sends it from there.
"""

import atexit
import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Self

from albert_core.stage import errors, servers, storage
from albert_core.stage.log import note_ids
from albert_core.tracking import server
from albert_core.tracking.journal import (
    LIVING,
    OPENING_SECONDS,
    SECONDS_BETWEEN_SENDS,
    Journal,
    said,
    send_left,
)

PARENT_VARIABLE = "ALBERT_MLFLOW_PARENT"
"""Environment variable with the id of the run in which a process's runs are nested."""
TAGS_VARIABLE = "ALBERT_MLFLOW_TAGS"
"""Environment variable with tags of all runs of a process, as JSON: "recipe", "model" (by name) and
"text" are among them, if they are known, and make a run's name."""
UNAVAILABLE_SECONDS = 10.0
"""Longest wait at the end for entries that are not sent yet."""
CLOSING_SECONDS = 50.0
"""Additional wait at the end if the server answers."""
RETRY_SECONDS = 5.0
"""Pause before the next attempt if the server does not answer."""

log = logging.getLogger("tracking")


class TrackedRun:
    """The MLflow run of one stage's folder: created, or continued if the folder has one.

    No method raises. Only `run_id` and `finish` wait, and only for a limited time.

    Args:
        work: folder for all results.
        folder: the stage's folder, where the id of its run is kept.
        name: activity of the run, for its name on MLflow's pages.
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
        """Time that callers of this object have waited for it."""
        self.refusal: errors.ConfigError | None = None
        """Why the server takes nothing of this run, if that was its first answer: who began the run
        may end it before it has done much. Later on, nothing ends it for that."""
        self._work, self._folder = work, storage.absolute(folder)
        parent, stage = os.environ.get(PARENT_VARIABLE), self._folder.split("/")[-2]
        tags = {**(tags or {}), **json.loads(os.environ.get(TAGS_VARIABLE) or "{}")}
        header = {
            "server": servers.tracking_name(work),
            "experiment": server.experiment_name(),
            "folder": self._folder,
            "name": run_name(name, tags, self.key, began),
            **({"time": int(began * 1000)} if began else {}),
            "tags": {
                "stage_folder": self._folder,
                "stage": stage,
                "mlflow.source.name": stage,
                "mlflow.source.type": "JOB",
                **({server.PARENT_TAG: parent} if parent else {}),
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
        self._append({"params": server.params_of(settings)})

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

    def log_model(self, output: server.Output) -> None:
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
            folder: folder of that stage, which has the id of its run.
            run_id: id of its run, in case the folder does not have it.
        """
        child = {"stage": stage, "folder": storage.absolute(folder), "run": run_id or ""}
        self._append({"child": child})

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, FAILED for an Exception, KILLED for a KeyboardInterrupt or so."""
        failed = "KILLED" if kind and not issubclass(kind, Exception) else "FAILED"
        self.finish(failed if kind else "FINISHED")

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
                servers.shown_tracking_uri(self._work),
                "slow" if self._unavailable_since is None else "unavailable",
                self.num_waiting,
                self._journal.path,
                shlex.quote(self._work),
            )
        elif self.num_failures > 1:
            log.warning("MLflow: %d entries of this run were not logged", self.num_failures)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self._timed():
            try:
                self._journal.append(entry)
            except (OSError, ValueError) as error:
                self._journal.note_lost("MLflow's journal does not take an entry", error)

    def _send(self) -> None:
        """Send this run's entries until its end; in between, the journals that others left."""
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
                    self._ended.wait(SECONDS_BETWEEN_SENDS)
            except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
                if isinstance(error, errors.ConfigError) and not self._tried_to_open.is_set():
                    self.refusal = error
                self._note_outage(error)
                time.sleep(SECONDS_BETWEEN_SENDS)
                self._ended.wait(RETRY_SECONDS)

    def _send_new(self) -> None:
        if not self._journal.run_id:
            while LIVING in send_left(self._work, self._folder, before=self._journal.path):
                time.sleep(SECONDS_BETWEEN_SENDS)  # another process sends this run's earlier part
            self._journal.open()
            note_ids(mlflow_run_id=self._journal.run_id)
            self._tried_to_open.set()
        self._journal.send()

    def _note_outage(self, error: Exception) -> None:
        self._tried_to_open.set()
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            what = error if isinstance(error, errors.AlbertError) else said(error)
            where = self._journal.path
            goes_on = "" if self.refusal else "the run goes on, and "  # or not, if it is a flow's
            log.warning("%s; %sits entries wait in %s", what, goes_on, where)

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
