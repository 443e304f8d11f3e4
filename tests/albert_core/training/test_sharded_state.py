"""State that is cut over two ranks (gloo) gives what whole state gives, and goes back and forth."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.manifest import read_manifest
from tests.albert_core.one_update import updates_of
from tests.albert_core.training_runs import (
    MODEL,
    run_with_faults,
    weights_of,
    with_settings,
)

pytestmark = pytest.mark.slow
SHARDED = with_settings(shard_state=True)


def cases(*shard: bool) -> list[dict[str, Any]]:
    return [{"optimizer": name, "shard": cut} for cut in shard for name in ("lamb", "adamw")]


def test_two_ranks_do_the_updates_of_one_process_with_and_without_sharding(
    examples: str, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    updates_of(0, [[[0, 1, 2, 3, 4, 5, 6, 7]]], examples, MODEL, str(one), cases(False))
    parts = [[[0, 1, 2], [3], [4]], [[5], [6], [7]]]
    spawn(updates_of, (parts, examples, MODEL, str(two), cases(False, True)), nprocs=2)
    expected, found = (torch.load(folder / "after.pt") for folder in (one, two))
    for (weights, metrics), (found_weights, found_metrics) in zip(expected * 2, found, strict=True):
        torch.testing.assert_close(found_weights, weights, rtol=1e-11, atol=1e-11)
        assert found_metrics == pytest.approx(metrics, rel=1e-5)  # sums of float32


def test_a_run_goes_from_sharded_ranks_one_of_which_is_killed_to_one_rank_and_back(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    for num_ranks, faults, status in (
        (2, {"bad_rank": 1, "kill_step": 6}, RUN_AGAIN_STATUS),
        (1, {"stop_step": 8}, RUN_AGAIN_STATUS),
        (2, {}, 0),
    ):
        done = run_with_faults(tmp_path, SHARDED, examples, num_ranks, faults)
        assert done.returncode == status, done.stdout + done.stderr
        assert list(tmp_path.rglob("checkpoint.json"))
    (path,) = (tmp_path / "work" / "pretraining").glob("*/manifest.json")
    assert path.parent.name == Path(uninterrupted).parent.name  # the same key
    torch.testing.assert_close(
        weights_of(str(path)), weights_of(uninterrupted), rtol=1e-2, atol=1e-3
    )
    one, two = read_manifest(uninterrupted).facts, read_manifest(str(path)).facts
    assert two["num_parameters"] == one["num_parameters"]
    for when in ("before", "after"):
        for name, score in one[when].items():
            assert two[when][name]["value"] == pytest.approx(score["value"], abs=0.01)
