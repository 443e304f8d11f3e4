"""Beam's job server for one stage, which ends with the stage, however that ends.

A stage can be killed at any moment, so another process, the keeper, owns what must not outlive it.
The keeper starts the job server in a temporary folder. When the stage closes the pipe between them,
which the kernel does for a stage that is killed, the keeper cancels the job that still runs, ends
the job server with all its children and removes the folder.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from albert_core.stage.errors import ConfigError, OutageError
from albert_core.stage.machine import end_with_parent

START_SECONDS = 60.0
"""Time for a job server to answer."""
CANCEL_SECONDS = 10.0
END_SECONDS = 10.0
"""Time for a job server to end after SIGTERM."""
_LOOK_SECONDS = 0.1
_LOG, _ENDED = "job-server.log", "job-server.ended"
_LAST_LINES = 5
_FLINK_HAS_ENDED = {"FINISHED", "CANCELED", "FAILED"}


class Keeper:
    """The process that ends what this one started, after this one has ended.

    Args:
        flink_master: URL at which Flink itself is asked to cancel jobs with the folder's name.
    """

    def __init__(self, flink_master: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="albert-"))
        """On this machine; its name is the job's too."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.folder), flink_master],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that Ctrl-C or a signal to the stage's group spares it
        )

    def start(self, command: Sequence[object], endpoint: str) -> None:
        """Start a job server and wait until it answers.

        Args:
            command: the server's.
            endpoint: host and port that it will answer at.

        Raises:
            ConfigError: it has ended instead.
            OutageError: it does not answer.
        """
        self._tell(start=list(map(str, command)))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if (self.folder / _ENDED).exists() or self._process.poll() is not None:
                log = self.folder / _LOG
                lines = log.read_text(errors="replace").splitlines() if log.exists() else ["(none)"]
                last_lines = "\n  ".join(lines[-_LAST_LINES:])
                raise ConfigError(
                    f"Beam's job server ended at its start. Its last lines:\n  {last_lines}"
                    "\n  Check the jar and the options; docs/engines.md names them."
                )
            if answers(endpoint, seconds=1.0):
                return
            time.sleep(_LOOK_SECONDS)
        raise OutageError(f"Beam's job server did not answer within {START_SECONDS:.0f} s.")

    def watch(self, endpoint: str, job: str) -> None:
        """Have the job cancelled if this process ends; an empty id: nothing is cancelled any more.

        Args:
            endpoint: host and port of its job service.
            job: its id there.
        """
        self._tell(endpoint=endpoint, job=job)

    def _tell(self, **what: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(what), file=self._process.stdin, flush=True)

    def end(self) -> None:
        """Have it end what was started, and wait for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=CANCEL_SECONDS + 2 * END_SECONDS)


@contextmanager
def keeper(flink_master: str = "") -> Iterator[Keeper]:
    """Run a `Keeper`, whose folder takes all temporary files until the end of the block."""
    found = Keeper(flink_master)
    # Beam makes temporary folders that it never removes.
    before, tempfile.tempdir = tempfile.tempdir, str(found.folder)
    try:
        yield found
    finally:
        tempfile.tempdir = before
        found.end()


@contextmanager
def _job_service(endpoint: str) -> Iterator[tuple[Any, Any]]:
    """Connect to a Beam job service; give its stub and the module of its messages."""
    import grpc  # type: ignore[import-untyped]
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        yield beam_job_api_pb2_grpc.JobServiceStub(channel), beam_job_api_pb2


def answers(endpoint: str, seconds: float) -> bool:
    """Return whether a Beam job service is there."""
    import grpc

    with _job_service(endpoint) as (service, messages):
        try:
            service.DescribePipelineOptions(
                messages.DescribePipelineOptionsRequest(), timeout=seconds
            )
        except grpc.RpcError as error:
            # A service without this call is a job service too.
            return bool(error.code() == grpc.StatusCode.UNIMPLEMENTED)
    return True


def main(folder: Path, flink_master: str) -> None:
    """Be the keeper."""
    # Handlers, not SIG_IGN, which the job server would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    server: subprocess.Popen[bytes] | None = None
    endpoint = job = ""
    for told in map(json.loads, sys.stdin):  # until the stage has ended
        if "start" in told:
            server = _start(told["start"], folder)
        endpoint, job = told.get("endpoint", endpoint), told.get("job", job)
    if job:
        _cancel(endpoint, job)
        if flink_master:
            _cancel_in_flink(flink_master, folder.name)
    if server is not None:
        _end(server)
    shutil.rmtree(folder, ignore_errors=True)


def _start(command: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / _LOG).open("wb") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a group of its own: it and the workers that it starts
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - there are no threads here
        )

    def note_end() -> None:
        server.wait()
        (folder / _ENDED).touch()

    threading.Thread(target=note_end, daemon=True).start()
    return server


def _cancel(endpoint: str, job: str) -> None:
    import grpc

    with suppress(grpc.RpcError), _job_service(endpoint) as (service, messages):
        service.Cancel(messages.CancelJobRequest(job_id=job), timeout=CANCEL_SECONDS)


def _cancel_in_flink(master: str, name: str) -> None:
    """Cancel the jobs called ``name``, which Beam's job server leaves running in the cluster."""
    with suppress(OSError, ValueError):
        for job in flink_answer(master, "/jobs/overview")["jobs"]:
            if job["name"] == name and job["state"] not in _FLINK_HAS_ENDED:
                flink_answer(master, f"/jobs/{job['jid']}?mode=cancel", method="PATCH")


def flink_answer(master: str, path: str, method: str = "GET") -> Any:
    """Return what Flink's REST service says.

    Raises:
        OSError: it does not answer.
        ValueError: what answers is not Flink.
    """
    request = urllib.request.Request(master + path, method=method)  # noqa: S310 - http, see engines
    try:
        with urllib.request.urlopen(request, timeout=CANCEL_SECONDS) as answer:  # noqa: S310
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection, which the garbage collector would find unclosed
        raise
    except http.client.HTTPException as error:
        raise ValueError(f"the answer is not HTTP: {error!r}") from error


def _end(server: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=END_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
