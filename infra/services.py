"""The services of one machine: processes that are started, watched, started again and stopped."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from albert_core.contract.errors import AlbertError
from infra.process_family import family, is_alive, marked, send_signal

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


def answers(url: str) -> bool:
    """Return whether a server answers there, with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _how_it_ended(service: Service) -> str:
    return f"{service.name} ended by itself, with status {service.process.returncode}"


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=sys.stdout, flush=True)
