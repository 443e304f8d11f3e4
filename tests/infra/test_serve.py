"""The whole of `albert serve`, once: a real Prefect server, MLflow server, worker and command."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import wait_until
from tests.mlflow_server import free_port
from tests.recovery.deployed_runs import PrefectApi

PROJECT = Path(__file__).parents[2]
ALBERT, PREFECT = (Path(sys.executable).with_name(name) for name in ("albert", "prefect"))
pytestmark = pytest.mark.long

FLOW = """
import os
from pathlib import Path
from typing import Any
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

    @property
    def work(self) -> Path:
        """The folder that it serves."""
        return self.home / "work"

    def prefect(self, *arguments: str, status: int = 0) -> str:
        """Run the command `prefect`, as the user does in another terminal, in any folder."""
        exports = [line for line in self.greeting.splitlines() if "export " in line]
        home = {"PREFECT_HOME": str(self.home / "prefect"), "COLUMNS": "200"}
        done = subprocess.run(
            "\n".join([*exports, shlex.join([str(PREFECT), *arguments])]),
            shell=True,
            capture_output=True,
            text=True,
            env=os.environ | home,
            cwd=self.home,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


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
    api = PrefectApi(served.prefect_url, served.work)
    wait_until(lambda: api.ask("/flow_runs/filter", scheduled), 120)


def test_a_name_without_slash_is_run_by_the_worker_but_no_command_of_a_caller(
    served: Served,
) -> None:
    (served.home / "hello.py").write_text(FLOW)
    (served.home / "prefect.yaml").write_text(DEPLOYMENT.replace("FOLDER", str(served.home)))
    served.prefect("--no-prompt", "deploy", "--all")
    output = served.prefect(
        *("deployment", "run", "say-hello", "--watch", "--watch-timeout", "120"),
        *("--job-variable", f"command=touch {served.home / 'evil'}"),
    )
    assert "finished successfully" in output
    assert (served.home / "said").read_text() == served.mlflow_url
    assert not (served.home / "evil").exists()


def test_nothing_listens_but_on_the_loopback_address(served: Served) -> None:
    family = [served.process, *served.process.children(recursive=True)]
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2
    assert set(listening) <= {"127.0.0.1", "::1"}


def status_of(served: Served, path: str, **headers: str) -> int:
    request = urllib.request.Request(f"{served.prefect_url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_prefect_answers_nobody_without_the_secret_and_no_page_of_another_site(
    served: Served,
) -> None:
    path = "/api/work_pools/albert"
    known = PrefectApi(served.prefect_url, served.work).headers()
    assert status_of(served, path) == 401
    assert status_of(served, path, **known) == 200
    assert status_of(served, path, **known, Origin=served.prefect_url) == 200
    assert status_of(served, path, **known, Origin="http://evil.example") == 403
    assert status_of(served, path, **known, Host="evil.example") == 403
    with pytest.raises(AssertionError, match="403"):  # without a token against forged requests
        PrefectApi.ask(NoToken(served.prefect_url, served.work), "/flow_runs/filter", {})


class NoToken(PrefectApi):
    """Does not ask for a token."""

    def ask(self, path: str, body: object = None) -> Any:
        return {"token": ""} if path.startswith("/csrf") else super().ask(path, body)


def test_data_and_logs_are_for_their_owner_only(served: Served) -> None:
    for path in (served.work, *served.work.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_second_one_says_that_the_ports_are_taken(served: Served) -> None:
    address = served.prefect_url.removeprefix("http://")
    port = f"--prefect-port={address.rpartition(':')[2]}"
    told = refused("serve", f"--work={served.home / 'second'}", port)
    assert f"error: Prefect cannot listen at {address}" in told


def test_a_second_one_leaves_the_work_folder_to_the_first(served: Served) -> None:
    ports = [f"--{name}-port={free_port()}" for name in ("prefect", "mlflow")]
    told = refused("serve", f"--work={served.work}", *ports)
    assert f"{served.work} is served already: {served.prefect_url}/api" in told
    served_json = (served.work / "served.json").rename(served.home / "served.json")
    try:  # as if the first had not started all yet
        assert f"{served.work} is served already. Use" in refused("serve", f"--work={served.work}")
    finally:
        served_json.rename(served.work / "served.json")


def test_a_recipe_that_is_not_there_is_refused_before_anything_starts() -> None:
    ports = [f"--{name}-port={free_port()}" for name in ("prefect", "mlflow")]
    told = refused("serve", "--work=third", *ports, "--recipe=bse")
    assert "there is no recipe 'bse'; did you mean 'base'?" in told


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
