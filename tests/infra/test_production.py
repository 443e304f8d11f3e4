"""The services of a team, real ones: Postgres, MLflow with its files on S3, Prefect, two workers.

A refresh that the clock starts, the pretraining that it causes, the model that comes of it, alerts,
services that are killed: about six minutes.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest

from infra.production import Production
from infra.serve import LOOPBACK, PROJECT
from tests.conftest import wait_until
from tests.generated_text import write_source
from tests.infra.stack import stack
from tests.recovery.deployed_runs import TERMINAL, PrefectApi
from tests.test_end_to_end import SMALLER

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
OVERRIDES = [f"{name}={value}" for name, value in SMALLER.items()]
REFRESH = "refresh-corpus"
LOAD = (
    "import mlflow.pyfunc\n"
    "model = mlflow.pyfunc.load_model('models:/albert-tiny/1')\n"
    "print(len(model.predict([{'text': 'The [MASK] is here.'}])), 'guesses')"
)


@dataclass
class Team:
    """What a team has: the services, its text, what its webhook was told."""

    production: Production
    api: PrefectApi
    parameters: dict[str, Any]
    told: list[dict[str, str]]
    stop: Callable[[], None]

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
        body = {
            "deployments": {"name": {"any_": [deployment]}},
            "flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}},
            "sort": "EXPECTED_START_TIME_ASC",
        }
        found: list[dict[str, Any]] = self.api.ask("/flow_runs/filter", body)
        return found

    def completed(self, deployment: str) -> list[dict[str, Any]]:
        """Return the runs that are completed; fail on one that ended otherwise."""
        runs = self.runs(deployment)
        assert [run["state"] for run in runs if run["state_type"] in {"FAILED", "CRASHED"}] == []
        return [run for run in runs if run["state_type"] == "COMPLETED"]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    source = write_source(folder / "source", 40)
    told: list[dict[str, str]] = []
    with webhook(told) as url, ExitStack() as services:
        production = services.enter_context(
            stack(
                folder / "work",
                PREFECT_HOME=str(folder / "prefect"),
                ALBERT_PRETRAIN_AFTER_REFRESH="true",
                ALBERT_ALERT_WEBHOOK=f"{url}/planted-path",
                OMP_NUM_THREADS="1",
            )
        )
        parameters = {"recipe": "tiny", "source": f"{source}/*.jsonl", "overrides": OVERRIDES}
        api = PrefectApi(production.prefect_url, production.work)
        yield Team(production, api, parameters, told, services.close)


@contextmanager
def webhook(told: list[dict[str, str]]) -> Iterator[str]:
    """Serve an address until the block ends; keep the JSON that is posted to it."""

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Keeper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}"
        server.shutdown()


def test_a_refresh_that_the_clock_starts_ends_in_a_registered_model(team: Team) -> None:
    deployment = team.api.ask(f"/deployments/name/{REFRESH}/{REFRESH}")["id"]
    every_minute = {"cron": "* * * * *", "timezone": "UTC"}
    schedule = {"active": True, "schedule": every_minute, "parameters": team.parameters}
    team.api.ask(f"/deployments/{deployment}/schedules", [schedule])
    wait_until(lambda: team.completed(REFRESH), 600, "a refresh by the clock")
    assert team.completed(REFRESH)[0]["created_by"]["type"] == "SCHEDULE"
    wait_until(lambda: team.completed("pretrain-albert"), 900, "the pretraining that follows")
    [pretraining] = team.completed("pretrain-albert")
    assert pretraining["created_by"]["type"] == "AUTOMATION"
    assert pretraining["parameters"].items() >= team.parameters.items()
    assert pretraining["name"].startswith("tiny, 20")


def test_the_version_is_loaded_from_s3_through_the_server(team: Team) -> None:
    assert team.run("-c", LOAD).strip() == "5 guesses"
    port = team.production.settings.s3_port
    bucket = f"http://{LOOPBACK}:{port}/albert?list-type=2"
    assert b"model.safetensors</Key>" in urllib.request.urlopen(bucket, timeout=30).read()
    assert not (team.production.work / "mlartifacts").exists()


def test_a_refresh_without_news_starts_no_pretraining(team: Team) -> None:
    before = len(team.completed(REFRESH))
    wait_until(lambda: len(team.completed(REFRESH)) > before + 1, 600, "two refreshes")
    time.sleep(10)
    assert len(team.runs("pretrain-albert")) == 1
    clear = ("deployment", "schedule", "clear", f"{REFRESH}/{REFRESH}", "--accept-yes")
    team.run("-m", "prefect", "--no-prompt", *clear)


def test_the_registered_version_is_evaluated(team: Team) -> None:
    short = [setting for setting in OVERRIDES if setting.startswith("finetuning.")]
    run_id = team.api.start(
        "evaluate-albert", model="models:/albert-tiny/1", seeds=2, overrides=short
    )
    assert team.api.await_state(run_id, TERMINAL, 900) == "COMPLETED", team.api.log_of(run_id)
    assert "evaluate-albert" in team.api.artifacts_of(run_id)


def test_two_runs_of_a_deployment_follow_each_other(team: Team) -> None:
    before = len(team.completed(REFRESH))
    for _ in range(2):
        team.api.start(REFRESH, **team.parameters)
    wait_until(lambda: len(team.completed(REFRESH)) == before + 2, 600, "two refreshes")
    first, second = team.completed(REFRESH)[before:]
    assert first["end_time"] < second["start_time"]


def test_the_webhook_is_told_of_a_failed_run(team: Team) -> None:
    team.api.start(REFRESH, source="/no/such/folder")
    wait_until(lambda: team.told, 300, "an alert")
    [alert] = team.told
    assert alert["text"].startswith("refresh-corpus, run ")
    assert "Failed" in alert["text"]


@pytest.mark.parametrize("name", ["Postgres", "S3", "MLflow", "Prefect", "worker 1", "worker 2"])
def test_a_killed_service_is_back(team: Team, name: str) -> None:
    service = team.production.by_name[name]
    killed = service.process
    killed.kill()
    wait_until(lambda: service.process != killed, 60, f"{name} started again")
    wait_until(lambda: service.is_up, 180, f"{name} up")


def test_the_databases_are_in_postgres_and_their_password_is_in_no_command_line(team: Team) -> None:
    password = team.production.postgres.password_file.read_text()
    command_lines = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not any(password in word for words in command_lines for word in words)
    assert not list(team.production.work.glob("*.db"))
    logs = b"".join(path.read_bytes() for path in team.production.logs.iterdir())
    assert password.encode() not in logs
    assert b"planted-path" not in logs


def test_everything_listens_on_the_loopback_address_alone(team: Team) -> None:
    settings = team.production.settings
    ports = {settings.prefect_port, settings.mlflow_port, settings.postgres_port, settings.s3_port}
    sockets = psutil.net_connections("tcp")
    listening = {s.laddr for s in sockets if s.status == psutil.CONN_LISTEN}
    assert {(ip, port) for ip, port in listening if port in ports} == {
        (LOOPBACK, port) for port in ports
    }


def test_stopping_leaves_nothing_behind(team: Team) -> None:
    services = list(team.production.by_name.values())
    assert len(services) == 6
    families = {process for service in services for process in service.family()}
    assert len(families) > 6
    team.stop()
    assert [process for process in families if process.is_running()] == []
    assert [process for service in services for process in service.family()] == []
