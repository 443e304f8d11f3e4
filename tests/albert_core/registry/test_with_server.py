"""Two registrations at the same time, at a real MLflow server with its database."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from albert_core.registry.champion import CLAIM
from albert_core.stage import storage
from albert_core.tracking.server import open_client
from flows.commands.main import main
from tests.albert_core.made_scores import pretrained, scored

NAME = "at-once"
_START_SECONDS = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of an MLflow server that has ended when the tests have."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}"]
    command += ["--workers=1", f"--backend-store-uri=sqlite:///{folder}/mlflow.db"]
    command += [f"--artifacts-destination={folder}/artifacts"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(f"{url}/health", process, folder / "log")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", url)
            patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
            yield url
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def start_registration(work: str, seed: int, score: float) -> subprocess.Popen[str]:
    pretraining = pretrained(work, seed)
    recipe = f"{work}/recipe.json"
    storage.write_bytes(recipe, f'{{"registry": {{"model_name": "{NAME}"}}}}'.encode())
    command = [sys.executable, "-m", "albert_core.registry.register", f"--recipe={recipe}"]
    command += [f"--pretraining={pretraining}", f"--scores={scored(work, pretraining, score)}"]
    return subprocess.Popen([*command, f"--work={work}"], stdout=subprocess.PIPE, text=True)


def test_two_registrations_at_once_end_with_the_best_as_champion(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = str(tmp_path)
    first = start_registration(work, 0, 0.5)
    said = first.communicate()[0]
    assert first.returncode == 0, said
    both = [start_registration(work, seed, 0.5 + seed / 10) for seed in (1, 2)]
    texts = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    client = open_client(work)
    champion = client.get_model_version_by_alias(NAME, "champion")
    assert champion.tags["score.sst-2"] == "0.7"
    (other,) = {"2", "3"} - {str(champion.version)}
    against = {
        version: client.get_model_version(NAME, version).tags["decision.against"]
        for version in (other, str(champion.version))
    }
    # Either came second, and was then compared with the first one to be promoted.
    assert against in (
        {other: "1", str(champion.version): other},
        {other: str(champion.version), str(champion.version): "1"},
    )
    assert not [key for key in client.get_registered_model(NAME).tags if key.startswith(CLAIM)]
    previous = client.get_model_version_by_alias(NAME, "previous")
    assert main(["rollback", NAME, f"--work={work}"]) == 0
    now = client.get_model_version_by_alias(NAME, "champion")
    assert now.version == previous.version
    assert f"version {now.version} is champion" in capsys.readouterr().out
