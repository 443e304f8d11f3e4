"""Beam's own job service and worker pool, as processes: what Flink and Spark users start.

Run as a module it is the job service. Unlike Beam's, it can start the workers of environment
PROCESS too, with the arguments that Beam's Java runners give.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import worker_handlers

PROJECT = Path(__file__).parents[1]


class ProcessWorkerHandler(worker_handlers.GrpcWorkerHandler):
    """Starts the command of environment PROCESS.

    Source: Beam's ProcessEnvironmentFactory.java.
    """

    def __init__(self, payload: Any, *context: Any) -> None:
        super().__init__(*context)
        self._payload = payload
        self._process: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> None:
        """Start the command."""
        services = {
            "id": self.worker_id,
            "logging_endpoint": self.logging_api_service_descriptor().url,
            "artifact_endpoint": self.artifact_api_service_descriptor().url,
            "provision_endpoint": self.control_address,
            "control_endpoint": self.control_address,
        }
        self._process = subprocess.Popen(
            [self._payload.command, *(f"--{name}={value}" for name, value in services.items())],
            env={**os.environ, **self._payload.env},
        )

    def stop_worker(self) -> None:
        """Wait for the worker, which ends with its control connection."""
        if self._process is not None:
            self._process.wait(timeout=20)


@contextmanager
def job_service(folder: Path) -> Iterator[str]:
    """Run a job service; give its address."""
    port_file = folder / "job_service.port"
    command = [sys.executable, "-m", "tests.job_service", f"--port_file={port_file}"]
    with _running(command, folder / "job_service.log"):
        deadline = time.monotonic() + 60
        while not port_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"localhost:{port_file.read_text()}"


@contextmanager
def worker_pool(worker: Path, folder: Path) -> Iterator[str]:
    """Run a pool that starts workers with the executable ``worker``; give its address."""
    log = folder / "worker_pool.log"
    pool = "apache_beam.runners.worker.worker_pool_main"
    command = [sys.executable, "-m", pool, "--service_port=0", f"--container_executable={worker}"]
    with _running(command, log):
        said = "Started worker pool servicer at port: "
        deadline = time.monotonic() + 60
        while said not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield log.read_text().partition(said)[2].split()[0]


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[None]:
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    worker_handlers.WorkerHandler.register_environment(
        common_urns.environments.PROCESS.urn, beam_runner_api_pb2.ProcessPayload
    )(ProcessWorkerHandler)
    local_job_service_main.run(sys.argv[1:])
