"""Sends a journal's entries to the tracking server: in order, and none twice."""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run
from mlflow.exceptions import MlflowException

from albert_core.stage import storage
from albert_core.stage.credentials import redacted
from albert_core.stage.environment import shown_tracking_uri
from albert_core.tracking.journal import Entry, Journal, journals_of
from albert_core.tracking.server import PARENT_TAG, RUN_ID, experiment_id, open_client, upload

JOURNAL_TAG = "journal"
"""By which a run is found again whose id did not arrive."""
MAX_METRICS = 1000
"""In one request: MLflow's limit."""
MAX_PARAMS = 100
"""In one request: MLflow's limit."""

_TRIES = 3
"""Of an entry that fails while the server answers."""
_UPLOAD_TRIES = 10
"""Of a living run's file, with growing pauses: its store may be away when MLflow is not."""
_FINAL = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")
_MAX_DIGEST_CHARACTERS = 36

log = logging.getLogger("tracking")


class ServerAwayError(Exception):
    """The tracking server does not answer; whoever sends tries again later."""


class JournalSender:
    """The way of one journal to the server.

    What arrived is known by the server alone: a step that it has of a metric is not sent again,
    nor a parameter; all other entries mean the same when they come twice. So a journal can be sent
    anew from its beginning by another process.

    Args:
        work: folder for all results.
        journal: whose lock this process has.
        is_new: whether this process began it; else its run may be there already.
    """

    def __init__(self, work: str, journal: Journal, is_new: bool) -> None:
        self.num_arrived = self.num_refused = 0
        self.run_id: str | None = None
        self.has_ended = False
        """Whether the run's end was sent."""
        self._work, self._journal, self._may_be_there = work, journal, not is_new
        self._uploads_left = _UPLOAD_TRIES if is_new else 0
        self._position = 0
        self._client: MlflowClient | None = None
        self._header: Entry = {}
        self._last_time = 0
        self._steps: dict[str, set[int]] = {}
        self._finished_at: int | None = None
        """When the run had ended well before this journal was sent."""
        self._params: set[str] = set()

    def send(self) -> None:
        """Send what is in the journal by now.

        Raises:
            ServerAwayError: the server does not answer. What arrived is not sent again.
        """
        self._open()
        while found := self._journal.read(self._position):
            for batch in _batches(found):
                self._deliver([entry for entry, _ in batch])
                self._position = batch[-1][1]

    def end_for_dead(self) -> None:
        """End the run as KILLED when its process did not live to end it.

        Raises:
            ServerAwayError: the server does not answer.
        """
        if self.has_ended:
            return
        end: Entry = {"end": "KILLED", "time": self._last_time}
        if self._finished_at is not None:  # by a later process, whose journal came first
            end = {"end": "FINISHED", "time": self._finished_at}
        self._deliver([end])

    def _open(self) -> None:
        if self._client is not None:
            return
        try:
            client = open_client(self._work)
            if not self._header:
                [(self._header, self._position), *_] = self._journal.read(0)
                self._last_time = self._header["time"]
            run = self._known(client) or self._created(client)
            self._continue(client, run)
        except Exception as error:
            raise ServerAwayError(said(error)) from error
        self._client = client

    def _known(self, client: MlflowClient) -> Run | None:
        """Return the run of the stage's folder, if the server has it."""
        uri = storage.join(self._header["folder"], RUN_ID)
        if not storage.exists(uri):
            return self._found_by_journal(client) if self._may_be_there else None
        try:
            run = client.get_run(storage.read_bytes(uri).decode().strip())
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _found_by_journal(self, client: MlflowClient) -> Run | None:
        """Return the run that was made for the journal, if there is one.

        MLflow's client repeats a request whose answer is lost: what it made besides is deleted.
        """
        found = client.search_runs(
            [experiment_id(client, self._work)],
            f"tags.{JOURNAL_TAG} = '{self._journal.path.name}'",
            order_by=["attributes.run_id"],
        )
        for run in found[1:]:
            client.delete_run(run.info.run_id)
        return found[0] if found else None

    def _created(self, client: MlflowClient) -> Run:
        self._may_be_there = True  # from now on, whether its answer arrives or not
        created = client.create_run(
            experiment_id(client, self._work),
            start_time=self._header["time"],
            tags={**self._header["tags"], JOURNAL_TAG: self._journal.path.name},
            run_name=self._header["name"],
        )
        return self._found_by_journal(client) or created

    def _continue(self, client: MlflowClient, run: Run) -> None:
        run_id = str(run.info.run_id)
        uri, content = storage.join(self._header["folder"], RUN_ID), run_id.encode()
        if not storage.exists(uri) or storage.read_bytes(uri) != content:
            storage.write_bytes(uri, content)
        self._params = set(run.data.params)
        self._steps = {
            name: {point.step for point in client.get_metric_history(run_id, name)}
            for name in run.data.metrics
        }
        if run.info.status == "FINISHED":
            self._finished_at = run.info.end_time
        if run.info.status != "RUNNING":
            client.update_run(run_id, status="RUNNING")
        parent = self._header["tags"].get(PARENT_TAG)
        if parent and run.data.tags.get(PARENT_TAG) != parent:
            client.set_tag(run_id, PARENT_TAG, parent)
        self.run_id = run_id

    def _deliver(self, entries: list[Entry]) -> None:
        """Send entries in one request; those that the server refuses are counted and left out."""
        for tries in range(_TRIES):
            try:
                self._do(entries)
            except ServerAwayError:
                raise
            except Exception as error:  # whatever it is, the next entry is sent
                self._raise_if_away(error)
                if len(entries) > 1:
                    for entry in entries:
                        self._deliver([entry])
                    return
                is_final = isinstance(error, FileNotFoundError) or (
                    isinstance(error, MlflowException) and error.error_code in _FINAL
                )
                if "artifact" in entries[0] and self._uploads_left and not is_final:
                    self._uploads_left -= 1
                    raise ServerAwayError(f"its files: {said(error)}") from error
                if is_final or tries == _TRIES - 1:
                    self._refuse(error)
                    return
                time.sleep(2.0**tries)
            else:
                self.num_arrived += len(entries)
                return

    def _refuse(self, error: Exception) -> None:
        self.num_arrived += 1
        self.num_refused += 1
        if self.num_refused == 1:
            log.warning(
                "MLflow at %s does not take an entry (%s); the run goes on without",
                shown_tracking_uri(self._work),
                said(error),
            )

    def _raise_if_away(self, error: Exception) -> None:
        assert self._client is not None
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001
            raise ServerAwayError(said(error)) from error

    def _do(self, entries: list[Entry]) -> None:
        """Send entries: one, or several of metrics."""
        client, run_id, entry = self._client, self.run_id, entries[0]
        assert client is not None
        assert run_id is not None
        self._last_time = entries[-1].get("time", self._last_time)
        if "metrics" in entry:
            self._send_metrics(client, run_id, entries)
        elif "params" in entry:
            self._send_params(client, run_id, entry["params"])
        elif "dataset" in entry:
            client.log_inputs(run_id, [_dataset_input(**entry["dataset"])])
        elif "tags" in entry:
            for name, value in entry["tags"].items():
                client.set_tag(run_id, name, value)
        elif "artifact" in entry:
            upload(client, run_id, entry["artifact"], entry["artifact_folder"])
        elif "child" in entry:
            self._adopt(client, run_id, **entry["child"])
        elif "end" in entry:
            client.set_terminated(run_id, entry["end"], entry["time"])
            self.has_ended = True

    def _send_metrics(self, client: MlflowClient, run_id: str, entries: list[Entry]) -> None:
        """Send the points that the server does not have, each with the time when it was made."""
        new: dict[tuple[str, int], Metric] = {}
        for entry in entries:
            for name, value in entry["metrics"].items():
                point = (name, entry["step"])
                if entry["step"] not in self._steps.get(name, ()) and point not in new:
                    new[point] = Metric(name, value, entry["time"], entry["step"])
        if new:
            client.log_batch(run_id, metrics=list(new.values()))
        for name, step in new:
            self._steps.setdefault(name, set()).add(step)

    def _send_params(self, client: MlflowClient, run_id: str, params: dict[str, str]) -> None:
        new = [Param(name, value) for name, value in params.items() if name not in self._params]
        for begin in range(0, len(new), MAX_PARAMS):
            client.log_batch(run_id, params=new[begin : begin + MAX_PARAMS])

    def _adopt(self, client: MlflowClient, run_id: str, stage: str, folder: str, run: str) -> None:
        """Nest another run below this one, or point to it if it is of an earlier flow run."""
        child_id = _run_of_folder(self._work, folder, run)
        if not child_id:
            return  # that stage tracks nothing
        child, since = client.get_run(child_id), client.get_run(run_id).info.start_time
        parent, ended = child.data.tags.get(PARENT_TAG), child.info.end_time
        if parent == run_id:
            return
        if parent is None or ended is None or ended >= since:
            client.set_tag(child_id, PARENT_TAG, run_id)
        else:
            client.set_tag(run_id, f"done_before.{stage}", child_id)


@dataclass
class LeftJournals:
    """What became of the journals in a work folder."""

    run_ids: list[str] = field(default_factory=list)
    """Of the runs whose journals were sent."""
    num_busy: int = 0
    """Journals of living processes, which send them themselves."""
    num_elsewhere: int = 0
    """Journals for another tracking server."""


def send_left(work: str, folder: str = "", but: Path | None = None) -> LeftJournals:
    """Send the journals that dead processes left in ``work``.

    Args:
        work: folder for all results.
        folder: a stage's: its journals alone.
        but: a journal to leave out, and all that were begun after it.

    Raises:
        ServerAwayError: the server does not answer.
    """
    found = LeftJournals()
    for path in journals_of(work, folder):
        if path == but:
            break
        journal = Journal.claim(path)
        if journal is None:
            found.num_busy += path.exists()
            continue
        try:
            header = next((entry for entry, _ in journal.read(0)), None)
            if header is None:  # of a machine that lost its power
                journal.remove()
                continue
            if header.get("server") != shown_tracking_uri(work):
                found.num_elsewhere += 1
                continue
            sender = JournalSender(work, journal, is_new=False)
            sender.send()
            sender.end_for_dead()
            journal.remove()
            found.run_ids.append(str(sender.run_id))
        finally:
            journal.release()
    return found


def _batches(found: list[tuple[Entry, int]]) -> Iterator[list[tuple[Entry, int]]]:
    """Yield entries in order: those of metrics as many together as one request may hold."""
    batch: list[tuple[Entry, int]] = []
    num_metrics = 0
    for entry, position in found:
        size = len(entry.get("metrics", ()))
        if batch and (not size or not num_metrics or num_metrics + size > MAX_METRICS):
            yield batch
            batch, num_metrics = [], 0
        batch.append((entry, position))
        num_metrics += size
    if batch:
        yield batch


def _dataset_input(name: str, digest: str, source: str, context: str) -> DatasetInput:
    dataset = Dataset(name, digest[:_MAX_DIGEST_CHARACTERS], "uri", json.dumps({"uri": source}))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def _run_of_folder(work: str, folder: str, otherwise: str) -> str:
    """Return the id of the run of a stage's folder, once what its process left is sent.

    Without one it is ``otherwise``, which is what the stage's manifest says.

    Raises:
        ServerAwayError: another process is sending it, or the server does not answer.
    """
    if not folder:
        return otherwise
    uri = storage.join(folder, RUN_ID)
    is_busy = not storage.exists(uri) and send_left(work, folder).num_busy > 0
    if storage.exists(uri):
        return storage.read_bytes(uri).decode().strip()
    if is_busy and not otherwise:
        raise ServerAwayError(f"{folder} has no run yet, which another process is about to send")
    return otherwise


def said(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says."""
    reason = next(iter(redacted(str(error)).splitlines()), "")[:200]
    return f"{type(error).__name__}: {reason}"
