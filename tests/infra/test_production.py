"""The services of a team, real ones: Postgres, MLflow with its files on S3, Prefect, two workers.

A refresh that the clock starts, the pretraining that it causes, the model that comes of it, alerts,
services that are killed: about six minutes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.postgres import find_binaries
from infra.production import MEMORY, Production, ProductionSettings, running
from infra.services import PROJECT, ServeError, is_alive
from tests.generated_text import write_jsonl
from tests.infra.free_ports import free_ports
from tests.test_end_to_end import SMALLER

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
OVERRIDES = [f"{name}={value}" for name, value in SMALLER.items()]
SHORT = [setting for setting in OVERRIDES if setting.startswith("finetuning.")]
LOAD = (
    "import mlflow.pyfunc\n"
    "model = mlflow.pyfunc.load_model('models:/albert-tiny@champion')\n"
    "print(len(model.predict([{'text': 'The [MASK] is here.'}])), 'guesses')"
)


@dataclass
class Team:
    """What a team has: the services, its text, what its webhook was told."""

    production: Production
    source: Path
    told: list[dict[str, str]]
    stop: Callable[[], None]

    def ask(self, path: str, **body: object) -> Any:
        """Return the answer of Prefect's API."""
        request = urllib.request.Request(
            f"{self.production.prefect_url}/api{path}",
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def prefect(self, *arguments: str) -> str:
        """Run the command `prefect` and return what it says."""
        return self.run("-m", "prefect", "--no-prompt", *arguments)

    def run(self, *arguments: str) -> str:
        """Run Python as another terminal would: with the addresses, without a credential."""
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=PROJECT,
            env={**os.environ, **self.production.environment, "COLUMNS": "200"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runs(self, deployment: str) -> list[dict[str, Any]]:
        """Return the runs of a deployment that are not merely scheduled, the oldest first."""
        found: list[dict[str, Any]] = self.ask(
            "/flow_runs/filter",
            deployments={"name": {"any_": [deployment]}},
            flow_runs={"state": {"type": {"not_any_": ["SCHEDULED"]}}},
            sort="EXPECTED_START_TIME_ASC",
        )
        return found

    def completed(self, deployment: str) -> list[dict[str, Any]]:
        """Return the runs that are completed; fail on one that ended otherwise."""
        runs = self.runs(deployment)
        ended_badly = [run["state"] for run in runs if run["state_type"] in {"FAILED", "CRASHED"}]
        assert ended_badly == []
        return [run for run in runs if run["state_type"] == "COMPLETED"]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    try:
        find_binaries()
    except ServeError as error:
        pytest.skip(str(error))
    folder = Path(tempfile.mkdtemp(prefix="albert-production-"))
    folder.chmod(0o711)  # Postgres runs as another user, who must get through
    source = folder / "source"
    source.mkdir()
    for number in range(3):
        write_jsonl(source / f"{number}.jsonl", range(number * 40, number * 40 + 40))
    told: list[dict[str, str]] = []
    prefect_port, mlflow_port, postgres_port, s3_port, webhook_port = free_ports(5)
    settings = ProductionSettings(
        work=folder / "work",
        artifacts=MEMORY,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        postgres_port=postgres_port,
        s3_port=s3_port,
        environment={
            "PREFECT_HOME": str(folder / "prefect"),
            "ALBERT_PRETRAIN_AFTER_REFRESH": "true",
            "ALBERT_ALERT_WEBHOOK": f"http://127.0.0.1:{webhook_port}/planted-path",
            "OMP_NUM_THREADS": "1",
        },
    )
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        webhook = stack.enter_context(receiver(webhook_port, told))
        stack.callback(webhook.shutdown)
        services = stack.enter_context(ExitStack())
        production = services.enter_context(running(settings))
        yield Team(production, source, told, services.close)


def receiver(port: int, told: list[dict[str, str]]) -> ThreadingHTTPServer:
    """Return a server, running, that keeps the JSON that is posted to it."""

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def wait_until(is_so: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(1)


def test_a_refresh_that_the_clock_starts_ends_in_a_registered_model(team: Team) -> None:
    every_minute(team)
    wait_until(lambda: team.completed("refresh-corpus"), 600, "a refresh by the clock")
    assert team.completed("refresh-corpus")[0]["created_by"]["type"] == "SCHEDULE"
    wait_until(lambda: team.completed("pretrain-albert"), 900, "the pretraining that follows")
    [pretraining] = team.completed("pretrain-albert")
    assert pretraining["created_by"]["type"] == "AUTOMATION"
    assert pretraining["parameters"]["source"] == f"{team.source}/*.jsonl"
    assert pretraining["parameters"]["overrides"] == OVERRIDES
    assert pretraining["name"].startswith("tiny, 20")


def every_minute(team: Team) -> None:
    """Have the refresh of the team's text done every minute, as a user would."""
    name = "refresh-corpus/refresh-corpus"
    parameters = {"source": f"{team.source}/*.jsonl", "overrides": OVERRIDES}
    code = (
        "import json, sys\n"
        "from prefect.client.orchestration import get_client\n"
        "from prefect.client.schemas.actions import DeploymentUpdate\n"
        "with get_client(sync_client=True) as client:\n"
        f"    deployment = client.read_deployment_by_name({name!r})\n"
        "    wanted = DeploymentUpdate(parameters=json.loads(sys.argv[1]))\n"
        "    client.update_deployment(deployment.id, wanted)\n"
    )
    team.run("-c", code, json.dumps({"recipe": "tiny", **parameters}))
    cron = ["--cron", "* * * * *", "--timezone", "UTC", "--replace", "--accept-yes"]
    team.prefect("deployment", "schedule", "create", name, *cron)


def test_the_version_is_loaded_from_s3_through_the_server(team: Team) -> None:
    assert team.run("-c", LOAD).strip() == "5 guesses"
    objects = urllib.request.urlopen(
        f"http://127.0.0.1:{team.production.settings.s3_port}/albert?list-type=2", timeout=30
    ).read()
    assert b"model.safetensors</Key>" in objects
    assert not (team.production.settings.work / "mlartifacts").exists()


def test_a_refresh_without_news_starts_no_pretraining(team: Team) -> None:
    before = len(team.completed("refresh-corpus"))
    wait_until(lambda: len(team.completed("refresh-corpus")) > before + 1, 600, "two refreshes")
    time.sleep(10)
    assert len(team.runs("pretrain-albert")) == 1
    team.prefect("deployment", "schedule", "clear", "refresh-corpus/refresh-corpus", "--accept-yes")


def test_the_registered_version_is_evaluated(team: Team) -> None:
    parameters = json.dumps({"seeds": 2, "overrides": SHORT})
    said = team.prefect(
        *("deployment", "run", "evaluate-albert", "--params", parameters, "--watch"),
        *("--watch-timeout", "900"),
    )
    assert "finished successfully" in said
    [run] = team.completed("evaluate-albert")
    keys = {
        artifact["key"]
        for artifact in team.ask(
            "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}}
        )
    }
    assert "scores" in keys


def test_two_runs_of_a_deployment_follow_each_other(team: Team) -> None:
    before = len(team.completed("refresh-corpus"))
    parameters = json.dumps({"source": f"{team.source}/*.jsonl", "overrides": OVERRIDES})
    for _ in range(2):
        team.prefect("deployment", "run", "refresh-corpus", "--params", parameters)
    wait_until(lambda: len(team.completed("refresh-corpus")) == before + 2, 600, "two refreshes")
    first, second = team.completed("refresh-corpus")[before:]
    assert first["end_time"] < second["start_time"]


def test_a_failed_run_is_told_to_the_webhook(team: Team) -> None:
    parameters = json.dumps({"recipe": "no-such-recipe"})
    team.prefect("deployment", "run", "refresh-corpus", "--params", parameters)
    wait_until(lambda: team.told, 300, "an alert")
    [alert] = team.told
    assert alert["text"].startswith("refresh-corpus, run no-such-recipe, ")
    assert "Failed" in alert["text"]
    assert "no-such-recipe" in alert["text"]


@pytest.mark.parametrize("name", ["Postgres", "S3", "MLflow", "Prefect", "worker 1", "worker 2"])
def test_a_killed_service_is_back(team: Team, name: str) -> None:
    killed = team.production.pid(name)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: team.production.pid(name) != killed, 60, f"{name} started again")
    wait_until(lambda: team.production.is_up(name), 180, f"{name} up")


def test_the_databases_are_in_postgres_and_their_password_is_in_no_command_line(
    team: Team,
) -> None:
    password = team.production.postgres.password_file.read_text().encode()
    command_lines = [read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(password in line for line in command_lines)
    work = team.production.settings.work
    assert not (work / "prefect.db").exists()
    assert not (work / "mlflow.db").exists()
    logs = b"".join(path.read_bytes() for path in team.production.services.logs.iterdir())
    assert password not in logs
    assert b"planted-path" not in logs


def test_everything_listens_on_the_loopback_address_alone(team: Team) -> None:
    settings = team.production.settings
    ports = {
        settings.prefect_port,
        settings.mlflow_port,
        settings.postgres_port,
        settings.s3_port,
    }
    listening = [line.split()[1].split(":") for line in sockets() if line.split()[3] == "0A"]
    addresses = {int(port, 16): address for address, port in listening if int(port, 16) in ports}
    assert addresses == dict.fromkeys(ports, "0100007F")


def sockets() -> list[str]:
    """Return Linux's list of TCP sockets: number, local address, remote address, state, ..."""
    both = Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()
    return [line for table in both for line in table.splitlines()[1:]]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has just ended
        return b""


def test_stopping_leaves_nothing_behind(team: Team) -> None:
    services = team.production.services
    pids = [service.process.pid for service in services.services.values()]
    assert len(pids) == 6
    mark = services.mark
    team.stop()
    assert [pid for pid in pids if is_alive(pid)] == []
    environments = [read(path) for path in Path("/proc").glob("[0-9]*/environ")]
    assert not any(mark.encode() in environment for environment in environments)
