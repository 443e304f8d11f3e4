"""Deployments keep what a user changed, however often they are deployed."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.prefect_server import AUTH_FILE
from infra.deployments import DEPLOYMENTS, PROCESS_PATCH, deploy, merged, patched, wanted_of
from infra.serve import PROJECT
from tests.infra.stack import open_folder
from tests.mlflow_server import free_port

ENTRIES = {entry["name"]: entry for entry in yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]}
OTHER = {"recipe": "small", "source": "/mine", "overrides": ["training.seed=3"]}


@pytest.mark.parametrize(
    ("last", "there", "wanted", "expected"),
    [
        ("a", "a", "b", "b"),
        ("a", "mine", "b", "mine"),
        ("a", "mine", "a", "mine"),
        ({"x": 1}, {"x": 1}, {"x": 2, "y": 3}, {"x": 2, "y": 3}),
        ({"x": 1, "y": 1}, {"x": 1, "y": 1}, {"x": 1}, {"x": 1}),
        ({"x": 1}, {"x": 1, "mine": 2}, {"x": 2}, {"x": 2, "mine": 2}),
        ({"x": 1, "y": 1}, {"x": 5, "y": 1}, {"x": 2, "y": 2}, {"x": 5, "y": 2}),
        ({"x": 1}, {}, {"x": 2}, {}),
        ({"e": {"x": 1}}, {"e": {"x": 1, "y": 2}}, {"e": {"x": 3}}, {"e": {"x": 3, "y": 2}}),
    ],
)
def test_only_what_is_as_it_was_deployed_becomes_what_is_wanted_now(
    last: Any, there: Any, wanted: Any, expected: Any
) -> None:
    assert merged(last, there, wanted) == expected


def test_a_default_goes_to_the_deployments_that_have_the_parameter() -> None:
    given = {"recipe": "small", "source": "/texts", "task_folder": None}
    parameters = {name: wanted_of(entry, given)["parameters"] for name, entry in ENTRIES.items()}
    assert parameters == {
        "pretrain-albert": {"recipe": "small", "source": "/texts"},
        "refresh-corpus": {"recipe": "small", "source": "/texts"},
        "evaluate-albert": {"model": "models:/albert-tiny@champion"},
    }


class Server:
    """Stands for a Prefect server with one deployment, which refuses every update."""

    def __init__(self, entry: dict[str, Any], parameters: dict[str, Any]) -> None:
        pool = entry["work_pool"]
        self.there = DeploymentResponse(
            name=entry["name"],
            flow_id=uuid4(),
            parameters=parameters,
            tags=entry["tags"],
            description=entry["description"],
            job_variables=pool["job_variables"],
            work_pool_name=pool["name"],
            work_queue_name=pool["work_queue_name"],
            labels={},
        )

    def read_deployment_by_name(self, _: str) -> DeploymentResponse:
        return self.there

    def update_deployment(self, *_: object) -> None:
        request = httpx.Request("PATCH", "http://here")
        raise PrefectHTTPStatusError("no", request=request, response=httpx.Response(409))


def test_what_a_user_set_and_a_flow_no_longer_takes_stops_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = ENTRIES["pretrain-albert"]
    monkeypatch.setattr("infra.deployments.Variable.get", lambda _, default: default)
    forced: dict[str, Any] = {"job_variables": {}}

    def deploy_to(server: Server) -> str:
        return deploy(cast(SyncPrefectClient, server), entry, {}, forced)

    told = deploy_to(Server(entry, {"recipe": "gone"}))
    assert told == "pretrain-albert: left as it is, because of what was changed, parameters: no"
    with pytest.raises(PrefectHTTPStatusError):
        deploy_to(Server(entry, {"recipe": "tiny"}))


def change(api_url: str, work: Path) -> None:
    """Change deployments as a user does on their pages."""
    with client_of(api_url, work) as client:
        refresh = client.read_deployment_by_name("refresh-corpus/refresh-corpus")
        theirs = DeploymentUpdate(parameters=OTHER, tags=["albert", "mine"])
        client.update_deployment(refresh.id, theirs)
        [nightly] = refresh.schedules
        client.update_deployment_schedule(refresh.id, nightly.id, active=False)
        weekly = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 5 * * 0"))
        client.create_deployment_schedules(refresh.id, [weekly])
        evaluate = client.read_deployment_by_name("evaluate-albert/evaluate-albert")
        client.pause_deployment(evaluate.id)


def state_of(api_url: str, work: Path) -> dict[str, Any]:
    """Return what a user sees of each deployment, without what the flows' code decides."""
    fields = {"parameters", "tags", "paused", "schedules", "job_variables", "work_pool_name"}
    with client_of(api_url, work) as client:
        return {
            each.name: each.model_dump(
                include=fields, exclude={"schedules": {"__all__": {"updated"}}}
            )
            for each in client.read_deployments()
        }


@contextmanager
def reaching(api_url: str, work: Path) -> Iterator[None]:
    """Have Prefect's clients speak to the server of a work folder."""
    secret = (work / AUTH_FILE).read_text()
    with temporary_settings({PREFECT_API_URL: api_url, PREFECT_API_AUTH_STRING: secret}):
        yield


@contextmanager
def client_of(api_url: str, work: Path) -> Iterator[SyncPrefectClient]:
    with reaching(api_url, work), get_client(sync_client=True) as client:
        yield client


@contextmanager
def production(**options: object) -> Iterator[None]:
    """Run `albert production` until the block ends."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("albert"), "production", *given],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert process.stdout
    try:
        assert any(line.startswith("Ctrl-C") for line in process.stdout)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_a_user_changed_outlasts_three_starts(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with open_folder() as databases:
        options = {"work": work, "source": "/theirs", "postgres_folder": databases / "postgres"}
        ports = {f"{name}_port": free_port() for name in ("prefect", "mlflow", "postgres", "s3")}
        api_url = f"http://127.0.0.1:{ports['prefect_port']}/api"
        with production(**options, **ports):
            change(api_url, work)
            before = state_of(api_url, work)
        of_nobody = before["pretrain-albert"].pop("parameters")
        assert of_nobody == {"recipe": "tiny", "source": "/theirs"}
        for recipe in ("tiny", "base", "small"):
            with production(**options, **ports, recipe=recipe):
                now = state_of(api_url, work)
            assert now["pretrain-albert"].pop("parameters")["recipe"] == recipe
            assert now == before


def test_a_run_chooses_neither_the_command_nor_the_folder_of_its_process() -> None:
    template = ProcessWorker.get_default_base_job_template()
    evil = {"command": "touch /tmp/evil", "working_dir": "/tmp", "env": {"A": "b"}}
    configuration: Any = asyncio.run(
        ProcessJobConfiguration.from_template_and_values(patched(template, PROCESS_PATCH), evil)
    )
    assert configuration.command is None
    assert configuration.working_dir is None
    assert configuration.env == {"A": "b"}
