"""Files for other machines: systemd's unit, scripts, a cluster's manifests."""

import os
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
    "ALBERT_IMAGE": "registry.example.org/albert",
    "ALBERT_WORK": "s3://bucket/albert",
    "MLFLOW_TRACKING_URI": "https://mlflow.example.org",
    "PREFECT_API_URL": "https://prefect.example.org/api",
    "NODES": "4",
    "GPUS": "8",
    "RECIPE": "s3://bucket/albert/recipes/base-0.json",
    "EXAMPLES": "s3://bucket/albert/examples/0/manifest.json",
}


def resources(file: str) -> list[dict[str, Any]]:
    """Return the resources of a file of manifests, its variables filled in as envsubst does."""
    text = Template((INFRA / "kubernetes" / file).read_text()).safe_substitute(CLUSTER)
    assert "${" not in text
    return [resource for resource in yaml.safe_load_all(text) if resource]


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
    assert int(dict(settings)["TimeoutStopSec"]) >= 120
    assert " -m infra.outlive " in dict(settings)["ExecStart"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_shell_can_read_the_script(script: str) -> None:
    shell = (INFRA / script).read_text().splitlines()[0].removeprefix("#!")
    done = subprocess.run([shell, "-n", str(INFRA / script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("file", ["cluster.yaml", "multinode.yaml"])
def test_kubernetes_knows_every_field_of_the_resources(file: str, version: str) -> None:
    for resource in resources(file):
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_worker_may_do_in_the_cluster_what_prefect_asks_and_no_more() -> None:
    [role] = [each for each in resources("cluster.yaml") if each["kind"] == "Role"]
    may = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("jobs", "create"), ("jobs", "delete"), ("pods", "watch"), ("pods/log", "get")} <= may
    assert not [resource for resource, _ in may if "secret" in resource or "*" in resource]


def test_the_ranks_of_all_nodes_meet_at_the_first_pod() -> None:
    service, job = resources("multinode.yaml")
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--master-addr={first}" in container["args"]
    assert pod["subdomain"] == service["metadata"]["name"]
    [port] = service["spec"]["ports"]
    assert f"--master-port={port['port']}" in container["args"]
    assert "--nnodes=4" in container["args"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_a_node_that_is_lost_starts_the_ranks_again_and_a_fault_of_theirs_does_not() -> None:
    _, job = resources("multinode.yaml")
    fault, disruption = job["spec"]["podFailurePolicy"]["rules"]
    assert fault["action"] == "FailJob"
    assert fault["onExitCodes"]["operator"] == "NotIn"
    assert os.EX_TEMPFAIL in fault["onExitCodes"]["values"]
    assert disruption["action"] == "Ignore"
