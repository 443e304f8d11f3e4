import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mlflow_server import MlflowServer


@pytest.fixture(scope="module")
def work(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A work folder with an MLflow database of its own, whatever the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        folder = tmp_path_factory.mktemp("work")
        shutil.copy(empty_database, folder)
        yield str(folder)


@pytest.fixture(scope="session")
def tracking_database(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all runs."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path_factory.mktemp('runs'))}"


@pytest.fixture(scope="module")
def one_tracking_database(tracking_database: str) -> Iterator[None]:
    """Runs of a module, also those in other processes, are tracked in that one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", tracking_database)
        yield


@pytest.fixture(scope="session")
def mlflow_server(
    empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowServer]:
    """One for all tests that need a real one: it takes long to start."""
    folder = tmp_path_factory.mktemp("mlflow-server")
    shutil.copy(empty_database, folder / "server.db")
    with MlflowServer(folder) as server:
        yield server
