"""Planted credentials are in nothing that a refresh and a pretraining leave or say.

Real servers: a file server and an MLflow server with basic authentication, a Prefect server.
Several minutes: ``make test-long ARGS=tests/test_planted_credentials.py``.
"""

import base64
import contextlib
import gzip
import json
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mlflow import MlflowClient

from tests.generated_text import write_jsonl
from tests.mlflow_server import HOST, Gate, MlflowServer
from tests.test_end_to_end import run_flow

SOURCE = "source-planted-4711"
MLFLOW = "mlflow-planted-4711"
PREFECT = "prefect-planted-4711"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED4711",
    "AWS_SECRET_ACCESS_KEY": "aws/planted+4711",
    "AWS_SESSION_TOKEN": "session-planted-4711",
    "PREFECT_API_AUTH_STRING": f"admin:{PREFECT}",
    "PREFECT_SERVER_API_AUTH_STRING": f"admin:{PREFECT}",
    "ALERT_WEBHOOK_URL": "https://hooks.example.org/planted-4711?token=hook-planted-4711",
    "REPORTS_DATABASE": "postgresql://me:postgres-planted-4711@127.0.0.1:9/reports",
}
REFUSED = "https://reader:uri-planted-4711@example.org/texts"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def forms(secret: str) -> set[bytes]:
    """Return how a secret may stand in a file: as it is, in a URL, in a header, in JSON."""
    texts = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    return {text.encode() for text in texts}


def find_leaks(where: dict[str, bytes]) -> list[str]:
    """Return where a planted credential stands, and which."""
    secrets = {*PLANTED.values(), SOURCE, MLFLOW, PREFECT, "planted-4711"}
    secrets |= {basic("reader", SOURCE)[6:], basic("writer", MLFLOW)[6:]}
    return [
        f"{name}: {secret}"
        for name, content in where.items()
        for secret in sorted(secrets)
        if any(form in content for form in forms(secret))
    ]


def all_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file, databases among them; what is packed, unpacked."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found[str(path)] = content
            if content[:2] == b"\x1f\x8b":
                found[f"{path}, unpacked"] = gzip.decompress(content)
            elif zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as packed:
                    found |= {f"{path}, {name}": packed.read(name) for name in packed.namelist()}
    return found


class GuardedFiles(SimpleHTTPRequestHandler):
    """Files for those who have the password."""

    def log_message(self, *_: object) -> None:
        """Be quiet."""

    def copyfile(self, *files: Any) -> None:
        """Send the file; the other side may not want all of it."""
        with contextlib.suppress(OSError):
            super().copyfile(*files)

    def do_HEAD(self) -> None:
        if self._may():
            super().do_HEAD()

    def do_GET(self) -> None:
        if self._may():
            super().do_GET()

    def _may(self) -> bool:
        if self.headers.get("Authorization") == basic("reader", SOURCE):
            return True
        self.send_error(401)
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def source(folder: Path) -> Iterator[str]:
    texts = folder / "texts"
    texts.mkdir()
    for first in (0, 60):  # two files, so that a task can ask from which one a passage is
        write_jsonl(texts / f"{first}.jsonl", range(first, first + 60))
    handler = partial(GuardedFiles, directory=str(texts))
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    with MlflowServer(folder / "mlflow-server") as server:
        yield server


def planted(command: str, folder: Path, source: str, **variables: str) -> tuple[int, str]:
    """Run a flow with all credentials planted; return its status and all that it said."""
    header = json.dumps({"headers": {"Authorization": basic("reader", SOURCE)}})
    workers = {"ALBERT_WORKERS": "2"}
    environment = {**PLANTED, **workers, "FSSPEC_HTTP_CLIENT_KWARGS": header, **variables}
    done = run_flow(source, folder / "work", command, environment)
    return done.status, done.output


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_planted_credentials_are_in_nothing_that_the_flows_leave_or_say(
    folder: Path, source: str, mlflow_server: MlflowServer
) -> None:
    gate = Gate(mlflow_server.port, basic("writer", MLFLOW))
    said = {}
    in_uri = gate.url.replace("//", f"//writer:{MLFLOW}@")
    status, said["refresh"] = planted(
        "refresh", folder, source, MLFLOW_TRACKING_URI=in_uri, ALBERT_LOG_FORMAT="json"
    )
    assert status == 0, said["refresh"]
    not_json = [line for line in said["refresh"].splitlines() if not line.startswith("{")]
    assert not_json == []
    status, said["pretrain"] = planted(
        *("pretrain", folder, source),
        MLFLOW_TRACKING_URI=gate.url,
        MLFLOW_TRACKING_USERNAME="writer",
        MLFLOW_TRACKING_PASSWORD=MLFLOW,
    )
    assert status == 0, said["pretrain"]
    status, said["wrong source password"] = planted(
        *("refresh", folder, source),
        MLFLOW_TRACKING_URI=in_uri,
        FSSPEC_HTTP_CLIENT_KWARGS='{"headers": {"Authorization": "Basic wrong-planted-4711"}}',
    )
    assert status == 2, said["wrong source password"]
    gate.is_shut = True
    status, said["MLflow away"] = planted("pretrain", folder, source, MLFLOW_TRACKING_URI=in_uri)
    assert status in (2, 75), said["MLflow away"]
    status, said["refused"] = planted("refresh", folder, REFUSED)
    assert status == 2
    assert "https://***@example.org/texts contains credentials" in said["refused"]

    assert find_leaks({name: text.encode() for name, text in said.items()}) == []
    assert find_leaks(all_files(folder)) == []
    client = MlflowClient(mlflow_server.url)  # not through the gate
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    tags = [run.data.tags for run in runs]
    names = {each.get("flow") or each.get("stage") for each in tags}
    stages = {"corpus", "vocab", "pretraining", "finetuning"}
    assert stages | {"refresh-corpus", "pretrain-albert"} <= names
    gate.close()


def test_a_planted_leak_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x AKIAPLANTED4711 y"))
    (tmp_path / "b.txt").write_text("s3://k:aws%2Fplanted%2B4711@bucket")
    (tmp_path / "c.db").write_bytes(b"\x00\x01" + basic("writer", MLFLOW).encode() + b"\x02")
    (tmp_path / "d.txt").write_text("nothing")
    leaks = find_leaks(all_files(tmp_path))
    found = {leak.removeprefix(f"{tmp_path}/").partition(":")[0] for leak in leaks}
    assert found == {"a.gz, unpacked", "b.txt", "c.db"}
