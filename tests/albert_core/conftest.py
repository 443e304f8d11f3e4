from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_tracking_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Making one takes longer than a run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mlflow")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield
