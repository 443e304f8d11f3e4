from collections.abc import Iterator

import pytest

from tests.mlflow_server import MlflowServer


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A work folder with an MLflow database of its own, whatever the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        yield str(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="session")
def tracking_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all runs, because making one takes longer than a run."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def one_tracking_database(tracking_database: str) -> Iterator[None]:
    """Runs of a module, also those in other processes, are tracked in that one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", tracking_database)
        yield


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """One for all tests that need a real one: it takes half a minute to start."""
    with MlflowServer(tmp_path_factory.mktemp("mlflow-server")) as server:
        yield server
