"""A run that is killed, moved and stopped sees every example once, in the same order."""

import json
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch

from albert_core.config import TrainingSettings
from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.manifest import read_manifest
from albert_core.text.seeds import derive_seed
from albert_core.training import pretrain
from albert_core.training.order import example_order
from albert_core.training.shards import ExampleShards
from tests.albert_core.training_runs import (
    MODEL,
    TRAINING,
    run_with_faults,
    weights_of,
    with_settings,
)
from tests.albert_core.training_with_faults import names_of

NUM_KILLS = int(os.environ.get("ALBERT_TEST_KILLS", "50"))
"""Of the long tests: ``ALBERT_TEST_KILLS=50 make test ARGS='-m slow -k resume'``."""


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


def kill_and_resume(
    folder: Path, examples: str, settings: TrainingSettings, num_kills: int, moves: bool
) -> str:
    """Train with a kill at a random moment, again and again, then to the end; return the manifest.

    Args:
        folder: of the test.
        examples: manifest.
        settings: of the run.
        num_kills: how many.
        moves: whether it goes from 2 ranks to 1 and back, and to other micro-batches.
    """
    random = Random(num_kills)
    (folder / "seen").mkdir(parents=True)
    num_steps, reached = settings.num_steps, 0
    for kill in range(num_kills):
        num_ranks = 2 - kill % 2 if moves else 1
        # About as far ahead as there are updates left for each of the kills to come.
        ahead = random.randrange(1, 2 + 2 * (num_steps - reached) // (num_kills - kill + 1))
        faults = {
            "bad_rank": random.randrange(num_ranks),
            "kill_step": min(reached + ahead, num_steps - 1),
            "kill_delay": random.uniform(0.0, 0.05),
            "seen": str(folder / "seen"),
        }
        size = random.randrange(1, 5) if moves else settings.micro_batch_size
        cut = settings.model_copy(update={"micro_batch_size": size})
        done = run_with_faults(folder, cut, examples, num_ranks, faults)
        assert done.returncode == (-9 if num_ranks == 1 else RUN_AGAIN_STATUS), done.stdout
        if num_ranks > 1:
            assert f"rank {faults['bad_rank']} was killed by signal 9" in done.stdout
        names = [path.parent.name for path in folder.rglob("checkpoint.json")]
        reached = max((int(name.removeprefix("step-")) for name in names), default=0)
    faults = {"seen": str(folder / "seen")}
    done = run_with_faults(folder, settings, examples, 1, faults)
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = done.stdout.strip().splitlines()[-1].removeprefix("manifest: ")
    expected = expected_names(examples, num_steps, settings.batch_size)
    assert_each_example_came_once(folder / "seen", expected)
    account = read_manifest(manifest).account("examples trained on")
    assert account.total == account.kept == num_steps * settings.batch_size
    return manifest


def settings_of(num_steps: int) -> TrainingSettings:
    """Return settings with many checkpoints and one evaluation."""
    return with_settings(
        num_steps=num_steps, checkpoint_steps=2, log_steps=5, evaluation_steps=num_steps
    )


def test_a_run_killed_on_two_ranks_and_resumed_on_one_sees_each_example_once(
    examples: str, tmp_path: Path
) -> None:
    manifest = kill_and_resume(tmp_path, examples, settings_of(14), num_kills=1, moves=True)
    whole = pretrain.run(MODEL, settings_of(14), examples, str(tmp_path / "whole"))
    assert Path(whole).parent.name == Path(manifest).parent.name  # the same key
    torch.testing.assert_close(weights_of(manifest), weights_of(whole), rtol=1e-2, atol=1e-3)


many_kills = pytest.mark.skipif(
    "ALBERT_TEST_KILLS" not in os.environ, reason="many minutes: set ALBERT_TEST_KILLS=50"
)


@many_kills
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_and_moved_many_times_sees_each_example_once(
    examples: str, tmp_path: Path
) -> None:
    """Its weights are another run's: over so many updates rounding grows to other weights."""
    kill_and_resume(tmp_path, examples, settings_of(4 * NUM_KILLS), NUM_KILLS, moves=True)


@many_kills
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_many_times_where_it_is_has_the_same_bits(
    examples: str, tmp_path: Path
) -> None:
    settings = settings_of(NUM_KILLS)
    manifest = kill_and_resume(tmp_path, examples, settings, NUM_KILLS // 4, moves=False)
    whole = pretrain.run(MODEL, settings, examples, str(tmp_path / "whole"))
    torch.testing.assert_close(weights_of(manifest), weights_of(whole), rtol=0, atol=0)
    assert read_manifest(manifest).content == read_manifest(whole).content
