"""Files for other machines: systemd's unit, scripts, a cluster's manifests."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import kubernetes_validate
import pytest
import yaml

PROJECT = Path(__file__).parents[2]
INFRA = PROJECT / "infra"
UNIT = INFRA / "hosts" / "albert-worker.service"
SCRIPTS = ["hosts/deploy_by_ssh.sh", "kubernetes/deploy.sh", "tpu/startup.sh"]
CLUSTER = {
    "ALBERT_RUNNER_IMAGE": "registry.example.org/albert/runner@sha256:0",
    "ALBERT_TRAINER_IMAGE": "registry.example.org/albert/trainer@sha256:0",
    "ALBERT_WORK": "s3://bucket/albert",
    "MLFLOW_TRACKING_URI": "https://mlflow.example.org",
    "PREFECT_API_URL": "https://prefect.example.org/api",
}


def resources(file: str) -> list[dict[str, Any]]:
    """Return the resources of a file of manifests, its variables filled in as envsubst does."""
    text = Template((INFRA / "kubernetes" / file).read_text()).safe_substitute(CLUSTER)
    assert "${" not in text
    return [resource for resource in yaml.safe_load_all(text) if resource]


def test_every_path_that_a_file_for_other_machines_names_is_there() -> None:
    in_tree = (
        r"(?<![\w/.-])(?:(?:infra|flows|pipelines|albert_core|docs|tests)/[\w./-]*\w|[a-z]+\.txt)"
    )
    made_later = {"infra/compose.env"}
    named = {
        (str(file.relative_to(PROJECT)), path)
        for file in INFRA.rglob("*")
        if file.is_file() and file.suffix not in {".pyc", ".typed"}
        for path in re.findall(in_tree, file.read_text())
    }
    assert ("infra/tpu/startup.sh", "infra/tpu/constraints.txt") in named
    assert [
        each
        for each in sorted(named)
        if not (PROJECT / each[1]).exists() and each[1] not in made_later
    ] == []


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/albert/.venv/bin/python", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_stops_the_worker_alone_and_waits_for_what_saves() -> None:
    settings = re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert ("KillMode", "process") in settings
    assert ("KillSignal", "SIGINT") in settings
    assert ("Restart", "always") in settings
    stop_seconds = dict(settings)["TimeoutStopSec"]
    assert int(stop_seconds) >= 120
    assert ("Environment", f"ALBERT_STOP_SECONDS={stop_seconds}") in settings
    assert " -m infra.outlive " in dict(settings)["ExecStart"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_shell_can_read_the_script(script: str) -> None:
    shell = (INFRA / script).read_text().splitlines()[0].removeprefix("#!")
    done = subprocess.run([shell, "-n", str(INFRA / script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_kubernetes_knows_every_field_of_the_resources(version: str) -> None:
    for resource in resources("cluster.yaml"):
        kubernetes_validate.validate(resource, version, strict=True)
