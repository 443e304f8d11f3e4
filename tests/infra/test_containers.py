"""Images and compose files, by the tools that read them: hadolint and `docker compose config`."""

import functools
import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from albert_core.stage.credentials import secrets_of
from flows.prefect_server import guarded, server_command
from infra import outlive

PROJECT = Path(__file__).parents[2]
INFRA = PROJECT / "infra"
DOCKERFILE = INFRA / "Dockerfile"
EXAMPLE = INFRA / "compose.env.example"


def run(tool: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a tool that the extra dev installs, here or elsewhere on the PATH."""
    folders = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(tool, path=folders)
    if found is None:
        pytest.skip(f"{tool} is not installed: make install-dev")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("ALBERT_", "COMPOSE_", "MLFLOW_"))
    }
    environment |= variables
    return subprocess.run([found, *arguments], env=environment, capture_output=True, text=True)


@functools.cache
def services(*files: str, **variables: str) -> dict[str, Any]:
    """Return the services that Docker Compose reads in the files."""
    options = [part for file in files or ("compose.yaml",) for part in ("-f", str(INFRA / file))]
    command = ("--env-file", str(EXAMPLE), *options, "config", "--format", "json")
    done = run("docker-compose", *command, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_the_dockerfile_has_no_findings() -> None:
    done = run("hadolint", str(DOCKERFILE))
    assert done.returncode == 0, done.stdout


def test_every_image_of_others_has_a_version_or_a_digest() -> None:
    named = [each["image"] for each in services().values() if "build" not in each]
    named += re.findall(r"^ARG \w+_IMAGE=(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert {name.partition(":")[0] for name in named} >= {"postgres", "python"}
    assert [name for name in named if not re.search(r":v?\d[\w.-]*$|@sha256:", name)] == []
    assert "latest" not in (INFRA / "kubernetes/cluster.yaml").read_text()


def test_only_the_code_and_its_description_go_to_the_builder() -> None:
    lines = (PROJECT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert {"albert_core", "flows", "infra", "pipelines", "prefect.yaml"} <= let_in
    assert not let_in & {".git", "work", ".venv"}
    assert "**/*.env" in rules


def test_without_passwords_nothing_starts() -> None:
    command = ("--env-file", os.devnull, "-f", str(INFRA / "compose.yaml"), "config")
    done = run("docker-compose", *command)
    assert done.returncode != 0
    for name in ("POSTGRES_PASSWORD", "PREFECT_PASSWORD", "S3_SECRET_KEY"):
        assert f"ALBERT_{name} is missing a value" in done.stderr


def test_no_password_stands_in_the_files() -> None:
    for name in ("compose.yaml", "compose.gpu.yaml"):
        for line in (INFRA / name).read_text().splitlines():
            if re.search(r"(PASSWORD|SECRET)\w*:", line):
                assert re.search(r"\$\{ALBERT_\w+:\?", line), line


@pytest.mark.parametrize(
    ("variables", "address"), [({}, "127.0.0.1"), ({"ALBERT_BIND": "192.0.2.1"}, "192.0.2.1")]
)
def test_only_this_machine_reaches_the_ports_unless_told_otherwise(
    variables: dict[str, str], address: str
) -> None:
    dask = services("engines/dask.compose.yaml", ALBERT_IMAGE="albert/beam-worker", **variables)
    for found in (services(**variables), dask):
        ports = [port for service in found.values() for port in service.get("ports", [])]
        assert {port["host_ip"] for port in ports} == {address}
    assert "ports" not in services(**variables)["postgres"]


def test_the_worker_knows_no_password_of_a_database_and_no_address_of_alerts() -> None:
    worker = services(ALBERT_POSTGRES_PASSWORD="p4ss", ALBERT_ALERT_WEBHOOK="p4ss")["worker"]
    assert "p4ss" not in json.dumps(worker)


def test_prefect_is_guarded_as_that_of_albert_production_and_all_clients_know_its_password() -> (
    None
):
    found = services(ALBERT_PREFECT_PASSWORD="p4ss")
    secret = "albert:p4ss"
    guards = guarded(secret, "http://127.0.0.1:4200")
    assert guards.items() <= found["prefect"]["environment"].items()
    assert found["prefect"]["command"][1:] == server_command("0.0.0.0", 4200, "warning")[1:]
    assert found["prefect"]["environment"]["MLFLOW_SERVER_ALLOWED_HOSTS"] == "prefect"
    for name in ("deploy", "worker"):
        environment = found[name]["environment"]
        assert environment["PREFECT_API_AUTH_STRING"] == secret
        assert environment["PREFECT_API_URL"] == "http://prefect:4200/api"


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "http://127.0.0.1:4200"),
        ({"ALBERT_BIND": "192.0.2.1", "ALBERT_PREFECT_PORT": "4300"}, "http://192.0.2.1:4300"),
        ({"ALBERT_PREFECT_PUBLIC_URL": "https://prefect.lan"}, "https://prefect.lan"),
    ],
)
def test_prefects_pages_look_for_it_where_it_is(variables: dict[str, str], address: str) -> None:
    environment = services(**variables)["prefect"]["environment"]
    assert environment["PREFECT_SERVER_UI_API_URL"] == f"{address}/api"
    assert environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == address


def test_flow_runs_get_what_is_set_and_defaults_of_the_rest() -> None:
    set_ones = {
        "ALBERT_BEAM_OPTIONS": "--parallelism=4",
        "ALBERT_ENGINE": "flink",
        "ALBERT_ENGINE_ADDRESS": "jobmanager:8081",
        "ALBERT_LOG_FORMAT": "json",
        "ALBERT_SILENT_MINUTES": "60",
        "ALBERT_STAGE_HOURS": "2",
        "ALBERT_TRACKED_MODEL_MB": "0",
        "MLFLOW_EXPERIMENT_NAME": "texts",
    }
    assert set_ones.items() <= services(**set_ones)["worker"]["environment"].items()
    unset = services()["worker"]["environment"]
    assert {unset[name] for name in set_ones} == {None}  # a container does not have these


def test_the_example_makes_no_word_of_the_project_a_secret() -> None:
    for service in services().values():
        values = {name: value or "" for name, value in service.get("environment", {}).items()}
        assert "albert" not in secrets_of(values)


def test_the_worker_lets_trainings_save_also_when_it_ends_by_itself() -> None:
    start = ["python", "-m", "infra.outlive", outlive.CONTAINER, "prefect", "worker", "start"]
    assert services()["worker"]["command"][: len(start)] == start
    commands = re.findall(r"^CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert [json.loads(command)[: len(start)] for command in commands] == [start] * 2


@pytest.mark.parametrize(("variables", "count"), [({}, -1), ({"ALBERT_GPUS": "4"}, 4)])
def test_the_worker_has_all_gpus_or_as_many_as_asked_for(
    variables: dict[str, str], count: int
) -> None:
    worker = services("compose.yaml", "compose.gpu.yaml", **variables)["worker"]
    [devices] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["count"], devices["capabilities"]) == (count, ["gpu"])


def test_the_pool_of_compose_is_that_of_the_deployments() -> None:
    deployments = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    assert {deployment["work_pool"]["name"] for deployment in deployments} == {"albert"}
    assert "--pool=albert" in services()["worker"]["command"]
    assert services()["deploy"]["command"][2:] == ["infra.deployments", "--rules"]
