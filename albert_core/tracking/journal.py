"""What a process logs to MLflow: on disk immediately, at the server when it answers.

Each `TrackedRun` has a journal: a file with a line of JSON for each entry. The first entry, the
header, names the run. The process holds a lock on the file, which the system releases
however the process ends. A journal without a lock was left behind, and any process may send it.

Only the server knows what has arrived. A step of a metric that the server has is not sent again,
nor a parameter, and all other entries may arrive twice without harm. So a journal can always be
sent again from its start.
"""

import errno
import fcntl
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Self

from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException

from albert_core.stage import credentials, errors, manifest, storage
from albert_core.tracking import server

JOURNALS = "mlflow_journals"
"""Folder in the work folder."""
JOURNAL_TAG = "journal"
"""Tag of a run, by which it is found if the answer with its id was lost."""
SENT, LIVING, ELSEWHERE, DAMAGED = "sent", "living", "elsewhere", "damaged"
"""What became of a journal; see `send_left`."""

_MAX_ENTRIES = 1000
"""Entries in one call of ``log_batch``, which splits them further by MLflow's limits."""
_RETRY_SECONDS = (1, 2, 4, 8, 16, 30, 30, 30, 30)
"""Pauses before the retries of an entry that fails while the server answers: the artifact store may
be unavailable by itself."""
_NOT_RETRIED = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")
_HEADER = {"server", "folder", "name", "tags", "time"}
_NOT_BATCHED = {"artifact", "child", "dataset", "end", "model", "uses"}

log = logging.getLogger("tracking")

Entry = dict[str, Any]


class ServerUnavailableError(Exception):
    """The tracking server does not answer. Try again later."""


class Journal:
    """A file of entries, locked by this process, and their way to the server.

    Args:
        work: folder for all results.
        path: where the file is, or will be.
        file: the file, open and locked.
        is_left: whether the journal was begun by a process that no longer exists.
    """

    _client: MlflowClient

    def __init__(self, work: str, path: Path, file: IO[bytes], is_left: bool) -> None:
        self.path = path
        self.run_id = ""
        """Id of the MLflow run; empty until `open` succeeds."""
        self.num_appended = self.num_arrived = self.num_lost = 0
        """Entries. Lost are those that the server refused, or that the disk had no room for."""
        self._work, self._file, self._is_left = work, file, is_left
        self._appending = threading.Lock()
        self._unsent: list[Entry] = []
        """Entries that were read and have not arrived."""
        self._position = 0
        """In the file, after the last entry that was read."""
        self._points: set[tuple[str, int]] = set()
        """Name and step of each metric that the server has."""
        self._params: set[str] = set()
        self._has_ended = False
        self._pauses = iter(_RETRY_SECONDS)

    @classmethod
    def begin(cls, work: str, folder: str, header: Mapping[str, Any]) -> Self:
        """Return a new journal of the run of a stage's folder.

        Raises:
            OSError: the file can't be written.
        """
        name = f"{time.time_ns()}-{storage.process_name()}~{_label(folder)}.jsonl"
        path = journal_folder(work) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_suffix(".tmp")
        file = hidden.open("a+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        journal = cls(work, path, file, is_left=False)
        try:
            journal.append(header)
        except OSError:
            hidden.unlink()
            file.close()
            raise
        hidden.rename(path)  # no other process sees it before it is locked and has its header
        return journal

    @classmethod
    def claim(cls, work: str, path: Path) -> Self | None:
        """Return the journal at ``path``, or None if it is locked, or was just sent."""
        with suppress(FileNotFoundError, BlockingIOError):  # its process is alive
            file = path.open("r+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.stat()  # it may have been sent before it was locked
            except OSError:
                file.close()
                raise
            return cls(work, path, file, is_left=True)
        return None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry, with the time, to the end. Several threads may append.

        The entry survives the end of this process, but not a power failure.

        Raises:
            OSError: the disk is full or has failed.
        """
        line = (json.dumps({"time": int(time.time() * 1000), **entry}) + "\n").encode()
        number = self._file.fileno()
        with self._appending:
            size = os.fstat(number).st_size
            if os.pwrite(number, line, size) < len(line):
                os.ftruncate(number, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self.num_appended += 1

    def read(self) -> list[Entry]:
        """Return entries that are not sent yet, in order.

        A line without an end is not read: it is being written, or its process was killed.
        """
        if not self._unsent:
            number = self._file.fileno()
            num_bytes = os.fstat(number).st_size - self._position
            lines, end, _ = os.pread(number, num_bytes, self._position).rpartition(b"\n")
            self._position += len(lines + end)
            self._unsent = [_parsed(line) for line in lines.splitlines()]
        return self._unsent

    def open(self) -> None:
        """Find the MLflow run of the stage's folder, or create it; once.

        Raises:
            ServerUnavailableError: the server does not answer.
        """
        if self.run_id:
            return
        header = self.read()[0]
        try:
            self._client = client = server.open_client(self._work)
            experiment = server.experiment_id(client, self._work, header.get("experiment", ""))
            run = self._find(header, experiment)
            if run is None:
                tags = {**header["tags"], JOURNAL_TAG: self.path.name}
                made = client.create_run(experiment, header["time"], tags, header["name"])
                run = self._find(header, experiment) or made
            self._resume(header["folder"], run)
        except Exception as error:
            raise ServerUnavailableError(said(error)) from error

    def send(self) -> None:
        """Send the entries that are in the file.

        Raises:
            ServerUnavailableError: the server does not answer. What arrived is not sent again.
        """
        self.open()
        while unsent := self.read():
            batch = takewhile(_NOT_BATCHED.isdisjoint, unsent[:_MAX_ENTRIES])
            self._deliver(list(batch) or unsent[:1])
        if self._is_left and not self._has_ended:
            last = os.fstat(self._file.fileno()).st_mtime
            self._deliver([{"end": "KILLED", "time": int(last * 1000)}])

    def note_lost(self, where: str, error: Exception) -> None:
        """Count a lost entry; log the first."""
        self.num_lost += 1
        if self.num_lost == 1:
            log.warning("%s (%s); the run goes on without it", where, said(error))

    def remove(self) -> None:
        """Remove the file: everything has arrived."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()

    def _find(self, header: Entry, experiment: str) -> entities.Run | None:
        """Return the run of the stage's folder, or the one made for this journal.

        MLflow's client repeats a request whose answer is lost, which may create several runs. All
        but one are deleted.
        """
        client = self._client
        if known := server.known_run_id(header["folder"]):
            try:
                run = client.get_run(known)
                if run.info.lifecycle_stage == "active":
                    return run
            except MlflowException as error:
                if error.error_code not in _NOT_RETRIED:
                    raise
        made_for_this = f"tags.{JOURNAL_TAG} = '{self.path.name}'"
        found = client.search_runs([experiment], made_for_this, order_by=["attributes.run_id"])
        for run in found[1:]:
            client.delete_run(run.info.run_id)
        return next(iter(found), None)

    def _resume(self, folder: str, run: entities.Run) -> None:
        run_id = str(run.info.run_id)
        if server.known_run_id(folder) != run_id:
            storage.write_bytes(storage.join(folder, server.RUN_ID), run_id.encode())
        self._params = set(run.data.params)
        self._points = {
            (name, point.step)
            for name in run.data.metrics
            for point in self._client.get_metric_history(run_id, name)
        }
        if self._is_left:
            self._has_ended = run.info.status == "FINISHED"  # by a later process
        elif run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id

    def _deliver(self, entries: list[Entry]) -> None:
        """Send entries in one call; leave out and count those that the server refuses."""
        while True:
            try:
                self._do(entries)
                self._pauses = iter(_RETRY_SECONDS)
                break
            except ServerUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, the next entry is sent
                self._check_server(error)
                if len(entries) > 1:
                    for entry in entries:
                        self._deliver([entry])
                    return
                pause = next(self._pauses, 0) if _may_succeed(error) else 0
                if not pause:
                    server = storage.shown_tracking_uri(self._work)
                    self.note_lost(f"MLflow at {server} refuses an entry", error)
                    break
                time.sleep(pause)
        self.num_arrived += len(entries)
        del self._unsent[: len(entries)]

    def _check_server(self, error: Exception) -> None:
        """Raise ServerUnavailableError if the server does not answer, which explains ``error``.

        Nor does it take anything, for now, where its database or its disk is full.
        """
        try:
            self._client.search_experiments(max_results=1)
            is_full = errors.lacks_room(error)
        except Exception:  # noqa: BLE001
            is_full = True
        if is_full:
            raise ServerUnavailableError(said(error)) from error

    def _do(self, entries: list[Entry]) -> None:
        client, entry = self._client, entries[0]
        if "dataset" in entry:
            name, digest, source, context = entry["dataset"].values()
            where = json.dumps({"uri": source})
            dataset = entities.Dataset(*server.data_set(name, digest), "uri", where)
            tags = [entities.InputTag("mlflow.data.context", context)]
            client.log_inputs(self.run_id, [entities.DatasetInput(dataset, tags)])
        elif "artifact" in entry:
            server.upload(client, self.run_id, entry["artifact"], entry["artifact_folder"])
        elif "model" in entry:
            server.log_output(client, self.run_id, server.Output(**entry["model"]))
        elif "uses" in entry:
            experiment = client.get_run(self.run_id).info.experiment_id
            if used := server.model_with(client, experiment, entry["uses"]):
                client.log_inputs(self.run_id, models=[entities.LoggedModelInput(used.model_id)])
        elif "child" in entry:
            self._adopt(**entry["child"])
        elif "end" not in entry:
            self._log_values(entries)
        elif not self._has_ended:
            client.set_terminated(self.run_id, entry["end"], entry["time"])
            self._has_ended = True

    def _log_values(self, entries: list[Entry]) -> None:
        """Send metrics and parameters that the server does not have, and tags."""
        points: dict[tuple[str, int], entities.Metric] = {}
        values: dict[str, dict[str, str]] = {"params": {}, "tags": {}}
        for entry in entries:
            moment, step = entry["time"], entry.get("step", 0)
            for name, value in entry.get("metrics", {}).items():
                if (name, step) not in self._points and (name, step) not in points:
                    points[name, step] = entities.Metric(name, value, moment, step)
            for kind, of_kind in values.items():
                of_kind.update(entry.get(kind, {}))
        params = [entities.Param(*each) for each in values["params"].items()]
        params = [param for param in params if param.key not in self._params]
        tags = [entities.RunTag(*each) for each in values["tags"].items()]
        self._client.log_batch(self.run_id, list(points.values()), params, tags)
        self._points |= points.keys()

    def _adopt(self, stage: str, folder: str, run: str) -> None:
        """Nest another run in this one, or point to it if it belongs to an earlier flow run.

        Args:
            stage: stage of the other run.
            folder: folder of that stage, which has the id of its run once its journal is sent.
            run: that id as its manifest has it, or empty.
        """
        child_id = server.known_run_id(folder)
        if not child_id:
            is_living = LIVING in set(send_left(self._work, folder))
            child_id = server.known_run_id(folder) or run
            if is_living and not child_id:
                raise ServerUnavailableError(f"another process has not sent the run of {folder}")
        if not child_id:
            return  # that stage is not tracked
        client = self._client
        child, since = client.get_run(child_id), client.get_run(self.run_id).info.start_time
        parent, ended = child.data.tags.get(server.PARENT_TAG), child.info.end_time
        if parent is None or ended is None or ended >= since:
            client.set_tag(child_id, server.PARENT_TAG, self.run_id)
        elif parent != self.run_id:
            client.set_tag(self.run_id, f"done_before.{stage}", child_id)


def journal_folder(work: str) -> Path:
    """Return where the journals of all runs in ``work`` are.

    Object stores can't append to a file. For a ``work`` that is not on this machine the journals
    are in the machine's folder for temporary files.
    """
    local = storage.local_path(work)
    if local is None:
        return Path(tempfile.gettempdir(), f"albert-{manifest.digest_of(work)[:12]}", JOURNALS)
    return local.absolute() / JOURNALS


def journals_of(work: str, folder: str = "") -> list[Path]:
    """Return the journals in ``work``, oldest first; only those of a stage's folder if given."""
    return sorted(journal_folder(work).glob(f"*~{_label(folder) if folder else '*'}.jsonl"))


def send_left(work: str, folder: str = "", before: Path | None = None) -> Iterator[str]:
    """Send the journals that dead processes left in ``work``, oldest first.

    Args:
        work: folder for all results.
        folder: folder of a stage; only its journals are sent. Empty for all.
        before: a journal; it and later ones are left out.

    Yields:
        For each journal: SENT; LIVING where another process or thread sends it, or just did; or
        ELSEWHERE where it is meant for another tracking server; or DAMAGED where its first line
        names no run, and it is set aside.

    Raises:
        ServerUnavailableError: the server does not answer.
    """
    for path in takewhile(lambda path: path != before, journals_of(work, folder)):
        journal = Journal.claim(work, path)
        if journal is None:
            yield LIVING
            continue
        with closing(journal):
            entries = journal.read()
            here = storage.shown_tracking_uri(work)
            if entries and entries[0].get("server", here) != here:
                yield ELSEWHERE
                continue
            if entries and not entries[0].keys() >= _HEADER:
                aside = path.replace(path.with_suffix(".damaged"))
                log.warning("%s names no run: it is damaged, and set aside", aside)
                yield DAMAGED
                continue
            if entries:  # a power failure leaves an empty file
                journal.send()
            journal.remove()
        yield SENT


def send_journals(work: str) -> str:
    """Send the journals that runs left in a work folder; return a line that says how many.

    Raises:
        OutageError: the server does not answer. What did not arrive is kept.
    """
    server = storage.shown_tracking_uri(work)
    try:
        found = Counter(send_left(work))
    except ServerUnavailableError as error:
        raise errors.OutageError(
            f"MLflow at {server} does not answer ({error}). Start it, or set "
            f"{storage.TRACKING_URI}; nothing is lost."
        ) from error
    damaged = f"{found[DAMAGED]} damaged and set aside, " if found[DAMAGED] else ""
    return (
        f"{found[SENT]} sent, {damaged}{found[LIVING]} of living processes, {found[ELSEWHERE]} "
        f"for another server than {server}; they are in {journal_folder(work)}"
    )


def said(error: BaseException) -> str:
    """Return an error's type and the first line of its message, without credentials."""
    reason = next(iter(credentials.redacted(str(error)).splitlines()), "")[:200]
    return f"{type(error).__name__}: {reason}"


def _may_succeed(error: Exception) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(error, MlflowException):
        return error.error_code not in _NOT_RETRIED
    return not isinstance(error, FileNotFoundError)


def _parsed(line: bytes) -> Entry:
    """Return the entry of a line; an empty one if a power failure damaged the line."""
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        return entry if isinstance(entry, dict) else {}
    return {}


def _label(folder: str) -> str:
    """Return the stage and the key of a stage's folder, as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", "-".join(folder.rstrip("/").split("/")[-2:]))
