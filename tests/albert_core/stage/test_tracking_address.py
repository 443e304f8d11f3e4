"""Where MLflow is: named by the environment, else beside the results."""

from pathlib import Path

import pytest

from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri, tracking_uri


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACKING_URI, raising=False)


def test_runs_are_kept_in_the_work_folder(tmp_path: Path) -> None:
    assert tracking_uri(str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_work_folder_is_named_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri("work") == f"sqlite:///{tmp_path}/work/mlflow.db"


def test_no_database_is_looked_for_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri("s3://bucket/work") == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_server_that_the_environment_names_comes_first_and_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRACKING_URI, "https://ann:parole@mlflow.example.org")
    assert tracking_uri("work") == "https://ann:parole@mlflow.example.org"
    assert shown_tracking_uri("work") == "https://***@mlflow.example.org"
