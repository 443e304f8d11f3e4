"""Images and compose files, by the tools that read them: hadolint and `docker compose config`."""

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
FLOW_SERVICES = {"deploy", "worker"}
LIFELONG = {"postgres", "s3", "mlflow", "prefect", "worker"}


def tool(name: str) -> str:
    """Return the path of a tool that the extra dev installs, here or elsewhere on the PATH."""
    folders = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install -c constraints.txt -e '.[dev]'")
    return found


def compose(*files: str, env_file: Path = EXAMPLE, **variables: str) -> dict[str, Any]:
    """Return the configuration that Docker Compose makes of the files."""
    done = run_compose(*files, env_file=env_file, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run_compose(
    *files: str, env_file: Path = EXAMPLE, **variables: str
) -> subprocess.CompletedProcess[str]:
    options = [part for file in files for part in ("-f", str(INFRA / file))]
    command = [tool("docker-compose"), "--env-file", str(env_file), *options, "config"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ALBERT_", "COMPOSE_"))}
    return subprocess.run(
        [*command, "--format", "json"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_dockerfile_has_no_findings() -> None:
    done = subprocess.run([tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("sound", "fault", "finding"),
    [
        ("USER 1000:1000", "USER 0:0", "DL3002"),
        ('CMD ["prefect", "worker", "start", "--pool", "albert"]', "CMD prefect worker", "DL3025"),
        ("WORKDIR /opt/prefect", "WORKDIR opt/prefect", "DL3000"),
    ],
)
def test_a_fault_in_the_dockerfile_is_found(
    tmp_path: Path, sound: str, fault: str, finding: str
) -> None:
    text = DOCKERFILE.read_text()
    assert sound in text
    (tmp_path / "Dockerfile").write_text(text.replace(sound, fault))
    command = [tool("hadolint"), str(tmp_path / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert finding in done.stdout


def test_every_image_has_the_pinned_versions_and_the_workers_of_beam_no_torch() -> None:
    text = DOCKERFILE.read_text()
    installs = re.findall(r"pip install (?:[^'\n]|\\\n)*'\.\[([a-z0-9,]+)\]'", text)
    assert len(installs) == text.count("--constraint constraints.txt") == 3
    assert "train" not in installs[0]
    assert "all" not in installs[0]
    assert "train" not in installs[1]
    assert "all" not in installs[1]
    assert "all" in installs[2]


def test_only_the_code_and_its_description_go_to_the_builder() -> None:
    rules = [
        line
        for line in (PROJECT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert {"albert_core", "flows", "infra", "pipelines", "prefect.yaml"} <= let_in
    assert not let_in & {".git", "work", ".venv"}
    assert "**/*.env" in rules


@pytest.mark.parametrize(
    "files",
    [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml"), ("engines/dask.compose.yaml",)],
)
def test_docker_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    assert compose(*files, ALBERT_IMAGE="albert/beam-worker")["services"]


def test_without_passwords_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "empty.env").touch()
    done = run_compose("compose.yaml", env_file=tmp_path / "empty.env")
    assert done.returncode != 0
    assert "ALBERT_POSTGRES_PASSWORD is missing a value" in done.stderr
    assert "ALBERT_S3_SECRET_KEY is missing a value" in done.stderr


def test_no_password_stands_in_the_files() -> None:
    for name in ("compose.yaml", "compose.gpu.yaml"):
        for line in (INFRA / name).read_text().splitlines():
            if re.search(r"(PASSWORD|SECRET)\w*:", line):
                assert re.search(r"\$\{ALBERT_\w+:\?", line), line


def test_only_this_machine_reaches_the_ports_unless_told_otherwise() -> None:
    def addresses(**variables: str) -> set[str]:
        services = compose("compose.yaml", **variables)["services"].values()
        return {port["host_ip"] for service in services for port in service.get("ports", [])}

    assert addresses() == {"127.0.0.1"}
    assert addresses(ALBERT_BIND="192.0.2.1") == {"192.0.2.1"}
    assert "ports" not in compose("compose.yaml")["services"]["postgres"]


def test_every_server_is_watched_and_started_again() -> None:
    services = compose("compose.yaml")["services"]
    assert {name for name, s in services.items() if s["restart"] == "unless-stopped"} == LIFELONG
    assert {name for name, s in services.items() if "healthcheck" in s} == LIFELONG - {"worker"}


def test_a_service_starts_when_what_it_needs_answers() -> None:
    services = compose("compose.yaml")["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            once = "healthcheck" not in services[needed]
            expected = "service_completed_successfully" if once else "service_healthy"
            assert how["condition"] == expected, f"{name} -> {needed}"
    assert set(services["worker"]["depends_on"]) == {"deploy", "mlflow"}
    assert set(services["mlflow"]["depends_on"]) == {"bucket", "postgres"}


def test_mlflow_is_one_process_that_knows_the_name_it_is_called_by() -> None:
    mlflow = compose("compose.yaml")["services"]["mlflow"]
    assert "--workers=1" in mlflow["command"]
    assert mlflow["environment"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    [hosts] = [part for part in mlflow["command"] if part.startswith("--allowed-hosts=")]
    for service in FLOW_SERVICES:
        uri = compose("compose.yaml")["services"][service]["environment"]["MLFLOW_TRACKING_URI"]
        assert uri.removeprefix("http://") in hosts.partition("=")[2].split(",")


def test_a_worker_that_is_stopped_has_time_to_let_its_training_save() -> None:
    worker = compose("compose.yaml")["services"]["worker"]
    assert worker["stop_signal"] == "SIGINT"
    assert worker["stop_grace_period"] == "2m0s"


def test_the_worker_knows_no_password_of_a_database_and_no_address_of_alerts() -> None:
    worker = compose("compose.yaml", ALBERT_POSTGRES_PASSWORD="p4ss")["services"]["worker"]
    assert "p4ss" not in json.dumps(worker)
    assert "ALBERT_ALERT_WEBHOOK" not in worker["environment"]


def test_as_many_ranks_train_as_the_worker_has_gpus() -> None:
    worker = compose("compose.yaml", "compose.gpu.yaml", ALBERT_GPUS="4")["services"]["worker"]
    [devices] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["count"], devices["capabilities"]) == (4, ["gpu"])
    assert worker["environment"]["ALBERT_TRAINING_PROCESSES"] == "4"


def test_the_pool_of_compose_is_that_of_the_deployments() -> None:
    services = compose("compose.yaml")["services"]
    pools = {
        deployment["work_pool"]["name"]
        for deployment in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    }
    assert pools == {"albert"}
    assert "--pool=albert" in services["worker"]["command"]
    assert "work-pool create albert --type process" in services["deploy"]["command"][-1]
