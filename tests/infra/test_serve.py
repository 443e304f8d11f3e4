"""The whole of `albert serve`, once: a real Prefect server, MLflow server, worker and command."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.mlflow_server import free_port
from tests.recovery.deployed_runs import PrefectApi

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

    process: "psutil.Popen"
    prefect_url: str
    mlflow_url: str
    home: Path
    greeting: str

    def prefect(self, *arguments: str, cwd: Path = PROJECT) -> str:
        """Run the command `prefect`, as the user does in another terminal."""
        environment = os.environ | {
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [PREFECT, *arguments], capture_output=True, text=True, env=environment, cwd=cwd
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    prefect, mlflow = free_port(), free_port()
    process = psutil.Popen(
        [
            *(ALBERT, "serve", f"--work={home / 'work'}"),
            *(f"--prefect-port={prefect}", f"--mlflow-port={mlflow}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=PROJECT,
        env=os.environ | {"PREFECT_HOME": str(home / "prefect")},
    )
    try:
        urls = f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}"
        yield Served(process, *urls, home, greeting_of(process))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def greeting_of(process: "psutil.Popen") -> str:
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            return "".join(lines)
    raise AssertionError("".join(lines))


def test_it_prints_two_addresses_and_both_answer(served: Served) -> None:
    for url in (served.prefect_url, served.mlflow_url):
        assert f"{url}\n" in served.greeting
        with urllib.request.urlopen(f"{url}/", timeout=30) as page:
            assert b"<html" in page.read()


def test_each_deployment_has_its_flows_name_and_the_nightly_refresh_is_scheduled(
    served: Served,
) -> None:
    deployments = served.prefect("deployment", "ls")
    for name in ("pretrain-albert", "refresh-corpus", "evaluate-albert"):
        assert f"{name}/{name}" in deployments
    schedules = served.prefect("deployment", "schedule", "ls", "refresh-corpus/refresh-corpus")
    assert "cron: 0 3 * * *" in schedules
    scheduled = {
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        "flows": {"name": {"any_": ["refresh-corpus"]}},
    }
    deadline = time.monotonic() + 30
    while not PrefectApi(served.prefect_url).ask("/flow_runs/filter", scheduled):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_name_without_slash_is_run_by_the_worker(served: Served) -> None:
    (served.home / "hello.py").write_text(FLOW)
    (served.home / "prefect.yaml").write_text(DEPLOYMENT.replace("FOLDER", str(served.home)))
    served.prefect("--no-prompt", "deploy", "--all", cwd=served.home)
    output = served.prefect("deployment", "run", "say-hello", "--watch", "--watch-timeout", "60")
    assert "finished successfully" in output
    assert (served.home / "said").read_text() == served.mlflow_url


def test_a_second_one_says_that_the_ports_are_taken(served: Served) -> None:
    address = served.prefect_url.removeprefix("http://")
    told = refused("serve", "--work=second", f"--prefect-port={address.rpartition(':')[2]}")
    assert f"error: Prefect cannot listen at {address}" in told


@pytest.mark.parametrize("command", ["serve", "production"])
def test_a_work_folder_in_a_bucket_is_refused(command: str) -> None:
    assert "s3://bucket/work is not on this machine" in refused(command, "--work=s3://bucket/work")


def refused(*arguments: str) -> str:
    done = subprocess.run([ALBERT, *arguments], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 2
    return done.stderr


def test_ctrl_c_stops_everything(served: Served) -> None:
    family = served.process.children(recursive=True)
    assert len(family) >= 3
    assert (served.home / "work" / "served.json").exists()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=60) == 0
    assert [process for process in family if process.is_running()] == []
    assert not (served.home / "work" / "served.json").exists()
