"""Servers: whether one answers, which a work folder has, and where MLflow keeps its runs."""

import json
import os
import urllib.request
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path

import psutil

from albert_core.stage.credentials import redacted
from albert_core.stage.storage import local_path, write_bytes

TRACKING_URI = "MLFLOW_TRACKING_URI"
SERVED = "served.json"
"""File in a work folder that says which servers it has; there as long as they run."""
_ANSWER_SECONDS = 5
_DATABASE = "mlflow.db"
_CLOCK_SECONDS = 5.0
"""The apparent change of a process's start time while the machine's clock is adjusted."""


@dataclass(frozen=True)
class Served:
    """The servers of a work folder, as `albert serve` or `albert production` notes them."""

    prefect_api_url: str
    mlflow_url: str
    has_own_database: bool
    """Whether MLflow's database is the file in the work folder."""


def answers(url: str) -> bool:
    """Return whether a server answers at ``url`` with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # nothing listens there, or it speaks another protocol
        return False


def note_served(folder: Path, served: Served) -> None:
    """Write to `SERVED` that this process serves the work folder."""
    process = psutil.Process()
    noted = {**asdict(served), "pid": process.pid, "started": process.create_time()}
    write_bytes(str(folder / SERVED), json.dumps(noted).encode())


def served_in(work: str) -> Served | None:
    """Return the servers of the folder; None if it is not served from this machine.

    A killed `albert serve` leaves its file behind. So the process that wrote it must still run, not
    just one with its number.
    """
    folder = local_path(work)
    try:
        noted = json.loads((folder / SERVED).read_bytes()) if folder else {}
        started = psutil.Process(noted.pop("pid")).create_time()
        is_alive = abs(started - noted.pop("started")) < _CLOCK_SECONDS
        return Served(**noted) if is_alive else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, psutil.Error):
        return None


def tracking_uri(work: str) -> str:
    """Return where MLflow keeps runs and models.

    This is ``MLFLOW_TRACKING_URI`` if it is set, else the server of the folder, if that has another
    database, else a SQLite file in ``work``, or in the working directory if ``work`` is not on this
    machine.
    """
    if named := os.environ.get(TRACKING_URI):
        return named
    served = served_in(work)
    if served and not served.has_own_database:
        return served.mlflow_url
    return f"sqlite:///{(local_path(work) or Path()).absolute() / _DATABASE}"


def registry_uri(work: str) -> str:
    """Return where the registry is: ``MLFLOW_REGISTRY_URI`` if it is set, else `tracking_uri`."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri(work)


def database_file(uri: str) -> Path | None:
    """Return the file of a tracking server that is a database in SQLite; None if it is another."""
    _, is_sqlite, rest = uri.rpartition("sqlite:///")
    return Path(rest.partition("?")[0]) if is_sqlite else None  # as SQLAlchemy reads it


def shown_tracking_uri(work: str) -> str:
    """Return `tracking_uri` without credentials, for messages."""
    return redacted(tracking_uri(work))


def tracking_name(work: str) -> str:
    """Return what tells a tracking server from others: its URI, without credentials.

    For the database in ``work`` it is the same by whatever path the folder is reached, and also at
    the address at which `albert serve` serves it.
    """
    uri, folder, served = tracking_uri(work), local_path(work), served_in(work)
    file = database_file(uri)
    is_own = folder and file and file.resolve() == (folder / _DATABASE).resolve()
    is_served = served and served.has_own_database and served.mlflow_url == uri
    return _DATABASE if is_own or is_served else redacted(uri)
