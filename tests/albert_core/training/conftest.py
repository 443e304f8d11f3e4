"""Examples and a finished run that the tests of this folder share; none of them writes to these."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from albert_core.training import pretraining, run_log
from albert_core.training.step import TrainState, Update, train_step
from tests.albert_core.training_runs import make_days, train

AroundStep = Callable[[Callable[[TrainState], None]], None]


@pytest.fixture(scope="module", autouse=True)
def _one_tracking_database(one_tracking_database: None) -> None:
    """All runs are tracked in it."""


@pytest.fixture(scope="module", autouse=True)
def _processor_measured_briefly() -> Iterator[None]:
    """Each run begins by measuring its processor, and no run here is long enough to be timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_log, "MEASURING_SECONDS", 0.01)
        yield


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest of examples made of 60 documents whose sentence order can be learned."""
    return make_days(tmp_path_factory.mktemp("days"), seed=0, num_documents=60)


@pytest.fixture(scope="session")
def uninterrupted(
    examples: str, tracking_database: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The manifest of a run from the first update to the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", tracking_database)
        return train(examples, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def around_step(monkeypatch: pytest.MonkeyPatch) -> AroundStep:
    """A function that has another called before each update."""

    def plant(before: Callable[[TrainState], None]) -> None:
        def step(state: TrainState, *rest: Any) -> Update:
            before(state)
            return train_step(state, *rest)

        monkeypatch.setattr(pretraining, "train_step", step)

    return plant


def tell_to_stop_at(step: int) -> Callable[[TrainState], None]:
    """Return what `around_step` calls to have the run told to stop in update ``step``."""

    def before(state: TrainState) -> None:
        if state.step == step:
            signal.raise_signal(signal.SIGTERM)

    return before
