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


@pytest.fixture(scope="module")
def one_tracking_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Making one takes longer than a run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mlflow")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """One for all tests that need a real one: it takes half a minute to start."""
    with MlflowServer(tmp_path_factory.mktemp("mlflow-server")) as server:
        yield server
