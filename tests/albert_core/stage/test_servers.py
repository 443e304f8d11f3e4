"""Where MLflow keeps runs and models: by hand, beside `albert serve` and `albert production`."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from albert_core.stage import servers
from albert_core.stage.servers import Served, answers, note_served, tracking_name, tracking_uri

MLFLOW = "http://127.0.0.1:5000"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(servers.TRACKING_URI, raising=False)
    return str(tmp_path)


def test_beside_albert_serve_one_database_has_one_name(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = tracking_uri(work), tracking_name(work)
    note_served(Path(work), Served("", MLFLOW, has_own_database=True))
    assert (tracking_uri(work), tracking_name(work)) == by_hand
    monkeypatch.setenv(servers.TRACKING_URI, MLFLOW)
    assert (tracking_uri(work), tracking_name(work)) == (MLFLOW, by_hand[1])
    monkeypatch.setenv(servers.TRACKING_URI, "http://127.0.0.1:5001")
    assert tracking_name(work) == "http://127.0.0.1:5001"


def test_beside_albert_production_flows_by_hand_use_its_registry(work: str) -> None:
    note_served(Path(work), Served("", MLFLOW, has_own_database=False))
    assert tracking_uri(work) == tracking_name(work) == MLFLOW
    (Path(work) / servers.SERVED).unlink()
    assert tracking_uri(work) == f"sqlite:///{work}/mlflow.db"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/absolute/work", "/absolute/work/mlflow.db"),
        ("work", "{cwd}/work/mlflow.db"),
        ("s3://bucket/work", "{cwd}/mlflow.db"),
    ],
)
def test_runs_are_kept_in_the_work_folder_or_here_if_that_is_in_a_store(
    folder: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(folder) == f"sqlite:///{expected.format(cwd=tmp_path)}"


def test_the_server_that_the_environment_names_comes_first_and_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(servers.TRACKING_URI, "https://ann:parole@mlflow.example.org")
    assert tracking_uri("work") == "https://ann:parole@mlflow.example.org"
    assert servers.shown_tracking_uri("work") == "https://***@mlflow.example.org"


def test_what_answers_in_another_protocol_is_not_one_of_our_servers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answers, f"http://127.0.0.1:{server.getsockname()[1]}/")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"\0\0\x10 no HTTP\n")
            assert not asked.result()
