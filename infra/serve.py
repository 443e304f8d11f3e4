"""Serve the project on this machine: Prefect, MLflow and a worker, until Ctrl-C.

``make serve``, or ``python -m infra.serve``. Everything listens on the loopback address only and
keeps its data in the work folder.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from albert_core.contract.errors import AlbertError

HOST = "127.0.0.1"
PREFECT_PORT, MLFLOW_PORT = 4200, 5000
POOL = "albert"
PROJECT = Path(__file__).parent.parent
_START_SECONDS = 180.0
_STOP_SECONDS = 15.0
_LOOK_SECONDS = 0.5


class ServeError(AlbertError):
    """A service could not be started, or ended by itself."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop."""


class Services:
    """The processes of the services: each the leader of a session of its own."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a service, writing what it says to its log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log_of(name).open("wb") as log:
            self.running[name] = self._process(command, log)

    def finish(self, name: str, *command: str) -> None:
        """Run a command to its end.

        Raises:
            ServeError: it failed.
        """
        self.start(name, *command)
        status = self.running[name].wait()
        del self.running[name]
        if status != 0:
            raise ServeError(f"`{' '.join(command)}` ended with status {status}{self._tail(name)}")

    def check(self) -> None:
        """Raise ServeError if a service has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise ServeError(
                    f"{name} ended by itself, with status {process.returncode}{self._tail(name)}"
                )

    def wait_until_up(self, name: str, url: str) -> None:
        """Return as soon as ``url`` answers.

        Raises:
            ServeError: a service has ended, or it takes too long.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(url):
            self.check()
            if time.monotonic() > deadline:
                raise ServeError(f"{name} does not answer at {url}{self._tail(name)}")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all, the last started first, and everything that they started."""
        for name, process in reversed(self.running.items()):
            family = _family(process.pid)
            _signal([process.pid], signal.SIGINT)
            _signal([pid for pid in family if pid != process.pid], signal.SIGTERM)
            _await_end(process, family)
            _signal(family, signal.SIGKILL)
            process.wait()
            print(f"  {name} has stopped", flush=True)
        self.running.clear()

    def log_of(self, name: str) -> Path:
        """Return the file with what a service says."""
        return self.logs / f"{name.replace(' ', '-')}.log"

    def _process(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=PROJECT,
            env={**os.environ, **self.environment},
            start_new_session=True,
        )

    def _tail(self, name: str) -> str:
        lines = self.log_of(name).read_text(errors="replace").splitlines()[-15:]
        return f". The end of {self.log_of(name)}:\n  " + "\n  ".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit status."""
    options = _options(argv)
    # A signal with a handler here is not ignored in the children: a worker that ignores SIGINT,
    # as in a background job of a shell, could not be stopped.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_stopped)
    work = Path(options.work).absolute()
    prefect_url = f"http://{HOST}:{options.prefect_port}"
    mlflow_url = f"http://{HOST}:{options.mlflow_port}"
    services = Services(work / "logs", _environment(work, prefect_url, mlflow_url))
    status = 0
    try:
        for name, port in (("Prefect", options.prefect_port), ("MLflow", options.mlflow_port)):
            _refuse_taken(name, port)
        _start(services, work, prefect_url, mlflow_url)
        print(_greeting(prefect_url, mlflow_url, services), flush=True)
        while True:
            services.check()
            time.sleep(_LOOK_SECONDS)
    except Stopped:
        print("\nstopping", flush=True)
    except AlbertError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    services.stop()
    return status


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.serve", description=main.__doc__)
    environment = os.environ.get
    parser.add_argument(
        "--work",
        default=environment("ALBERT_WORK", "work"),
        help="local folder for all data (ALBERT_WORK, else 'work')",
    )
    parser.add_argument(
        "--prefect-port", type=int, default=environment("ALBERT_PREFECT_PORT", str(PREFECT_PORT))
    )
    parser.add_argument(
        "--mlflow-port", type=int, default=environment("ALBERT_MLFLOW_PORT", str(MLFLOW_PORT))
    )
    return parser.parse_args(argv)


def _environment(work: Path, prefect_url: str, mlflow_url: str) -> dict[str, str]:
    return {
        "ALBERT_WORK": str(work),
        "ALBERT_PROJECT": str(PROJECT),
        "MLFLOW_TRACKING_URI": mlflow_url,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_API_URL": f"{prefect_url}/api",
        "PREFECT_UI_API_URL": f"{prefect_url}/api",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{work / 'prefect.db'}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _start(services: Services, work: Path, prefect_url: str, mlflow_url: str) -> None:
    work.mkdir(parents=True, exist_ok=True)
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    print(f"starting Prefect and MLflow, with their data in {work}", flush=True)
    services.start("Prefect", *prefect, "server", "start", *_address(prefect_url))
    services.start(
        *("MLflow", sys.executable, "-m", "mlflow", "server", *_address(mlflow_url)),
        *("--backend-store-uri", f"sqlite:///{work / 'mlflow.db'}", "--workers", "1"),
        *("--no-serve-artifacts", "--default-artifact-root", str(work / "mlartifacts")),
    )
    services.wait_until_up("Prefect", f"{prefect_url}/api/health")
    print("deploying the flows", flush=True)
    services.finish(
        *("work pool", *prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    )
    services.finish("deploy", *prefect, "deploy", "--all")
    services.start("worker", *prefect, "worker", "start", "--pool", POOL, "--type", "process")
    services.wait_until_up("MLflow", f"{mlflow_url}/health")


def _address(url: str) -> list[str]:
    return ["--host", HOST, "--port", url.rpartition(":")[2]]


def _greeting(prefect_url: str, mlflow_url: str, services: Services) -> str:
    elsewhere = prefect_url != f"http://{HOST}:{PREFECT_PORT}"
    export = f"  export PREFECT_API_URL={prefect_url}/api\n" if elsewhere else ""
    return (
        f"\nPrefect  {prefect_url}\nMLflow   {mlflow_url}\nlogs     {services.logs}\n\n"
        f"In another terminal, in {PROJECT}, with the environment active:\n\n"
        f"{export}"
        "  prefect deployment run pretrain-albert\n"
        "  prefect deployment ls\n"
        "  prefect deployment schedule ls refresh-corpus/refresh-corpus\n\n"
        "Ctrl-C stops everything."
    )


def _raise_stopped(_: int, __: FrameType | None) -> NoReturn:
    raise Stopped


def _refuse_taken(name: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServeError(
                f"{name} cannot listen at {HOST}:{port}: {error.strerror}. Stop what listens there "
                f"(another `make serve`?), or give ARGS='--{name.lower()}-port ...'"
            ) from error


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _family(root: int) -> list[int]:
    """Return ``root``, the processes of its group and all below them, whatever their sessions."""
    processes = _processes()
    family: list[int] = []
    queue = [root, *(pid for pid, _, group in processes if group == root)]
    while queue:
        pid = queue.pop()
        if pid not in family:
            family.append(pid)
            queue += [child for child, parent, _ in processes if parent == pid]
    return family


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


def _await_end(process: subprocess.Popen[bytes], family: Sequence[int]) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        process.poll()
        if not any(map(_is_alive, family)):
            return
        time.sleep(0.1)


def _is_alive(pid: int) -> bool:
    return bool(_signal([pid], 0))


def _signal(pids: Sequence[int], number: int) -> list[int]:
    """Send a signal to each process; return those that were there."""
    there = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        there.append(pid)
    return there


if __name__ == "__main__":
    sys.exit(main())
