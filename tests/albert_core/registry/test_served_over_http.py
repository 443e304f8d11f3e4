"""A registered model behind `mlflow models serve`, asked by several clients at once."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from albert_core.finetuning.finetuned_model import load_finetuned
from albert_core.registry.versions import model_folder_of
from tests.albert_core.asked_at_once import Tally, asked_at_once
from tests.albert_core.tiny_finetuned import register_tiny
from tests.albert_core.tiny_vocab import tiny_sentences
from tests.mlflow_server import HOST, free_port

pytestmark = pytest.mark.long
SENTENCES = list(dict.fromkeys(tiny_sentences(500, seed=8)))[:400]
_START_SECONDS = 180.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model folder among the files of a version."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    registered = register_tiny(str(tmp_path), "sst-2", 0.5)
    return model_folder_of(registered.facts["model_uri"], str(tmp_path))


@pytest.fixture
def url(folder: str, tmp_path: Path) -> Iterator[str]:
    """Return where a server that has just started answers."""
    port, log = free_port(), tmp_path / "serve.log"
    version = Path(folder).parents[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(version)]
    command += ["--env-manager", "local", "--host", HOST, "--port", str(port)]
    scripts = Path(sys.executable).parent  # where uvicorn is
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(f"http://{HOST}:{port}/ping", process, log)
        yield f"http://{HOST}:{port}/invocations"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def wait_for(ping: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(ping, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_eight_clients_get_what_the_model_says_to_one(folder: str, url: str) -> None:
    model = load_finetuned(folder)
    expected = [model.predict([{"text": sentence}]) for sentence in SENTENCES]

    def ask(sentence: str) -> Any:
        body = json.dumps({"dataframe_records": [{"text": sentence}]}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["predictions"]

    for _ in ("cold", "warm"):
        assert asked_at_once(ask, SENTENCES, expected) == Tally()
    assert [ask(sentence)[0]["label"] for sentence in SENTENCES] == [
        said["label"] for (said,) in expected
    ]
