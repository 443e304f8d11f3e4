"""The services of one machine: processes that are started, watched, restarted and stopped."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from albert_core.stage import storage
from albert_core.stage.command import FAILURE, FAILURE_STATUS
from albert_core.stage.errors import AlbertError, answers


def family(root: int) -> list[int]:
    """Return ``root``, the processes of its group and all below them, whatever their sessions."""
    processes = _processes()
    found: list[int] = []
    queue = [root, *(pid for pid, _, group in processes if group == root)]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.append(pid)
            queue += [child for child, parent, _ in processes if parent == pid]
    return found


def marked(variable: str, value: str) -> list[int]:
    """Return the processes that were started with this variable in their environment.

    A process that outlives its parent, in a session of its own, is in no family; this finds it.
    Only Linux shows the environment of others: elsewhere none is found.
    """
    wanted = f"{variable}={value}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue  # it has just ended, or is another user's
    return found


def is_alive(pid: int) -> bool:
    """Return whether there is such a process."""
    return bool(send_signal([pid], 0))


def send_signal(pids: Sequence[int], number: int) -> list[int]:
    """Send a signal to each process; return those that were there."""
    there = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        there.append(pid)
    return there


def _processes() -> list[tuple[int, int, int]]:
    """Return the number of each process of this machine, of its parent and of its group."""
    if sys.platform == "linux":
        return [found for stat in Path("/proc").glob("[0-9]*/stat") if (found := _numbers(stat))]
    ps = ["ps", "-A", "-o", "pid=,ppid=,pgid="]
    lines = subprocess.run(ps, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(pid), int(parent), int(group)) for pid, parent, group in map(str.split, lines)]


def _numbers(stat: Path) -> tuple[int, int, int] | None:
    try:
        _, parent, group, *_ = stat.read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has just ended
    return int(stat.parent.name), int(parent), int(group)


PROJECT = Path(__file__).parent.parent
MARK = "ALBERT_SERVICE"
"""Variable in the environment of a service and of all that it starts: whose they are."""
LOOK_SECONDS = 0.5
_START_SECONDS = 180.0
_STOP_SECONDS = 15.0
_LONG_LIFE_SECONDS = 60.0
_MAX_DELAY_SECONDS = 30.0


class ServeError(AlbertError):
    """A service could not be started, or ended by itself."""


@dataclass
class Service:
    """One service: how it is started, and its process."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: "subprocess.Popen[bytes]"
    keeps_children: bool = False
    """Whether what it has started goes on when it ends by itself, as flow runs of a worker do."""
    started: float = field(default_factory=time.monotonic)
    start_again_at: float | None = None
    delay_seconds: float = LOOK_SECONDS
    num_ends: int = 0
    """How often it ended by itself."""


class Services:
    """The processes of the services: each the leader of a session of its own.

    Args:
        logs: folder for a log file of each.
        environment: variables of all of them, besides this process's.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = environment
        self.services: dict[str, Service] = {}
        self.watched = False
        """Whether somebody calls `start_ended_again`: an end is then nothing to raise for."""
        self.mark = uuid.uuid4().hex

    def start(
        self,
        name: str,
        *command: str,
        environment: Mapping[str, str] | None = None,
        keeps_children: bool = False,
    ) -> None:
        """Start a service, writing what it says to its log.

        Args:
            name: of the service.
            command: its program and arguments.
            environment: variables that it alone has, such as passwords.
            keeps_children: see `Service`.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        own = dict(environment or {})
        with self.log_of(name).open("wb") as log:
            process = self._process(name, command, own, log)
        self.services[name] = Service(name, command, own, process, keeps_children)

    def finish(self, name: str, *command: str) -> None:
        """Run a command to its end.

        Raises:
            ServeError: it failed.
        """
        self.start(name, *command)
        status = self.services[name].process.wait()
        del self.services[name]
        if status != 0:
            raise ServeError(f"`{' '.join(command)}` ended with status {status}{self._tail(name)}")

    def pid(self, name: str) -> int:
        """Return the number of a service's process."""
        return self.services[name].process.pid

    def check(self) -> None:
        """Raise ServeError if a service has ended."""
        for service in self.services.values():
            if service.process.poll() is not None:
                raise ServeError(f"{_how_it_ended(service)}{self._tail(service.name)}")

    def start_ended_again(self) -> None:
        """Start again what has ended by itself, and say so.

        What ends soon after each start is given more and more time before the next one.
        """
        for service in self.services.values():
            if service.process.poll() is None:
                continue
            if service.start_again_at is None:
                self._note_end(service)
            elif time.monotonic() >= service.start_again_at:
                with self.log_of(service.name).open("ab") as log:
                    service.process = self._process(
                        service.name, service.command, service.environment, log
                    )
                service.started, service.start_again_at = time.monotonic(), None
                _say(f"{service.name} was started again, with pid {service.process.pid}")

    def wait_until_up(self, name: str, url: str) -> None:
        """Return as soon as ``url`` answers; see `wait_until`."""
        self.wait_until(name, lambda: answers(url), url)

    def wait_until(self, name: str, is_up: Callable[[], bool], where: str) -> None:
        """Return as soon as ``is_up`` is true.

        Raises:
            ServeError: it takes too long; or a service has ended, and nobody watches them.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not is_up():
            if not self.watched:
                self.check()
            if time.monotonic() > deadline:
                raise ServeError(f"{name} does not answer at {where}{self._tail(name)}")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all, the last started first, and everything that they started."""
        for service in reversed(self.services.values()):
            self._stop(service)
            print(f"  {service.name} has stopped", flush=True)
        self.services.clear()

    def log_of(self, name: str) -> Path:
        """Return the file with what a service says."""
        return self.logs / f"{name.replace(' ', '-')}.log"

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=PROJECT,
            env={**os.environ, **self.environment, **environment, MARK: self._mark_of(name)},
            start_new_session=True,
        )

    def _note_end(self, service: Service) -> None:
        service.num_ends += 1
        lived_long = time.monotonic() - service.started > _LONG_LIFE_SECONDS
        twice = min(2 * service.delay_seconds, _MAX_DELAY_SECONDS)
        service.delay_seconds = LOOK_SECONDS if lived_long else twice
        service.start_again_at = time.monotonic() + service.delay_seconds
        if not service.keeps_children:
            send_signal(self._left_of(service), signal.SIGKILL)
        _say(
            f"{_how_it_ended(service)} (time {service.num_ends}); it is started again in "
            f"{service.delay_seconds:.0f} s. Its log: {self.log_of(service.name)}"
        )

    def _stop(self, service: Service) -> None:
        process = service.process
        there = family(process.pid) if process.poll() is None else []
        there += [pid for pid in self._left_of(service) if pid not in there]
        others = [pid for pid in there if pid != process.pid]
        if process.pid in there:
            send_signal([process.pid], signal.SIGINT)
        send_signal(others, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            process.poll()
            if not any(map(is_alive, there)):
                break
            time.sleep(0.1)
        send_signal(there, signal.SIGKILL)
        process.wait()

    def _left_of(self, service: Service) -> list[int]:
        return marked(MARK, self._mark_of(service.name))

    def _mark_of(self, name: str) -> str:
        return f"{self.mark}:{name}"

    def _tail(self, name: str) -> str:
        lines = self.log_of(name).read_text(errors="replace").splitlines()[-15:]
        return f". The end of {self.log_of(name)}:\n  " + "\n  ".join(lines)


def _how_it_ended(service: Service) -> str:
    return f"{service.name} ended by itself, with status {service.process.returncode}"


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=sys.stdout, flush=True)


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop."""


def run_until_stopped(
    services: Services, start: Callable[[], str], watch: Callable[[], None]
) -> int:
    """Start the services, print a greeting, and watch them until a signal comes; then stop all.

    Args:
        services: that ``start`` starts.
        start: returns the greeting.
        watch: called again and again; what it raises ends all.

    Returns:
        The exit status.
    """
    # A signal with a handler here is not ignored in the children: a worker that ignores SIGINT,
    # as in a background job of a shell, could not be stopped.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_stopped)
    status = 0
    try:
        print(start(), flush=True)
        while True:
            watch()
            time.sleep(LOOK_SECONDS)
    except Stopped:
        print("\nstopping", flush=True)
    except (AlbertError, OSError) as error:
        print(f"{FAILURE}{error}", file=sys.stderr, flush=True)
        status = FAILURE_STATUS
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        services.stop()
    return status


def local_folder(text: str) -> Path:
    """Return a command line's folder, absolute; argparse's error if it is not on this machine."""
    path = storage.local_path(text)
    if path is None:
        raise argparse.ArgumentTypeError(
            f"{text} is not on this machine, where the databases and logs of the services are to "
            "be. Give a local folder here, and workers with ALBERT_WORK at that place"
        )
    return path.absolute()


def refuse_taken(host: str, **ports: int) -> None:
    """Raise ServeError if something listens already where a service is to listen."""
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ServeError(
                    f"{name} cannot listen at {host}:{port}: {error.strerror}. Stop what listens "
                    f"there (another `albert serve`?), or give --{name.lower()}-port=..."
                ) from error


def _raise_stopped(_: int, __: FrameType | None) -> NoReturn:
    raise Stopped


DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
POOL = "albert"
PREFECT = "Prefect"
_PATIENCE = {
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "30",
}
"""Seconds that a query and a connection may take, instead of 10 and 5: beside a training that has
all cores the database may well be slow."""
_COMMAND = (sys.executable, "-m", "prefect", "--no-prompt")


def flow_environment(work: Path, prefect_url: str, mlflow_url: str) -> dict[str, str]:
    """Return the environment of the servers, the workers and their flow runs."""
    return {
        "ALBERT_WORK": str(work),
        "MLFLOW_TRACKING_URI": mlflow_url,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_API_URL": f"{prefect_url}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def start_prefect(services: Services, host: str, port: int, database: str) -> None:
    """Start the Prefect server.

    Args:
        services: to which it is added.
        host: address that it listens on.
        port: that it listens on.
        database: URL of SQLAlchemy, in the server's environment only: it may hold a password.
    """
    environment = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database, **_PATIENCE}
    address = ("--host", host, "--port", str(port))
    services.start(PREFECT, *_COMMAND, "server", "start", *address, environment=environment)


def deploy(services: Services) -> None:
    """Make the pool, the deployments and their rules, or bring them up to date.

    Raises:
        ServeError: the server refused.
    """
    services.finish(
        *("work pool", *_COMMAND, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    )
    services.finish("deploy", *_COMMAND, "deploy", "--all", "--prefect-file", str(DEPLOYMENTS))
    services.finish("rules", sys.executable, "-m", "infra.prefect_rules", "--pool", POOL)


def start_worker(services: Services, name: str) -> None:
    """Start a worker; the flow runs that it has started go on when it ends by itself."""
    services.start(
        *(name, *_COMMAND, "worker", "start", "--pool", POOL, "--type", "process"),
        *("--name", name.replace(" ", "-")),
        keeps_children=True,
    )
