"""A run that is killed, moved and stopped sees every example once, in the same order."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from albert_core import training
from albert_core.contract.manifest import read_manifest
from albert_core.contract.seeds import derive_seed
from albert_core.data import ExampleShards, example_order
from albert_core.preemption import RUN_AGAIN_STATUS
from tests.albert_core.training_runs import (
    MODEL,
    TRAINING,
    make_days,
    run_with_faults,
    weights_of,
    with_settings,
)
from tests.albert_core.training_with_faults import names_of

NUM_KILLS = int(os.environ.get("ALBERT_TEST_KILLS", "50"))
"""Of the slow test."""


@pytest.fixture(scope="module", autouse=True)
def one_tracking_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Making one takes longer than a run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mlflow")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        return make_days(tmp_path_factory.mktemp("days"), seed=0, num_documents=60)


def expected_names(examples: str, num_steps: int, batch_size: int) -> list[list[str]]:
    """Return the names of the examples of each update, in the run's order."""
    shards = ExampleShards(examples, "train")
    seed = derive_seed(TRAINING.seed, "order")
    return [
        names_of(shards.batch(example_order(step * batch_size, batch_size, len(shards), seed)))
        for step in range(num_steps)
    ]


def seen_by_update(folder: Path) -> dict[tuple[int, int], dict[int, list[str]]]:
    """Return the names of what each rank was given, by (update, number of ranks) and rank.

    An update that was done again, because its checkpoint was not yet written, counts once; it must
    have been given the same.
    """
    seen: dict[tuple[int, int], dict[int, list[str]]] = {}
    for path in folder.glob("rank-*.jsonl"):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            ranks = seen.setdefault((line["step"], line["world_size"]), {})
            names = sorted(line["names"])
            assert ranks.setdefault(line["rank"], names) == names, f"update {line['step']}"
    return seen


def assert_each_example_came_once(folder: Path, expected: list[list[str]]) -> None:
    """Check every update that was finished, on any number of ranks, against the run's order."""
    done: set[int] = set()
    for (step, world_size), ranks in seen_by_update(folder).items():
        if len(ranks) == world_size:  # else it was killed before the last rank had its part
            names = Counter(name for part in ranks.values() for name in part)
            assert names == Counter(expected[step]), f"update {step} on {world_size} ranks"
            done.add(step)
    assert done == set(range(len(expected)))


def kill_and_resume(folder: Path, examples: str, num_kills: int, num_steps: int, seed: int) -> str:
    """Train on 1, 2, 1, 2, ... ranks, each killed at a random moment, then to the end on 1."""
    random = Random(seed)
    (folder / "seen").mkdir(parents=True)
    settings = with_settings(
        num_steps=num_steps, checkpoint_steps=2, log_steps=5, evaluation_steps=num_steps
    )
    reached = 0
    for kill in range(num_kills):
        num_ranks = 1 + kill % 2
        # About as far ahead as there are updates left for each of the kills to come.
        step = reached + random.randrange(
            1, 2 + 2 * (num_steps - reached) // (num_kills - kill + 1)
        )
        faults = {
            "bad_rank": random.randrange(num_ranks),
            "kill_step": min(step, num_steps - 1),
            "kill_delay": random.uniform(0.0, 0.05),
            "seen": str(folder / "seen"),
        }
        cut = settings.model_copy(update={"micro_batch_size": random.randrange(1, 5)})
        done = run_with_faults(folder, cut, examples, num_ranks, faults)
        if done.returncode == 0:
            break  # the last update was quicker than the kill
        assert done.returncode == (-9 if num_ranks == 1 else RUN_AGAIN_STATUS), done.stdout
        names = [path.parent.name for path in folder.rglob("checkpoint.json")]
        reached = max((int(name.removeprefix("step-")) for name in names), default=0)
    faults = {"seen": str(folder / "seen")}
    done = run_with_faults(folder, settings, examples, 1, faults)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1].removeprefix("manifest: ")


def check_kills(folder: Path, examples: str, num_kills: int, num_steps: int, seed: int) -> None:
    manifest = kill_and_resume(folder, examples, num_kills, num_steps, seed)
    expected = expected_names(examples, num_steps, TRAINING.batch_size)
    assert_each_example_came_once(folder / "seen", expected)
    account = read_manifest(manifest).account("examples trained on")
    assert account.total == account.kept == num_steps * TRAINING.batch_size
    whole = training.run(
        MODEL,
        with_settings(num_steps=num_steps, evaluation_steps=num_steps),
        examples,
        str(folder / "whole"),
    )
    assert Path(whole).parent.name == Path(manifest).parent.name  # the same key
    torch.testing.assert_close(weights_of(manifest), weights_of(whole), rtol=1e-2, atol=1e-3)


def test_a_run_killed_on_one_rank_and_on_two_sees_each_example_once(
    examples: str, tmp_path: Path
) -> None:
    check_kills(tmp_path, examples, num_kills=2, num_steps=14, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif("ALBERT_TEST_KILLS" not in os.environ, reason="minutes: set ALBERT_TEST_KILLS")
def test_a_run_killed_many_times_sees_each_example_once(examples: str, tmp_path: Path) -> None:
    check_kills(tmp_path, examples, NUM_KILLS, num_steps=4 * NUM_KILLS, seed=2)
