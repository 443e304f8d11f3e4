"""What becomes of a run when something goes wrong: planted faults, one each."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_core import checkpoint
from albert_core.checkpoint import RECORD, STATE
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.errors import ConfigError, TrainingError
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.training import pretrain, pretraining
from albert_core.training.held_out import evaluate
from albert_core.training.preemption import RunAgain
from albert_core.training.step import NUM_NORMS, TrainState, Update, UpdateGuard, train_step
from pipelines import make_examples
from pipelines.config import ExampleSettings
from tests.albert_core.training.conftest import AroundStep
from tests.albert_core.training_runs import (
    MODEL,
    TRAINING,
    run_with_faults,
    weights_of,
    with_settings,
)


def spoil_gradient(state: TrainState, factor: float) -> None:
    """Multiply a gradient of the next update by ``factor``."""
    weight = state.model.encoder.pooler.weight
    planted = weight.register_hook(lambda gradient: gradient * factor)
    weight.register_post_accumulate_grad_hook(lambda _: planted.remove())


def steps_kept(work: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in work.rglob(RECORD))


# Updates that are not worth making


def test_an_update_that_is_not_finite_is_skipped_and_the_data_goes_on(
    examples: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    around_step: AroundStep,
) -> None:
    weights: dict[int, torch.Tensor] = {}

    def before(state: TrainState) -> None:
        weights[state.step] = state.model.encoder.pooler.weight.detach().clone()
        if state.step in (5, 6):
            spoil_gradient(state, float("nan"))

    around_step(before)
    manifest = read_manifest(pretrain.run(MODEL, TRAINING, examples, str(tmp_path)))
    assert torch.equal(weights[5], weights[6])
    assert torch.equal(weights[5], weights[7])
    assert not torch.equal(weights[7], weights[8])
    assert manifest.facts["skipped_steps"] == {"not_finite": 2, "spike": 0}
    account = manifest.account("examples trained on")
    assert (account.total, account.dropped) == (12 * 8, {"skipped_update": 2 * 8})
    assert "step 6 was skipped (not finite): gradient norm nan" in caplog.text
    points = [json.loads(line) for line in metrics_of(tmp_path).splitlines()]
    assert [point["skipped_steps"] for point in points] == [0, 2, 2]
    assert all(point["masked_lm_loss"] > 0 for point in points)


def metrics_of(work: Path) -> str:
    (path,) = work.rglob("metrics.jsonl")
    return path.read_text()


def test_too_many_skipped_updates_in_a_row_end_the_run_and_leave_its_checkpoint(
    examples: str,
    tmp_path: Path,
    around_step: AroundStep,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: str,
) -> None:
    def before(state: TrainState) -> None:
        if state.step >= 5:
            spoil_gradient(state, float("inf"))

    around_step(before)
    settings = with_settings(max_skipped_steps=3, checkpoint_steps=5)
    with pytest.raises(
        TrainingError, match=r"4 updates in a row were skipped by step 9, but .* is 3: .* norm inf"
    ):
        pretrain.run(MODEL, settings, examples, str(tmp_path))
    assert steps_kept(tmp_path) == [5]
    monkeypatch.setattr(pretraining, "train_step", train_step)
    mended = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert read_manifest(mended).content == read_manifest(uninterrupted).content


def test_a_spike_is_what_exceeds_the_running_median_so_many_times() -> None:
    guard = UpdateGuard()
    for number in range(NUM_NORMS - 1):
        assert guard.judge(1.0, 1.0 + number % 2, spike_factor=2.0) is None
    assert guard.judge(1.0, 50.0, spike_factor=2.0) is None  # too early to tell
    assert guard.judge(1.0, 3.1, spike_factor=2.0) == guard.judge(1.0, 40, 2.0) == "spike"
    assert (guard.num_in_a_row, guard.num_skipped) == (2, {"not_finite": 0, "spike": 2})
    assert guard.judge(1.0, 3.0, spike_factor=2.0) is None
    assert guard.judge(1.0, 1e9, spike_factor=None) is None
    assert (guard.num_in_a_row, len(guard.norms)) == (0, NUM_NORMS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_or_norm_that_is_not_finite_is_never_taken(bad: float) -> None:
    guard = UpdateGuard()
    assert guard.judge(bad, 1.0, None) == guard.judge(1.0, bad, None) == "not_finite"
    assert guard.norms == []


def test_a_resumed_run_skips_the_same_spikes(
    examples: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    around_step: AroundStep,
) -> None:
    monkeypatch.setattr("albert_core.training.step.NUM_NORMS", 4)
    settings = with_settings(spike_factor=5.0)

    def spikes(state: TrainState) -> None:
        if state.step in (2, 9):
            spoil_gradient(state, 1e4)

    around_step(spikes)
    whole = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path / "whole")))
    assert whole.facts["skipped_steps"] == {"not_finite": 0, "spike": 1}  # 2 was too early

    def spikes_and_stop(state: TrainState) -> None:
        spikes(state)
        if state.step == 7 and steps_kept(tmp_path / "stopped")[-1:] != [8]:
            signal.raise_signal(signal.SIGTERM)

    around_step(spikes_and_stop)
    with pytest.raises(RunAgain):
        pretrain.run(MODEL, settings, examples, str(tmp_path / "stopped"))
    resumed = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path / "stopped")))
    assert resumed.content == whole.content


# SIGTERM


@pytest.mark.parametrize("step", [0, 5])
def test_a_run_told_to_stop_saves_its_update_and_goes_on_as_if_never_stopped(
    step: int,
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    around_step: AroundStep,
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def tell(state: TrainState) -> None:
        if state.step == step:
            signal.raise_signal(signal.SIGTERM)

    around_step(tell)
    with pytest.raises(RunAgain) as ending:
        pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert ending.value.code == RUN_AGAIN_STATUS == 75
    assert steps_kept(tmp_path)[-1] == step + 1
    assert f"told to stop: step {step + 1} is done and saved" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.setattr(pretraining, "train_step", train_step)
    resumed = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert read_manifest(resumed).content == read_manifest(uninterrupted).content


# Checkpoints


def test_a_full_disk_ends_the_run_and_leaves_the_older_checkpoints(
    examples: str, uninterrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = torch.save

    class FullFile:
        """A file that has room for no more than its first bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, content: bytes) -> int:
            if self.file.tell() > 10_000:
                raise OSError(28, "No space left on device")
            return int(self.file.write(content))

        def flush(self) -> None:
            self.file.flush()

    def full(state: Any, file: Any) -> None:
        shown: Any = FullFile(file) if steps_kept(tmp_path) == [4, 6] else file
        write(state, shown)

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(
        TrainingError,
        match=r"step 8 could not be written .*: OSError: .* No space left on device\. "
        r"The 2 older ones .* newest is .*step-00000006\. Make room",
    ):
        pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert steps_kept(tmp_path) == [4, 6]
    assert not list(tmp_path.rglob("step-00000008"))
    monkeypatch.setattr("torch.save", write)
    resumed = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert read_manifest(resumed).content == read_manifest(uninterrupted).content


def test_a_truncated_newest_checkpoint_is_passed_over_for_the_one_before(
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    around_step: AroundStep,
) -> None:
    def stop(state: TrainState) -> None:
        if state.step == 8:
            signal.raise_signal(signal.SIGTERM)

    around_step(stop)
    with pytest.raises(RunAgain):
        pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    (path,) = tmp_path.rglob(f"step-00000009/{STATE}")
    path.write_bytes(path.read_bytes()[:1000])
    monkeypatch.setattr(pretraining, "train_step", train_step)
    caplog.set_level("INFO")
    resumed = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert f"passing over {path.parent}: " in caplog.text
    assert f"resuming from {path.parent.with_name('step-00000008')}" in caplog.text
    assert read_manifest(resumed).content == read_manifest(uninterrupted).content


def test_the_best_checkpoint_outlives_the_last_ones(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([9.0, 5.0, 3.0, 4.0, 4.5, 4.2, 4.1])  # before, then at 2, 4, ... 12

    def made(*arguments: Any) -> Any:
        scores = evaluate(*arguments)
        loss = scores["masked_lm_loss"].model_copy(update={"value": next(losses)})
        return scores | {"masked_lm_loss": loss}

    monkeypatch.setattr(pretraining, "evaluate", made)
    settings = with_settings(evaluation_steps=2, checkpoint_steps=3, keep_checkpoints=2)
    manifest = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path)))
    assert steps_kept(tmp_path) == [4, 9, 12]
    best = checkpoint.best_checkpoint(str(next(tmp_path.rglob("checkpoints"))))
    assert best is not None
    assert best[1]["step"] == 4
    assert [point["step"] for point in manifest.facts["evaluations"]] == [2, 4, 6, 8, 10, 12]


# Other examples, other settings


@pytest.fixture(scope="module")
def other_examples(examples: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The examples, drawn with another seed: other pairs and masks, the same vocabulary."""
    manifest = read_manifest(examples)
    settings = ExampleSettings(**manifest.settings | {"seed": 99})
    corpus, vocab = (manifest.input_manifests[name] for name in ("corpus", "vocab"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        return make_examples.run(settings, corpus, vocab, str(tmp_path_factory.mktemp("other")))


def continued(uri: str, **values: Any) -> TrainingSettings:
    return with_settings(continue_from=uri, num_steps=16, **values)


def test_other_examples_are_refused_unless_they_are_accepted(
    examples: str, other_examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    settings = continued(uninterrupted)
    with pytest.raises(TrainingError, match=r"set\s+training.accept_other_examples = true"):
        pretrain.run(MODEL, settings, other_examples, str(tmp_path))
    settings = continued(uninterrupted, accept_other_examples=True)
    manifest = read_manifest(pretrain.run(MODEL, settings, other_examples, str(tmp_path)))
    assert manifest.facts["step"] == 16
    assert manifest.account("examples trained on").total == 4 * 8


def test_dropout_is_removed_in_mid_run(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the paper did after a million steps: section 4.8, Figure 2b."""
    seen: list[tuple[int, int]] = []
    first_norms: list[float] = []

    def watch(state: TrainState, *rest: Any) -> Update:
        seen.append((state.step, state.examples_taken))
        if state.step == 12:
            moments = next(iter(state.optimizer.state.values()))
            first_norms.append(float(moments["mean"].norm()))
        return train_step(state, *rest)

    monkeypatch.setattr(pretraining, "train_step", watch)
    with_dropout = MODEL.model_copy(
        update={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    )
    first = pretrain.run(with_dropout, TRAINING, examples, str(tmp_path))
    second = pretrain.run(MODEL, continued(first), examples, str(tmp_path))
    assert seen == [(step, step * 8) for step in range(16)]
    assert first_norms[0] > 0
    manifest = read_manifest(second)
    assert manifest.inputs["continue_from"]
    assert manifest.input_manifests["pretraining"] == first
    assert manifest.facts["settings"]["model"]["hidden_dropout_prob"] == 0
    again = pretrain.run(MODEL, continued(first), examples, str(tmp_path))
    assert again == second
    assert len(seen) == 16


def test_a_run_continued_with_nothing_changed_is_the_run_itself(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    """But for the schedule, which knows how long the run is."""
    settings = with_settings(schedule="linear", warmup_steps=11, evaluation_steps=20)
    half = pretrain.run(
        MODEL, settings.model_copy(update={"num_steps": 12}), examples, str(tmp_path / "half")
    )
    whole = pretrain.run(
        MODEL, settings.model_copy(update={"num_steps": 13}), examples, str(tmp_path)
    )
    (at_eleven,) = (Path(half).parent / "checkpoints").glob("step-00000008")
    rest = settings.model_copy(update={"num_steps": 13, "continue_from": str(at_eleven)})
    continued_run = pretrain.run(MODEL, rest, examples, str(tmp_path))
    assert continued_run != whole
    torch.testing.assert_close(weights_of(continued_run), weights_of(whole), rtol=0, atol=0)


def test_a_run_starts_from_the_weights_of_a_model(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    settings = with_settings(initial_model=str(Path(uninterrupted).parent / "model"))
    manifest = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path)))
    after = read_manifest(uninterrupted).facts["after"]["masked_lm_loss"]["value"]
    assert manifest.facts["before"]["masked_lm_loss"]["value"] == pytest.approx(after)
    assert manifest.inputs["initial_model"]
    assert manifest.account("examples trained on").total == 12 * 8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_steps": 12}, r"is at step 12, but training.num_steps, .* is 12: there is nothing"),
        ({"num_steps": 16, "seed": 1}, "the examples' order would change in mid-epoch"),
    ],
)
def test_a_run_cannot_be_continued_to_where_it_is_nor_with_another_order(
    values: dict[str, Any], message: str, examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    settings = with_settings(continue_from=uninterrupted, **values)
    with pytest.raises(ConfigError, match=message):
        pretrain.run(MODEL, settings, examples, str(tmp_path))


def test_where_there_is_no_checkpoint_there_is_nothing_to_continue(
    examples: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"there is no good checkpoint at .*nowhere"):
        pretrain.run(MODEL, continued(str(tmp_path / "nowhere")), examples, str(tmp_path))


WITH_DROPOUT = MODEL.model_copy(update={"hidden_dropout_prob": 0.1})


def key_of(model: ModelSettings, settings: TrainingSettings, examples: str, work: Path) -> str:
    """Return the key of a run that is not made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagePlan, "find", lambda plan, _work: plan.key)
        return pretrain.run(model, settings, examples, str(work))


@pytest.mark.parametrize("model", [MODEL, WITH_DROPOUT], ids=["without", "with dropout"])
def test_with_dropout_another_cut_into_ranks_and_micro_batches_is_another_run(
    model: ModelSettings, examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = key_of(model, TRAINING, examples, tmp_path)
    smaller = key_of(model, with_settings(micro_batch_size=2), examples, tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    two_ranks = key_of(model, TRAINING, examples, tmp_path)
    assert len({one, smaller, two_ranks}) == (1 if model is MODEL else 3)


def test_a_finished_run_is_measured_on_other_examples_without_training_it_again(
    examples: str, uninterrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_step(*_: Any) -> None:
        raise AssertionError("an update was made")

    monkeypatch.setattr(pretraining, "train_step", train_step)
    work = str(Path(uninterrupted).parents[2])
    again = pretrain.run(MODEL, with_settings(max_evaluation_examples=4), examples, work)
    assert again != uninterrupted
    for name, weights in weights_of(uninterrupted).items():
        assert torch.equal(weights_of(again)[name], weights), name
    before, after = read_manifest(uninterrupted).facts, read_manifest(again).facts
    assert after["after"] != before["after"]
    untrained = [Path(uri).with_name("before.json").read_text() for uri in (uninterrupted, again)]
    assert untrained[0] != untrained[1]


def test_settings_that_do_not_change_the_result_do_not_make_another_run(
    examples: str, uninterrupted: str
) -> None:
    other = {
        "micro_batch_size": 1,
        "activation_checkpointing": True,
        "compile": True,
        "shard_state": True,
        "log_steps": 1,
        "evaluation_steps": 1,
        "checkpoint_steps": 1,
        "keep_checkpoints": 1,
        "max_skipped_steps": 0,
        "accept_other_examples": True,
        "system_metrics": True,
    }
    assert other.keys() == TrainingSettings.HOW_NOT_WHAT
    work = str(Path(uninterrupted).parents[2])
    assert pretrain.run(MODEL, with_settings(**other), examples, work) == uninterrupted


# Ranks; of one that dies tells `test_resume`


@pytest.mark.slow
def test_what_befalls_one_rank_all_do_together(examples: str, tmp_path: Path) -> None:
    """A gradient that is NaN on one is skipped on both; one that is told to stop stops both."""
    faults = {"bad_rank": 1, "bad_steps": [2], "stop_step": 4}
    done = run_with_faults(tmp_path, TRAINING, examples, num_ranks=2, faults=faults)
    assert done.returncode == RUN_AGAIN_STATUS, done.stdout + done.stderr
    assert "step 3 was skipped (not finite): gradient norm nan" in done.stdout
    assert "told to stop: step 5 is done and saved" in done.stdout
    assert steps_kept(tmp_path) == [4, 5]
    resumed = read_manifest(pretrain.run(MODEL, TRAINING, examples, str(tmp_path / "work")))
    assert resumed.facts["skipped_steps"] == {"not_finite": 1, "spike": 0}
    account = resumed.account("examples trained on")
    assert (account.total, account.kept) == (12 * 8, 11 * 8)
