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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the same files for hosts and one module, committed."""
    folder = tmp_path / "repository"
    (folder / "flows").mkdir(parents=True)
    (folder / "flows/new.py").touch()
    shutil.copytree(INFRA / "hosts", folder / "infra/hosts")
    (folder / "worker.env").write_text("ALBERT_POOL=albert")  # without a line end
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "One")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a host with an older version of the code."""
    root = tmp_path / "host"
    for old in ("opt/albert/flows/old.py", "opt/albert/.venv/bin/python", "etc/albert/worker.env"):
        (root / old).parent.mkdir(parents=True, exist_ok=True)
        (root / old).touch(mode=0o700)
    return root


def run_on(host: Path, script: str, cwd: Path, *arguments: str, **programs: str) -> None:
    """Run a script as if the folder were the root of a host, where some programs are these."""
    folder = host / "usr/bin"
    folder.mkdir(parents=True)
    for name, does in programs.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    text = re.sub(r"(/opt|/etc|/tmp)/albert", rf"{host}\1/albert", (INFRA / script).read_text())
    path = f"{folder}:{os.environ['PATH']}"
    shell = text.splitlines()[0].removeprefix("#!")
    command = [shell, "-c", text, script, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def check_updated(host: Path, repository: Path) -> None:
    code = host / "opt/albert"
    assert [file.name for file in (code / "flows").iterdir()] == ["new.py"]
    assert (code / ".venv/bin/python").exists()
    settings = host / "etc/albert/worker.env"
    lines = settings.read_text().splitlines()
    assert {"ALBERT_POOL=albert", f"ALBERT_COMMIT={git(repository, 'rev-parse', 'HEAD')}"} <= {
        *lines
    }
    assert settings.stat().st_mode & 0o077 == 0


def test_a_host_has_the_code_of_the_commit_alone_and_names_it(host: Path, repository: Path) -> None:
    ssh = 'case "$2" in *systemctl*) ;; *) exec sh -c "$2" ;; esac'
    run_on(host, "hosts/deploy_by_ssh.sh", repository, "root@host", "worker.env", ssh=ssh)
    check_updated(host, repository)


def test_a_tpu_vm_has_the_code_of_the_archive_alone_and_names_its_commit(
    host: Path, repository: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "albert.tar.gz"
    git(repository, "archive", "--format", "tar.gz", f"--output={archive}", "HEAD")
    (host / "tmp").mkdir()
    (host / "etc/systemd/system").mkdir(parents=True)
    (host / "opt/albert/.venv/bin/pip").touch(mode=0o755)
    run_on(
        host,
        "tpu/startup.sh",
        repository,
        apt_get="",
        curl="cat worker.env",
        gcloud=f'cp {archive} "${{@: -1}}"',
        id="",
        install='test "$1" = -d || exit 0; exec /usr/bin/install "$@"',
        systemctl="",
        **{"python3.11": f'exec {sys.executable} "$@"'},
    )
    check_updated(host, repository)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_kubernetes_knows_every_field_of_the_resources(version: str) -> None:
    for resource in resources("cluster.yaml"):
        kubernetes_validate.validate(resource, version, strict=True)
