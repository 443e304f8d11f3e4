"""The Prefect server of a flow that is run by hand, and of what `albert serve` serves."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from prefect import settings
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from albert_core.stage import storage
from albert_core.stage.errors import OutageError, answers
from flows.stage_process import tied

DATABASE = "prefect.db"
"""Prefect's database in the work folder: `albert serve` shows the runs made by hand as well."""
SERVED = "served.json"
"""File in the work folder that says where `albert serve` serves it; there as long as it does."""
_HOST = "127.0.0.1"
_START_SECONDS = 120.0
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_CLOCK_SECONDS = 5.0
"""By which a process's start time may seem to change while the machine's clock is adjusted."""


@contextmanager
def prefect_server(work: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """Have flows of this process speak to a Prefect server, and start one if there is none.

    That is the one at PREFECT_API_URL; else the one that serves ``work``; else a server of its own,
    which is yielded, and which ends with the block or with this process.

    Args:
        work: folder for all results; with one on this machine its runs are kept in `DATABASE`.

    Raises:
        OutageError: the server does not start.
    """
    folder = storage.local_path(work)
    if url := os.environ.get("PREFECT_API_URL") or _served_at(folder):
        with settings.temporary_settings({settings.PREFECT_API_URL: url}):
            yield None
        return
    port = free_port(_HOST)
    url = f"http://{_HOST}:{port}/api"
    process = _start(port, folder)
    try:
        _wait_until_up(process, url)
        with settings.temporary_settings({settings.PREFECT_API_URL: url}):
            try:
                yield process
            finally:  # what Prefect still has to tell the server
                APILogWorker.drain_all(_STOP_SECONDS)
                EventsWorker.drain_all(_STOP_SECONDS)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def note_served(folder: Path, api_url: str) -> None:
    """Write to `SERVED` that this process serves the work folder, for `prefect_server`."""
    started = psutil.Process().create_time()
    noted = json.dumps({"prefect_api_url": api_url, "pid": os.getpid(), "started": started})
    storage.write_bytes(str(folder / SERVED), noted.encode())


def _served_at(folder: Path | None) -> str:
    """Return the address of the server that serves the folder; empty if there is none.

    A killed `albert serve` leaves its file behind, and another Prefect server may get its port.
    So the process that wrote the file must still run: not just one with its number.
    """
    if folder is None:
        return ""
    try:
        noted = json.loads((folder / SERVED).read_bytes())
        started = psutil.Process(noted["pid"]).create_time()
        url = str(noted["prefect_api_url"])
        serves = abs(started - noted["started"]) < _CLOCK_SECONDS
    except (OSError, ValueError, LookupError, TypeError, psutil.Error):
        return ""
    return url if serves and answers(f"{url}/health") else ""


def _start(port: int, folder: Path | None) -> "subprocess.Popen[bytes]":
    environment = {
        **settings.get_current_settings().to_environment_variables(exclude_unset=True),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        database = f"sqlite+aiosqlite:///{folder.absolute() / DATABASE}"
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
    app = ("--factory", "prefect.server.api.server:create_app", "--lifespan", "on")
    address = ("--host", _HOST, "--port", str(port), "--log-level", "error")
    return subprocess.Popen(
        tied([sys.executable, "-m", "uvicorn", *app, *address]),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the flow, whose end the server still has to note
    )


def _wait_until_up(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not answers(f"{url}/health"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise OutageError(
                f"Prefect's server does not answer at {url} (status {process.poll()}). Give "
                "PREFECT_API_URL, the address of one that does, or look at what it printed."
            )
        time.sleep(_LOOK_SECONDS)


def free_port(host: str) -> int:
    """Return a port of ``host`` that nobody has at the moment; an empty one is every address."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
