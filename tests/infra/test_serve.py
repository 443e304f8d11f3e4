"""The whole of `albert serve`, once: a real Prefect server, MLflow server, worker and command."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.infra.free_ports import free_ports
from tests.infra.test_services import descendants

PROJECT = Path(__file__).parents[2]
ALBERT, PREFECT = (Path(sys.executable).with_name(name) for name in ("albert", "prefect"))
pytestmark = pytest.mark.slow

FLOW = """
import os
from pathlib import Path
from prefect import flow

@flow(name="say-hello")
def say_hello(folder: str) -> None:
    Path(folder, "said").write_text(os.environ["MLFLOW_TRACKING_URI"])
"""
DEPLOYMENT = """
name: hello
deployments:
  - name: say-hello
    entrypoint: hello.py:say_hello
    work_pool: {name: albert, job_variables: {stream_output: false}}
    parameters: {folder: FOLDER}
"""


@dataclass
class Served:
    """`albert serve`, running."""

    process: "subprocess.Popen[str]"
    prefect_port: int
    mlflow_port: int
    home: Path
    greeting: str

    def prefect(self, *arguments: str, cwd: Path = PROJECT) -> "subprocess.CompletedProcess[str]":
        """Run the command `prefect`, as the user does in another terminal."""
        environment = os.environ | {
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.prefect_port}/api",
            "COLUMNS": "200",
        }
        return subprocess.run(
            [PREFECT, *arguments], capture_output=True, text=True, env=environment, cwd=cwd
        )

    def ask(self, path: str, **body: object) -> Any:
        """Return the answer of Prefect's API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.prefect_port}/api{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    prefect_port, mlflow_port = free_ports(2)
    process = subprocess.Popen(
        [
            *(ALBERT, "serve", f"--work={home / 'work'}"),
            *(f"--prefect-port={prefect_port}", f"--mlflow-port={mlflow_port}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=PROJECT,
        env=os.environ | {"PREFECT_HOME": str(home / "prefect")},
    )
    try:
        yield Served(process, prefect_port, mlflow_port, home, read_greeting(process))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def read_greeting(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            return "".join(lines)
    raise AssertionError("".join(lines))


def test_it_prints_two_addresses_and_both_answer(served: Served) -> None:
    for port in (served.prefect_port, served.mlflow_port):
        assert f"http://127.0.0.1:{port}\n" in served.greeting
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            assert b"<html" in page.read()


def test_each_deployment_bears_its_flows_name(served: Served) -> None:
    done = served.prefect("deployment", "ls")
    for name in ("pretrain-albert", "refresh-corpus", "evaluate-albert"):
        assert f"{name}/{name}" in done.stdout


def test_the_nightly_refresh_has_scheduled_runs(served: Served) -> None:
    schedules = served.prefect("deployment", "schedule", "ls", "refresh-corpus/refresh-corpus")
    assert "cron: 0 3 * * *" in schedules.stdout
    states = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    runs: list[Any] = []
    deadline = time.monotonic() + 30
    while not runs and time.monotonic() < deadline:
        runs = served.ask(
            "/flow_runs/filter", flow_runs=states, flows={"name": {"any_": ["refresh-corpus"]}}
        )
        time.sleep(0.5)
    assert len(runs) >= 1


def test_a_name_without_slash_is_run_by_the_worker(served: Served) -> None:
    (served.home / "hello.py").write_text(FLOW)
    (served.home / "prefect.yaml").write_text(DEPLOYMENT.replace("FOLDER", str(served.home)))
    deployed = served.prefect("--no-prompt", "deploy", "--all", cwd=served.home)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    done = served.prefect("deployment", "run", "say-hello", "--watch", "--watch-timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished successfully" in done.stdout
    said = (served.home / "said").read_text()
    assert said == f"http://127.0.0.1:{served.mlflow_port}"


def test_a_second_one_says_that_the_ports_are_taken(served: Served) -> None:
    done = subprocess.run(
        [
            *(ALBERT, "serve", f"--work={served.home / 'second'}"),
            *(f"--prefect-port={served.prefect_port}", f"--mlflow-port={served.mlflow_port}"),
        ],
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    assert done.returncode == 2
    assert f"error: Prefect cannot listen at 127.0.0.1:{served.prefect_port}" in done.stderr


@pytest.mark.parametrize("command", ["serve", "production"])
def test_a_work_folder_in_a_bucket_is_refused(command: str) -> None:
    done = subprocess.run(
        [ALBERT, command, "--work=s3://bucket/work"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    assert done.returncode == 2
    assert "s3://bucket/work is not on this machine" in done.stderr


def test_ctrl_c_stops_everything(served: Served) -> None:
    family = descendants(served.process.pid)
    assert len(family) >= 3
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=60) == 0
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
