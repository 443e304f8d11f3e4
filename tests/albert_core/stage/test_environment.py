"""Settings from environment variables."""

from pathlib import Path

import pytest

from albert_core.stage.command import worker_count
from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri, tracking_uri
from albert_core.stage.errors import ConfigError


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("/absolute/work", "/absolute/work/mlflow.db"),
        ("work", "{cwd}/work/mlflow.db"),
        ("s3://bucket/work", "{cwd}/mlflow.db"),
    ],
)
def test_runs_are_kept_in_the_work_folder_or_here_if_that_is_in_a_store(
    work: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRACKING_URI, raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(work) == f"sqlite:///{expected.format(cwd=tmp_path)}"


def test_the_server_that_the_environment_names_comes_first_and_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRACKING_URI, "https://ann:parole@mlflow.example.org")
    assert tracking_uri("work") == "https://ann:parole@mlflow.example.org"
    assert shown_tracking_uri("work") == "https://***@mlflow.example.org"


def test_there_are_as_many_workers_as_the_environment_says_or_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in ("1", "16"):
        monkeypatch.setenv("ALBERT_WORKERS", text)
        assert worker_count() == int(text)
    monkeypatch.delenv("ALBERT_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert worker_count() == 3


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²"])
def test_a_number_of_workers_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", text)
    with pytest.raises(ConfigError, match=r"ALBERT_WORKERS=.* must be a whole number"):
        worker_count()
