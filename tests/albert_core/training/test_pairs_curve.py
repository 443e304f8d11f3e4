"""Minimal pairs during pretraining: a curve that changes nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from albert_core.stage.command import RunAgain
from albert_core.stage.manifest import read_manifest
from albert_core.tracking.server import open_client
from albert_core.training import held_out
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.training.conftest import AroundStep, tell_to_stop_at
from tests.albert_core.training_runs import result_of, train, weights_of

NAMES = {f"minimal_pairs_accuracy{end}" for end in ("", "_low", "_high")}


@pytest.fixture(scope="module", autouse=True)
def _small_sample() -> Iterator[None]:
    """A sample has 20 pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "_MAX_PAIRS", 20)
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 30 pairs, more than a sample has."""
    return write_pairs(tmp_path_factory.mktemp("tasks"), 30)


@pytest.fixture(scope="module")
def measured(
    examples: str, pairs: Path, _small_sample: None, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The manifest of a run that is scored on them."""
    return train(examples, tmp_path_factory.mktemp("measured"), task_folder=pairs)


def test_a_sample_is_scored_at_each_evaluation_and_the_weights_are_the_same(
    measured: str, uninterrupted: str
) -> None:
    result = result_of(measured)
    for point in result.evaluations:
        value = point["minimal_pairs_accuracy"]
        assert point["minimal_pairs_accuracy_low"] < value < point["minimal_pairs_accuracy_high"]
    assert [point["step"] for point in result.evaluations] == [6, 12]
    assert result.before.keys() == result.after.keys() >= {"minimal_pairs_accuracy"}
    account = read_manifest(measured).account("minimal pairs")
    assert (account.total, account.kept) == (30, 20)
    for name, weights in weights_of(uninterrupted).items():
        assert torch.equal(weights_of(measured)[name], weights), name
    run = open_client(str(Path(measured).parents[2])).get_run(str(result.mlflow_run_id))
    assert run.data.metrics.keys() >= {f"held_out/{name}" for name in NAMES}


def test_with_other_pairs_a_run_is_measured_again_and_not_trained_again(
    examples: str, measured: str, tmp_path: Path, around_step: AroundStep
) -> None:
    around_step(lambda _: pytest.fail("an update was made"))
    work = Path(measured).parents[2]
    again = train(examples, work, task_folder=write_pairs(tmp_path, 7, seed=1))
    assert again != measured
    result, before = result_of(again), result_of(measured)
    key = "minimal_pairs_accuracy"
    assert read_manifest(again).account("minimal pairs").kept == 7
    assert {**result.after, key: None} == {**before.after, key: None}
    assert not any(point.keys() & NAMES for point in result.evaluations)


def test_an_unfinished_run_without_pairs_is_gone_on_with(
    examples: str,
    pairs: Path,
    uninterrupted: str,
    tmp_path: Path,
    around_step: AroundStep,
    caplog: pytest.LogCaptureFixture,
) -> None:
    around_step(tell_to_stop_at(8))
    with pytest.raises(RunAgain):
        train(examples, tmp_path)
    around_step(lambda _: None)
    caplog.set_level("INFO")
    again = train(examples, tmp_path, task_folder=pairs)
    assert "step-00000008" in caplog.text
    assert [point.keys() >= NAMES for point in result_of(again).evaluations] == [False, True]
    for name, weights in weights_of(uninterrupted).items():
        assert torch.equal(weights_of(again)[name], weights), name
