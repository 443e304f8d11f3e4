"""A run that is killed, moved and stopped sees every example once, in the same order."""

import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from albert_core.checkpoint import load_newest
from albert_core.config import TrainingSettings
from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import PretrainingResult
from albert_core.text.seeds import derive_seed
from albert_core.training import pretrain, pretraining
from albert_core.training.order import example_order
from albert_core.training.shards import ExampleShards
from tests.albert_core import training_runs as runs
from tests.albert_core.training_with_faults import names_of, step_with

NUM_KILLS = int(os.environ.get("ALBERT_TEST_KILLS", "50"))


def expected_names(examples: str, num_steps: int, batch_size: int) -> list[Counter[str]]:
    """Return the names of the examples of each update, in the run's order."""
    shards, seed = ExampleShards(examples, "train"), derive_seed(runs.TRAINING.seed, "order")
    order = example_order(0, num_steps * batch_size, len(shards), seed)
    updates = order.reshape(num_steps, batch_size)
    return [Counter(names_of(shards.rows(numbers).batch())) for numbers in updates]


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


def assert_each_example_came_once(folder: Path, expected: list[Counter[str]]) -> None:
    """Check every update that was finished, on any number of ranks, against the run's order."""
    done: set[int] = set()
    for (step, world_size), ranks in seen_by_update(folder).items():
        if len(ranks) == world_size:  # else it was killed before the last rank had its part
            names = Counter(name for part in ranks.values() for name in part)
            assert names == expected[step], f"update {step} on {world_size} ranks"
            done.add(step)
    assert done == set(range(len(expected)))


@pytest.mark.slow
def test_a_run_killed_on_two_ranks_stopped_on_two_and_finished_on_one_is_the_run_itself(
    examples: str, uninterrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first two ranks its state is whole; on the others it is sharded, and one is told.

    On two ranks the first one's clock has both save and measure after each update.
    """
    (tmp_path / "seen").mkdir()
    faults: dict[str, Any] = {"seen": str(tmp_path / "seen")}
    killed = faults | {"bad_rank": 1, "kill_step": 6}
    by_clock: dict[str, Any] = {"checkpoint_minutes": 1e-9, "evaluation_minutes": 1e-9}
    settings = runs.with_settings(micro_batch_size=2, **by_clock)
    done = runs.run_with_faults(tmp_path, settings, examples, 2, killed)
    assert done.returncode == RUN_AGAIN_STATUS, done.stdout + done.stderr
    assert "rank 1 was killed by SIGKILL, perhaps by the kernel as memory ran" in done.stdout
    settings = runs.with_settings(micro_batch_size=1, shard_state=True, **by_clock)
    done = runs.run_with_faults(
        tmp_path, settings, examples, 2, faults | {"bad_rank": 1, "stop_step": 8}
    )
    assert done.returncode == RUN_AGAIN_STATUS, done.stdout + done.stderr
    assert "told to stop: step 8 is done and saved" in done.stdout
    monkeypatch.setattr(pretraining, "train_step", step_with(faults))
    pretrain.run(runs.MODEL, runs.TRAINING, examples, str(tmp_path / "work"))
    assert_each_example_came_once(tmp_path / "seen", expected_names(examples, 12, 8))

    (path,) = (tmp_path / "work" / "pretraining").glob("*/manifest.json")
    assert path.parent.name == Path(uninterrupted).parent.name  # the same key
    close: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-3}
    torch.testing.assert_close(runs.weights_of(str(path)), runs.weights_of(uninterrupted), **close)
    states = [load_newest(f"{Path(uri).parent}/checkpoints") for uri in (path, uninterrupted)]
    found, expected = (state and state[0] for state in states)
    torch.testing.assert_close(found, expected, **close)
    one, two = (
        read_manifest(str(uri)).result_as(PretrainingResult) for uri in (uninterrupted, path)
    )
    assert two.num_parameters == one.num_parameters
    for ours, theirs in ((one.before, two.before), (one.after, two.after)):
        values = {name: score.value for name, score in ours.items()}
        assert {name: score.value for name, score in theirs.items()} == pytest.approx(
            values, abs=0.01
        )


def test_the_clock_saves_and_measures_a_run_and_changes_nothing_else(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    at_each_update: dict[str, Any] = {"checkpoint_minutes": 1e-9, "evaluation_minutes": 1e-9}
    found = runs.train(examples, tmp_path, **at_each_update, keep_checkpoints=20)
    assert Path(found).parent.name == Path(uninterrupted).parent.name  # the same key
    assert runs.content_of(found) == runs.content_of(uninterrupted)
    assert len(list(tmp_path.rglob("checkpoint.json"))) == runs.TRAINING.num_steps
    steps = [point["step"] for point in runs.result_of(found).evaluations]
    assert steps == list(range(1, runs.TRAINING.num_steps + 1))


many_kills = pytest.mark.skipif(
    "ALBERT_TEST_KILLS" not in os.environ, reason="many minutes: set ALBERT_TEST_KILLS=50"
)


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
        done = runs.run_with_faults(folder, cut, examples, num_ranks, faults)
        assert done.returncode == (-9 if num_ranks == 1 else RUN_AGAIN_STATUS), done.stdout
        if num_ranks > 1:
            assert f"rank {faults['bad_rank']} was killed by SIGKILL" in done.stdout
        names = [path.parent.name for path in folder.rglob("checkpoint.json")]
        reached = max((int(name.removeprefix("step-")) for name in names), default=0)
    done = runs.run_with_faults(folder, settings, examples, 1, {"seen": str(folder / "seen")})
    assert done.returncode == 0, done.stdout + done.stderr
    expected = expected_names(examples, num_steps, settings.batch_size)
    assert_each_example_came_once(folder / "seen", expected)
    manifest = done.stdout.strip().splitlines()[-1].removeprefix("manifest: ")
    account = read_manifest(manifest).account("examples trained on")
    assert account.total == account.kept == num_steps * settings.batch_size
    return manifest


def settings_of(num_steps: int) -> TrainingSettings:
    """Return settings with many checkpoints and one evaluation."""
    return runs.with_settings(
        num_steps=num_steps, checkpoint_steps=2, log_steps=5, evaluation_steps=num_steps
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
    growing: dict[str, Any] = {"shallow_share": 0.6, "initial_weights": "counts"}
    settings = settings_of(NUM_KILLS).model_copy(
        update=growing | {"optimizer": "muon", "schedule": "constant"}
    )
    manifest = kill_and_resume(tmp_path, examples, settings, NUM_KILLS // 4, moves=False)
    whole = pretrain.run(runs.MODEL, settings, examples, str(tmp_path / "whole"))
    torch.testing.assert_close(runs.weights_of(manifest), runs.weights_of(whole), rtol=0, atol=0)
    assert read_manifest(manifest).content == read_manifest(whole).content
