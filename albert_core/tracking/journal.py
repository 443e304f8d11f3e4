"""The journals of runs: logged to disk at once, and sent to MLflow now or later.

Each run has a journal: a file with a line of JSON for each entry, of which the first, the header,
names the run. A server that is unavailable for a while gets the entries later; if it is still
unavailable at the end, the next run in the work folder sends the rest, or ``albert send-journals``
does.

The process holds a lock on its journal, which the system releases however the process ends; on a
file system without locks, a lease. A journal without a holder was left behind, and any process may
send it. Only the server knows which entries have arrived: it is asked for its points and
parameters, and these are not sent again. All other entries may arrive twice without harm. So a
journal can always be sent again from its start.
"""

import errno
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Self

from mlflow import MlflowClient, entities

from albert_core.stage import credentials, errors, lock, manifest, servers, storage
from albert_core.tracking import server

OPENING_SECONDS = 30.0
"""Longest wait for the id of a run."""
SENT, LIVING, ELSEWHERE, DAMAGED, REFUSED = "sent", "living", "elsewhere", "damaged", "refused"
"""Outcomes of `send_left`."""
SECONDS_BETWEEN_SENDS = 1.0
_JOURNALS = "mlflow_journals"
"""Folder in the work folder."""
_JOURNAL_TAG = "journal"
"""Tag by which a run is found if the answer with its id was lost."""
_MAX_ENTRIES = 1000
"""Entries in one call of ``log_batch``, which splits them further by MLflow's limits."""
_RETRY_SECONDS = (1, 2, 4, 8, 16, 30, 30, 30, 30)
"""Pauses before the retries of an entry that fails while the server answers: the artifact store may
be unavailable by itself."""
_NOT_RETRIED = (*server.ABSENT, "PERMISSION_DENIED")
_HEADER = {"server", "folder", "name", "tags", "time"}
_NOT_BATCHED = {"artifact", "child", "dataset", "end", "model", "uses"}

log = logging.getLogger("tracking")

Entry = dict[str, Any]


class Journal:
    """A file of entries, locked by this process, and their way to the server.

    Args:
        work: folder for all results.
        path: path of the file, now or once it has its header.
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
        self._lease: lock.Lease | None = None
        self._appending = threading.Lock()
        self._unsent: list[Entry] = []
        """Entries that were read and have not arrived."""
        self._position = 0
        """Offset in the file after the last entry that was read."""
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
        journal = cls(work, path, file, is_left=False)
        try:
            journal._lock()
            journal.append(header)
            hidden.rename(path)  # no other process sees it before it is locked and has its header
        except OSError:
            hidden.unlink()
            journal.close()
            raise
        return journal

    @classmethod
    def claim(cls, work: str, path: Path) -> Self | None:
        """Return the journal at ``path``, or None if it is locked, or was just sent."""
        with suppress(FileNotFoundError, BlockingIOError):  # its process is alive
            journal = cls(work, path, path.open("r+b", buffering=0), is_left=True)
            try:
                journal._lock()
                path.stat()  # it may have been sent before it was locked
            except OSError:
                journal.close()
                raise
            return journal
        return None

    def _lock(self) -> None:
        """Lock the file; take a lease beside it where the file system has no locks.

        Raises:
            BlockingIOError: another process has it.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in lock.WITHOUT_LOCKS:
                raise
            lease = lock.Lease(f"{self.path}.lease")
            if not lease.take(lock.Owner.this_process()):
                raise BlockingIOError(lease.uri) from None
            self._lease = lease

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
            ConfigError: its experiment was deleted.
            OutageError: the server does not answer.
        """
        if self.run_id:
            return
        header = self.read()[0]
        try:
            self._client = client = server.open_client(self._work)
            experiment = server.experiment_id(client, self._work, header.get("experiment", ""))
            run = self._find(header, experiment)
            if run is None:
                tags = {**header["tags"], _JOURNAL_TAG: self.path.name}
                made = client.create_run(experiment, header["time"], tags, header["name"])
                run = self._find(header, experiment) or made
            self._resume(header["folder"], run)
        except errors.ConfigError:
            raise
        except Exception as error:
            raise self._outage(error) from error

    def send(self) -> None:
        """Send the entries that are in the file.

        Raises:
            ConfigError: its experiment was deleted.
            OutageError: the server does not answer. What arrived is not sent again.
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
        """Remove the file: everything has arrived. What can't be removed is sent again."""
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()
        if self._lease:
            self._lease.release()
            storage.remove(self._lease.uri)

    def _find(self, header: Entry, experiment: str) -> entities.Run | None:
        """Return the run of the stage's folder, or the one made for this journal.

        MLflow's client repeats a request whose answer is lost, which may create several runs. All
        but one are deleted.
        """
        client = self._client
        if run := server.active_run(client, server.known_run_id(header["folder"])):
            return run
        made_for_this = f"tags.{_JOURNAL_TAG} = '{self.path.name}'"
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
            except errors.OutageError:
                raise
            except Exception as error:  # whatever it is, the next entry is sent
                if self._is_outage(error):
                    raise self._outage(error) from error
                if len(entries) > 1:
                    for entry in entries:
                        self._deliver([entry])
                    return
                code = getattr(error, "error_code", None)
                is_final = isinstance(error, FileNotFoundError) or code in _NOT_RETRIED
                pause = 0 if is_final else next(self._pauses, 0)
                if not pause:
                    where = servers.shown_tracking_uri(self._work)
                    self.note_lost(f"MLflow at {where} refuses an entry", error)
                    break
                time.sleep(pause)
        self.num_arrived += len(entries)
        del self._unsent[: len(entries)]

    def _is_outage(self, error: Exception) -> bool:
        """Return whether the server does not answer, or its database or disk is full."""
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001
            return True
        return errors.lacks_room(error)

    def _outage(self, error: Exception) -> errors.OutageError:
        remedy = "Let it write there" if errors.lacks_room(error) else "Start it"
        return errors.OutageError(
            f"MLflow at {servers.shown_tracking_uri(self._work)} does not answer ({said(error)}). "
            f"{remedy}, or set {servers.TRACKING_URI}; nothing is lost"
        )

    def _do(self, entries: list[Entry]) -> None:
        client = self._client
        match entries[0]:
            case {"dataset": {"name": name, "digest": digest, "source": uri, "context": context}}:
                source = json.dumps({"uri": uri})
                dataset = entities.Dataset(*server.data_set(name, digest), "uri", source)
                tags = [entities.InputTag("mlflow.data.context", context)]
                client.log_inputs(self.run_id, [entities.DatasetInput(dataset, tags)])
            case {"artifact": uri, "artifact_folder": folder}:
                server.upload(client, self.run_id, uri, folder)
            case {"model": model}:
                server.log_output(client, self.run_id, server.Output(**model))
            case {"uses": digest}:
                experiment = client.get_run(self.run_id).info.experiment_id
                if used := server.model_with(client, experiment, digest):
                    client.log_inputs(
                        self.run_id, models=[entities.LoggedModelInput(used.model_id)]
                    )
            case {"child": child}:
                self._adopt(**child)
            case {"end": status, "time": moment}:
                if not self._has_ended:
                    client.set_terminated(self.run_id, status, moment)
                self._has_ended = True
            case _:
                self._log_values(entries)

    def _log_values(self, entries: list[Entry]) -> None:
        """Send metrics and parameters that the server does not have, and tags."""
        points: dict[tuple[str, int], entities.Metric] = {}
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for entry in entries:
            step = entry.get("step", 0)
            for name, value in entry.get("metrics", {}).items():
                if (name, step) not in self._points:
                    point = entities.Metric(name, value, entry["time"], step)
                    points.setdefault((name, step), point)
            params |= entry.get("params", {})
            tags |= entry.get("tags", {})
        self._client.log_batch(
            self.run_id,
            list(points.values()),
            [entities.Param(*each) for each in params.items() if each[0] not in self._params],
            [entities.RunTag(*each) for each in tags.items()],
        )
        self._points |= points.keys()

    def _adopt(self, stage: str, folder: str, run: str) -> None:
        """Nest another run in this one, or point to it if it belongs to an earlier flow run.

        Args:
            stage: stage of the other run.
            folder: folder of that stage, which has the id of its run once its journal is sent.
            run: id of the run in that stage's manifest, or empty.
        """
        deadline = time.monotonic() + OPENING_SECONDS
        while not (child_id := server.known_run_id(folder)):
            is_living = LIVING in set(send_left(self._work, folder))
            if child_id := server.known_run_id(folder) or run:
                break
            if not is_living:
                return  # that stage is not tracked
            if time.monotonic() > deadline:
                raise errors.OutageError(f"another process has not sent the run of {folder}")
            time.sleep(SECONDS_BETWEEN_SENDS)  # perhaps another thread is creating it
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
    are in a folder of this user among the machine's temporary files: a journal of another user
    could name any of this user's files, to be sent to MLflow.

    Raises:
        ConfigError: another user has made that folder.
    """
    local = storage.local_path(work)
    if local is None:
        return storage.own_folder("albert-journals") / manifest.digest_of(work)[:12]
    return local.absolute() / _JOURNALS


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
        For each journal: SENT; LIVING where another process or thread sends it, or just did;
        ELSEWHERE where it is meant for another tracking server; REFUSED where its experiment was
        deleted; or DAMAGED where its first line names no run, and it is set aside.

    Raises:
        OutageError: the server does not answer. What did not arrive is kept.
    """
    here = {servers.tracking_name(work), servers.shown_tracking_uri(work)}
    for path in takewhile(lambda path: path != before, journals_of(work, folder)):
        journal = Journal.claim(work, path)
        if journal is None:
            yield LIVING
            continue
        with closing(journal):
            yield _send_claimed(journal, path, here)


def _send_claimed(journal: Journal, path: Path, here: Collection[str]) -> str:
    """Send and remove a journal that a dead process left; return what became of it."""
    header = next(iter(journal.read()), None)
    if header is not None:  # a power failure leaves an empty file
        if header.get("server") not in {None, *here}:
            return ELSEWHERE
        if not header.keys() >= _HEADER:
            aside = path.replace(path.with_suffix(".damaged"))
            log.warning("%s names no run: it is damaged, and set aside", aside)
            return DAMAGED
        try:
            journal.send()
        except errors.ConfigError as error:  # the journals behind it can do without
            log.warning("%s; its entries wait in %s", error, path)
            return REFUSED
    journal.remove()
    return SENT


def send_journals(work: str) -> str:
    """Send the journals that runs left in a work folder; return a line that says how many.

    Raises:
        OutageError: the server does not answer. What did not arrive is kept.
    """
    found = Counter(send_left(work))
    damaged = f"{found[DAMAGED]} damaged and set aside, " if found[DAMAGED] else ""
    refused = f"{found[REFUSED]} of a deleted experiment, " if found[REFUSED] else ""
    return (
        f"{found[SENT]} sent, {damaged}{refused}{found[LIVING]} of living processes, "
        f"{found[ELSEWHERE]} for another server than {servers.shown_tracking_uri(work)}; they are "
        f"in {journal_folder(work)}"
    )


def said(error: BaseException) -> str:
    """Return an error's type and the first line of its message, without credentials."""
    reason = next(iter(credentials.redacted(str(error)).splitlines()), "")[:200]
    return f"{type(error).__name__}: {reason}"


def _parsed(line: bytes) -> Entry:
    """Return the entry of a line; an empty one if a power failure damaged the line."""
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        return entry if isinstance(entry, dict) else {}
    return {}


def _label(folder: str) -> str:
    """Return the stage and the key of a stage's folder, as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", "-".join(folder.rstrip("/").split("/")[-2:]))
