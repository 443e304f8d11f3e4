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
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ALBERT_", "COMPOSE_"))}
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
    assert "ALBERT_POSTGRES_PASSWORD is missing a value" in done.stderr
    assert "ALBERT_S3_SECRET_KEY is missing a value" in done.stderr


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
