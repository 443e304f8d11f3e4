"""The Prefect server of a flow that is run by hand, and of what `albert serve` serves."""

import ipaddress
import os
import re
import secrets
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
from prefect import settings
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from albert_core.stage import errors, lock, servers, storage
from albert_core.stage.log import say
from albert_core.stage.servers import answers
from flows.stage_process import tied

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DATABASE = "prefect.db"
"""Prefect's database in the work folder: `albert serve` shows the runs made by hand as well."""
AUTH_FILE = "secrets/prefect-auth"
"""File in the work folder with the name and password that the server of `albert serve` asks for."""
USER = "albert"
"""The name, which stands before the password."""
ALLOWED_HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
"""MLflow's variable: names at which the servers are reached, besides localhost and addresses."""
_PAGES_ASK = "PREFECT_SERVER_UI_API_URL"
"""Prefect's variable: the address at which browsers find the server."""
_HOST = "127.0.0.1"
_IDLE_SECONDS = 120.0
"""How long a server that is starting may do nothing at all."""
_START_SECONDS = 1800.0
_LONG_SECONDS = 60.0
_LOOKS_APART_SECONDS = 5.0
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_NOT_ALLOWED = 1008
"""Code with which a web socket is closed for a policy."""


@contextmanager
def prefect_server(work: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """Connect flows of this process to a Prefect server, and start one if there is none.

    The server is the one at PREFECT_API_URL; else the one that serves ``work``; else a new one,
    which is yielded, and which ends with the block or with this process.

    Args:
        work: folder for all results; if it is on this machine, runs are kept in its `DATABASE`.

    Raises:
        OutageError: the server does not start, or ended.
        AlbertError: its database became damaged, or its disk is full.
    """
    folder, served = storage.local_path(work), served_at(work)
    if url := os.environ.get("PREFECT_API_URL") or served:
        known = {settings.PREFECT_API_URL: url}
        has_secret = bool(settings.PREFECT_API_AUTH_STRING.value())
        if folder and url == served and not has_secret and (folder / AUTH_FILE).exists():
            known[settings.PREFECT_API_AUTH_STRING] = (folder / AUTH_FILE).read_text()
        try:
            with settings.temporary_settings(known):
                yield None
        except Exception as error:
            is_told = isinstance(error, errors.AlbertError) or not errors.is_transient(error)
            if is_told or answers(f"{url}/health"):
                raise
            raise errors.OutageError(
                f"Prefect's server at {url} no longer answers. What was made is kept: run the same "
                "command again, it goes on."
            ) from error
        return
    secret = _new_secret(USER)
    with TemporaryFile("a+b") as printed, ExitStack() as starting:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            starting.enter_context(starts_alone(folder))
            check_database(folder / DATABASE, sets_aside=True)
        port = free_port(_HOST)
        url = f"http://{_HOST}:{port}/api"
        process = _start(port, folder, secret, printed)
        try:
            _wait_until_up(process, url, printed)
            starting.close()
            known = {settings.PREFECT_API_URL: url, settings.PREFECT_API_AUTH_STRING: secret}
            with settings.temporary_settings(known):
                try:
                    yield process
                finally:  # what Prefect still has to tell the server
                    APILogWorker.drain_all(_STOP_SECONDS)
                    EventsWorker.drain_all(_STOP_SECONDS)
        except Exception as error:
            fault = _fault_of(process, printed)
            if fault is None or isinstance(error, errors.AlbertError):
                raise
            raise fault from error
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def starts_alone(folder: Path) -> Iterator[None]:
    """Let no other server start with the database in ``folder`` during the block.

    Of two that create or change its tables at the same time, one ends.
    """
    lock.take(str(folder), DATABASE, lambda: False)
    try:
        yield
    finally:
        lock.release(str(folder), DATABASE)


def check_database(file: Path, *, sets_aside: bool = False) -> None:
    """Look at the database, if it is there, before a server begins with it.

    Args:
        file: the database.
        sets_aside: whether to go on without a damaged one, which is renamed: a flow needs nothing
            of it. `albert serve` has schedules in it.

    Raises:
        AlbertError: it is damaged, or cannot be read.
    """
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(file)) as database:
            [said] = database.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError("database disk image is malformed")
    except sqlite3.DatabaseError as error:
        if sets_aside and errors.is_of_damage(error):
            aside = f"{file}.damaged-{time.time_ns()}"
            for part in ("-shm", "-wal", ""):  # a new one would take the log of the old one for its
                with suppress(FileNotFoundError):
                    Path(f"{file}{part}").rename(f"{aside}{part}")
            told = f"{file} is damaged ({error}). It is set aside as {aside}, and a new one begun:"
            say(f"{told} the runs before are not listed in that.", sys.stderr)
        elif said := errors.explained(error):  # it may also be in use
            raise errors.AlbertError(f"{file}: {said}") from error


def served_at(work: str) -> str:
    """Return the address of Prefect's server that serves the folder; empty if none answers."""
    served = servers.served_in(work)
    url = served.prefect_api_url if served else ""
    return url if url and answers(f"{url}/health") else ""


def kept_secret(file: Path, user: str = "") -> str:
    """Return the content of a file that only its owner can read; write a new one if it is absent.

    Args:
        file: on this machine.
        user: what stands before the random word, with a colon in between; empty: nothing.
    """
    if not file.exists():  # another server may use what is there
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with NamedTemporaryFile("w", dir=file.parent, delete=False) as own:
            own.write(_new_secret(user))
        storage.replace(own.name, file)
    return file.read_text()


def _new_secret(user: str) -> str:
    return f"{user}:{secrets.token_urlsafe(24)}".lstrip(":")


class Patience:
    """How long to wait for a server that is starting: as long as it computes, within a limit.

    Where other work takes all cores, a start of seconds takes minutes. Time for which this process
    was stopped as well does not count.
    """

    def __init__(self, name: str, pid: int) -> None:
        self._name, self._pid = name, pid
        self._looked_at = time.monotonic()
        self._seconds = self._computed = self._idle_seconds = 0.0

    def is_over(self) -> bool:
        """Return whether to give up; a wait that becomes long is said once."""
        passed = time.monotonic() - self._looked_at
        if passed < _LOOKS_APART_SECONDS:
            return False
        self._looked_at += passed
        passed = min(passed, 2 * _LOOKS_APART_SECONDS)
        computed, self._computed = self._computed, self._seconds_computed()
        self._idle_seconds = 0.0 if self._computed > computed else self._idle_seconds + passed
        if self._seconds < _LONG_SECONDS <= self._seconds + passed:
            say(f"{self._name} takes long to start: waiting while it computes", sys.stderr)
        self._seconds += passed
        return self._idle_seconds >= _IDLE_SECONDS or self._seconds >= _START_SECONDS

    def _seconds_computed(self) -> float:
        """Return the processor time of the server, with the processes that it has started."""
        with suppress(psutil.Error):
            server = psutil.Process(self._pid)
            times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
            return float(sum(each.user + each.system for each in times))
        return self._computed

    def __str__(self) -> str:
        """Return how long the server was waited for, and got to compute, for messages."""
        return (
            f"{self._name} did not answer in {self._seconds:.0f} s, in which this machine let it "
            f"compute for {self._computed:.0f} s"
        )


def guarded(secret: str, origin: str) -> dict[str, str]:
    """Return the variables of a Prefect server that answers nobody without the secret.

    Its database is slow beside a training that uses all cores: a query and a connection may take
    60 and 30 seconds instead of 10 and 5.

    Args:
        secret: name and password, with a colon in between.
        origin: address of its pages, the only ones that may use it from a browser.
    """
    return {
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "30",
    }


def server_command(host: str, port: int, log_level: str) -> list[str]:
    """Return the command line of a Prefect server."""
    app = ("--factory", f"{__name__}:create_app", "--lifespan", "on")
    options = ("--host", host, "--port", str(port), "--log-level", log_level)
    return [sys.executable, "-m", "uvicorn", *app, *options]


def create_app() -> "ASGIApp":
    """Return Prefect's server, behind a look at where a request comes from; for uvicorn.

    The name at which its pages look for it is allowed as well.
    """
    from prefect.server.api import server

    of_pages = urlsplit(os.environ.get(_PAGES_ASK, "")).hostname or ""
    return only_from_here(server.create_app(), f"{os.environ.get(ALLOWED_HOSTS, '')},{of_pages}")


def only_from_here(app: "ASGIApp", allowed: str) -> "ASGIApp":
    """Return ``app`` behind a check that refuses what a page of another site sends, with 403.

    A browser says which name it asked for (Host) and whose page asks (Origin). A name that
    another site has pointed at this machine is none of ours, and so is its page.

    Args:
        app: the server.
        allowed: patterns of names that it is reached by, separated by commas; besides localhost
            and addresses, which no other site can have as its name.
    """
    patterns = [name.strip() for name in allowed.split(",") if name.strip()]

    def is_own(address: str) -> bool:
        with suppress(ValueError):  # neither a name nor an address
            name = urlsplit(f"//{address}").hostname or ""
            is_allowed = any(fnmatch(address, p) or fnmatch(name, p) for p in patterns)
            return name == "localhost" or is_allowed or bool(ipaddress.ip_address(name))
        return False

    def is_from_here(headers: Mapping[bytes, bytes]) -> bool:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        asked_by = origin.partition("://")[2]
        return is_own(host) and (not origin or asked_by == host)

    async def check(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan" or is_from_here(dict(scope["headers"])):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _NOT_ALLOWED})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"Not from this address."})

    return check


def _start(
    port: int, folder: Path | None, secret: str, printed: IO[bytes]
) -> "subprocess.Popen[bytes]":
    environment = {
        **settings.get_current_settings().to_environment_variables(exclude_unset=True),
        **guarded(secret, f"http://{_HOST}:{port}"),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    if folder is not None:
        database = f"sqlite+aiosqlite:///{folder.absolute() / DATABASE}"
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
    return subprocess.Popen(
        tied(server_command(_HOST, port, "error")),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        start_new_session=True,  # Ctrl-C is for the flow, whose end the server still has to note
    )


def _fault_of(process: "subprocess.Popen[bytes]", printed: IO[bytes]) -> errors.AlbertError | None:
    """Return what to tell of a server whose database has a fault, or that ended; else None."""
    printed.seek(0)
    text = printed.read().decode(errors="replace")
    lines = re.findall(r"^[\w.]+(?:Error|Exception): .*", text, re.MULTILINE)
    for line in lines:
        if said := errors.explained(sqlite3.DatabaseError(line)):
            return errors.AlbertError(f"Prefect's server: {said}")
    if (status := process.poll()) is None:
        return None
    how = errors.killed(-status) if status < 0 else f"ended with status {status}"
    return errors.OutageError(
        f"Prefect's server {how} ({lines[-1] if lines else 'it printed no error'}). Run the same "
        "command again: it goes on. Or give PREFECT_API_URL, the address of a server that runs."
    )


def _wait_until_up(process: "subprocess.Popen[bytes]", url: str, printed: IO[bytes]) -> None:
    patience = Patience("Prefect's server", process.pid)
    while not answers(f"{url}/health"):
        if fault := process.poll() is not None and _fault_of(process, printed):
            raise fault
        if patience.is_over():
            raise errors.OutageError(
                f"{patience}. Stop other work or give this command a higher priority (`nice`), "
                "then run it again; or give PREFECT_API_URL, the address of a server that runs."
            )
        time.sleep(_LOOK_SECONDS)


def free_port(host: str) -> int:
    """Return a port of ``host`` that nobody has at the moment; an empty one is every address."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
