"""State that is cut over two ranks (gloo) gives what whole state gives, and goes back and forth."""

from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from albert_core.stage.manifest import read_manifest
from albert_core.training import pretrain
from tests.albert_core.one_update import update_of
from tests.albert_core.training_runs import (
    MODEL,
    TRAINING,
    make_days,
    run_with_faults,
    weights_of,
    with_settings,
)

pytestmark = pytest.mark.slow
SHARDED = with_settings(shard_state=True)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_days(tmp_path_factory.mktemp("days"), seed=0, num_documents=60)


def after_updates(
    folder: Path, examples: str, parts: list[list[list[int]]], **options: object
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return weights and metrics after updates in float64 whose micro-batches are ``parts``."""
    folder.mkdir()
    arguments = (parts, examples, MODEL, str(folder), options)
    if len(parts) == 1:
        update_of(0, *arguments)
    else:
        spawn(update_of, arguments, nprocs=len(parts))
    found: tuple[dict[str, torch.Tensor], list[float]] = torch.load(folder / "after.pt")
    return found


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_sharded_ranks_do_the_updates_of_one_process_and_of_unsharded_ranks(
    optimizer: str, examples: str, tmp_path: Path
) -> None:
    # Clipped hard, so that the norm of the whole gradient counts.
    options = {"optimizer": optimizer, "num_updates": 3, "max_grad_norm": 0.1}
    parts = [[[0, 1, 2], [3], [4]], [[5], [6], [7]]]
    one = after_updates(tmp_path / "one", examples, [[[0, 1, 2, 3, 4, 5, 6, 7]]], **options)
    two = after_updates(tmp_path / "two", examples, parts, **options)
    cut = after_updates(tmp_path / "cut", examples, parts, shard=True, **options)
    for weights, metrics in (two, cut):
        torch.testing.assert_close(weights, one[0], rtol=1e-11, atol=1e-11)
        assert metrics == pytest.approx(one[1], rel=1e-5)  # sums of float32


def test_a_run_goes_from_sharded_ranks_to_one_and_back(examples: str, tmp_path: Path) -> None:
    for stop_step, num_ranks in ((3, 2), (7, 1), (None, 2)):
        faults = {} if stop_step is None else {"stop_step": stop_step}
        done = run_with_faults(tmp_path, SHARDED, examples, num_ranks, faults)
        assert done.returncode == (0 if stop_step is None else 75), done.stdout + done.stderr
    (path,) = (tmp_path / "work" / "pretraining").glob("*/manifest.json")
    whole = pretrain.run(MODEL, TRAINING, examples, str(tmp_path / "whole"))
    assert path.parent.name == Path(whole).parent.name  # the same key
    torch.testing.assert_close(weights_of(str(path)), weights_of(whole), rtol=1e-2, atol=1e-3)
    one, two = read_manifest(whole).facts, read_manifest(str(path)).facts
    assert two["num_parameters"] == one["num_parameters"]
    for when in ("before", "after"):
        for name, score in one[when].items():
            assert two[when][name]["value"] == pytest.approx(score["value"], abs=0.01)


def test_when_a_sharded_rank_is_killed_the_others_leave_to_run_again(
    examples: str, tmp_path: Path
) -> None:
    faults = {"bad_rank": 1, "kill_step": 6}
    done = run_with_faults(tmp_path, SHARDED, examples, 2, faults)
    assert done.returncode == 75, done.stdout + done.stderr
    assert run_with_faults(tmp_path, SHARDED, examples, 2).returncode == 0
