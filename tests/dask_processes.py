"""A Dask scheduler and workers as processes, on this host or in network namespaces of their own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SCHEDULER, WORKER = "distributed.cli.dask_scheduler", "distributed.cli.dask_worker"


@dataclass
class DaskProcesses:
    """A cluster. `inside` are the words before a command that runs where the scheduler does."""

    folder: Path
    host: str = "127.0.0.1"
    inside: Sequence[str] = ()
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return (self.folder / "address").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a stage run on this cluster."""
        return {
            **os.environ,
            "ALBERT_ENGINE": "dask",
            "ALBERT_ENGINE_ADDRESS": self.address,
        }

    def start_scheduler(self) -> "subprocess.Popen[bytes]":
        """Start the scheduler, at a port that is free."""
        arguments = [f"--host={self.host}", "--port=0", "--no-dashboard"]
        process = self._start(self.inside, SCHEDULER, *arguments)
        self._wait_for("Scheduler at:", 1)
        lines = self._log(0).read_text().splitlines()
        address = next(line for line in lines if "Scheduler at:" in line).split()[-1]
        (self.folder / "address").write_text(address)
        return process

    def start_worker(
        self, inside: Sequence[str] = (), num_threads: int = 1
    ) -> "subprocess.Popen[bytes]":
        """Start a worker and its nanny; return the nanny, leader of their group."""
        local = f"--local-directory={self.folder / f'local-{len(self.processes)}'}"
        options = (f"--nthreads={num_threads}", "--no-dashboard", local)
        process = self._start(inside, WORKER, self.address, *options)
        self._wait_for("Registered to:", 1)
        return process

    def stop(self) -> None:
        """Kill every process."""
        for process in self.processes:
            kill(process)

    def _start(self, inside: Sequence[str], *command: str) -> "subprocess.Popen[bytes]":
        with self._log(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", *command],
                cwd=PROJECT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _log(self, number: int) -> Path:
        return self.folder / f"dask-{number}.log"

    def _wait_for(self, text: str, times: int) -> None:
        """Wait until the process started last has said ``text``."""
        log = self._log(len(self.processes) - 1)
        deadline = time.monotonic() + 60
        while log.read_text().count(text) < times:
            if time.monotonic() > deadline:
                raise AssertionError(log.read_text())
            time.sleep(0.05)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill -9 a process with all of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def local_cluster(folder: Path, num_workers: int, num_threads: int = 1) -> Iterator[DaskProcesses]:
    """Run a scheduler and workers on this host."""
    cluster = DaskProcesses(folder)
    try:
        cluster.start_scheduler()
        for _ in range(num_workers):
            cluster.start_worker(num_threads=num_threads)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def two_hosts() -> Iterator[list[tuple[str, list[str]]]]:
    """Give two network namespaces that reach each other: address, and words before a command.

    Raises:
        PermissionError: this process may not make them.
    """
    names = [f"albert-{os.getpid()}-{side}" for side in "ab"]
    wires = [f"al{os.getpid() % 100_000}{side}" for side in "ab"]
    addresses = [f"10.77.{os.getpid() % 250}.{number}" for number in (1, 2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        ends = ("netns", names[0], "type", "veth", "peer", "name", wires[1], "netns", names[1])
        _ip("link", "add", wires[0], *ends)
        for name, wire, address in zip(names, wires, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", wire)
            _ip("-n", name, "link", "set", wire, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        commands = [["ip", "netns", "exec", name] for name in names]
        yield list(zip(addresses, commands, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _ip(*arguments: str) -> None:
    if shutil.which("ip") is None:
        raise PermissionError("there is no command ip")
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise PermissionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
