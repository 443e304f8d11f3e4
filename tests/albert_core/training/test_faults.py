"""What becomes of a run when something goes wrong, or when it continues another one.

`test_resume` is about killed processes, and `test_ranks` about faults of one rank among several.
"""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertForMaskedLM

from albert_core import checkpoint
from albert_core.checkpoint import RECORD, STATE, best_checkpoint, read_record
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.initial_weights import read_source
from albert_core.stage.command import RUN_AGAIN_STATUS, RunAgain
from albert_core.stage.errors import ConfigError, TrainingError
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.results import Estimate
from albert_core.training import cooccurrence, held_out, pretrain, run_log
from albert_core.training import optimizer as optimizers
from albert_core.training.batches import BatchShape
from albert_core.training.held_out import evaluate
from albert_core.training.ranks import MACHINES, Ranks
from albert_core.training.shards import ExampleShards
from albert_core.training.step import TrainState
from pipelines import config, train_vocab
from tests.albert_core import training_runs as runs
from tests.albert_core.training.conftest import AroundStep, tell_to_stop_at


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the curves of these runs: `test_pretrain` and `test_run_log` draw some."""
    monkeypatch.setattr(run_log, "draw_curves", lambda *_: b"")


def spoil_gradient(state: TrainState, factor: float) -> None:
    """Multiply a gradient of the next update by ``factor``."""
    weight = state.model.encoder.pooler.weight
    planted = weight.register_hook(lambda gradient: gradient * factor)
    weight.register_post_accumulate_grad_hook(lambda _: planted.remove())


def steps_kept(work: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in work.rglob(RECORD))


# Updates that are not worth making


def test_an_update_that_is_not_finite_is_skipped_and_the_data_goes_on(
    examples: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, around_step: AroundStep
) -> None:
    weights: dict[int, torch.Tensor] = {}

    def before(state: TrainState) -> None:
        weights[state.step] = state.model.encoder.pooler.weight.detach().clone()
        if state.step in (5, 6):
            spoil_gradient(state, float("nan"))

    around_step(before)
    uri = runs.train(examples, tmp_path)
    assert torch.equal(weights[5], weights[6])
    assert torch.equal(weights[5], weights[7])
    assert not torch.equal(weights[7], weights[8])
    assert runs.result_of(uri).skipped_steps == {"not_finite": 2}
    account = read_manifest(uri).account("examples trained on")
    assert (account.total, account.dropped) == (12 * 8, {"skipped_update": 2 * 8})
    assert "step 6 was skipped (not finite): gradient norm nan" in caplog.text
    lines = Path(uri).with_name("metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    assert [point["skipped_steps"] for point in points] == [0, 2, 2]
    assert all(point["masked_lm_loss"] > 0 for point in points)


def test_a_device_that_goes_on_by_itself_makes_the_run_of_one_that_is_waited_for(
    examples: str, tmp_path: Path, around_step: AroundStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an update that is not due for anything, the outcome is read after the next is begun."""
    order: list[int] = []

    def before(state: TrainState) -> None:
        order.append(state.step + 1)
        if state.step in (5, 6, 8):
            spoil_gradient(state, float("nan"))

    def on_its_way(_: Ranks, tensor: torch.Tensor) -> Callable[[], list[float]]:
        step = order[-1]

        def read() -> list[float]:
            order.append(-step)
            return tensor.tolist()

        return read

    around_step(before)
    monkeypatch.setattr(Ranks, "on_its_way", on_its_way)
    contents = []
    for goes_on in (False, True):
        monkeypatch.setattr(Ranks, "runs_ahead", goes_on)
        order.clear()
        contents.append(runs.content_of(runs.train(examples, tmp_path / str(goes_on))))
    assert order[:12] == [1, 2, -1, 3, -2, 4, -3, -4, 5, 6, -5, -6]  # 4 and 6 are due
    assert order[12:] == [7, 8, -7, -8, 9, 10, -9, 11, -10, 12, -11, -12]
    assert contents[1] == contents[0]


def test_too_many_skipped_updates_in_a_row_end_the_run_and_leave_its_checkpoint(
    examples: str, tmp_path: Path, around_step: AroundStep, uninterrupted: str
) -> None:
    def before(state: TrainState) -> None:
        if state.step >= 5:
            spoil_gradient(state, float("inf"))

    around_step(before)
    with pytest.raises(
        TrainingError, match=r"4 updates in a row were skipped by step 9, but .* is 3: .* norm inf"
    ):
        runs.train(examples, tmp_path, max_skipped_steps=3, checkpoint_steps=5)
    assert steps_kept(tmp_path) == [5]
    around_step(lambda _: None)
    assert runs.content_of(runs.train(examples, tmp_path)) == runs.content_of(uninterrupted)


def test_an_evaluation_amid_skipped_updates_does_not_keep_a_later_one_from_being_the_best(
    examples: str, tmp_path: Path, around_step: AroundStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(state: TrainState) -> None:
        if state.step == 3:
            spoil_gradient(state, float("nan"))

    def measured(*_: Any) -> held_out.Evaluation:
        return {"masked_lm_loss": Estimate(value=next(losses), low=None, high=None)}

    around_step(before)
    losses = iter((6.0, 4.0, 5.0, 5.5))  # before, and after step 4, 8 and 12
    monkeypatch.setattr(held_out, "evaluate", measured)
    every: dict[str, Any] = {"evaluation_steps": 4, "checkpoint_steps": 100}
    uri = runs.train(examples, tmp_path, keep_checkpoints=2, **every)
    best = best_checkpoint(f"{Path(uri).parent}/checkpoints")
    assert best is not None
    assert best[0] == 5.0


# Runs that end early


@pytest.mark.parametrize(
    ("step", "is_truncated"),
    [(0, False), (5, False), (9, True)],
    ids=["newest checkpoint", "a later one", "newest but one, as that and a list are truncated"],
)
def test_a_run_told_to_stop_amid_an_update_saves_what_was_before_and_goes_on_as_if_never_stopped(
    step: int,
    is_truncated: bool,
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    around_step: AroundStep,
) -> None:
    caplog.set_level("INFO")
    before = signal.getsignal(signal.SIGTERM)
    around_step(tell_to_stop_at(step))
    with pytest.raises(RunAgain) as ending:
        runs.train(examples, tmp_path)
    assert ending.value.code == RUN_AGAIN_STATUS == 75
    assert steps_kept(tmp_path)[-1] == step
    assert f"told to stop: step {step} is done and saved" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before
    (newest,) = tmp_path.rglob(f"step-{step:08d}/{STATE}")
    around_step(lambda _: None)
    if is_truncated:
        newest.write_bytes(newest.read_bytes()[:1000])
        machines = newest.parents[2] / MACHINES
        machines.write_bytes(machines.read_bytes()[:10])
    resumed = runs.train(examples, tmp_path)
    assert (f"passing over {newest.parent}: " in caplog.text) == is_truncated
    assert ("computed on before is not known" in caplog.text) == is_truncated
    assert len(runs.result_of(resumed).machines) == 1
    assert ("step-00000008" if is_truncated else newest.parent.name) in caplog.text.partition(
        "resuming from "
    )[2].partition("\n")[0]
    assert runs.content_of(resumed) == runs.content_of(uninterrupted)


def test_a_resumed_run_that_is_stopped_at_once_leaves_its_checkpoint_as_it_is(
    examples: str, tmp_path: Path, around_step: AroundStep
) -> None:
    around_step(tell_to_stop_at(5))
    files = []
    for _ in range(2):
        with pytest.raises(RunAgain):
            runs.train(examples, tmp_path, keep_checkpoints=1)
        (state,) = tmp_path.rglob(STATE)
        files.append((state.parent.name, state.stat().st_ino, state.stat().st_mtime_ns))
    assert files[0] == files[1]
    assert files[0][0] == "step-00000005"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_run_told_to_stop_in_an_evaluation_ends_at_once_and_measures_when_it_goes_on(
    number: int, examples: str, uninterrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the one before the first update, in that after update 6, and in the last."""
    numbers = iter(range(3))

    def told(*arguments: Any) -> Any:
        if next(numbers) == number:
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the evaluation went on")
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(held_out, "evaluate", told)
        with pytest.raises(RunAgain):
            runs.train(examples, tmp_path)
    assert steps_kept(tmp_path)[-1:] == [[], [6], [12]][number]
    resumed = runs.train(examples, tmp_path)
    assert runs.content_of(resumed) == runs.content_of(uninterrupted)
    ours, theirs = (
        best_checkpoint(f"{Path(u).parent}/checkpoints") for u in (resumed, uninterrupted)
    )
    assert ours is not None
    assert theirs is not None
    assert ours[0] == theirs[0]


def test_a_run_told_to_stop_in_an_evaluation_amid_skipped_updates_says_that_nothing_is_saved(
    examples: str,
    tmp_path: Path,
    around_step: AroundStep,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(*arguments: Any) -> Any:
        if next(steps) == 2:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(*arguments)

    around_step(lambda state: spoil_gradient(state, float("nan")))
    steps = iter([0, 2])
    monkeypatch.setattr(held_out, "evaluate", told)
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path, evaluation_steps=2)
    assert steps_kept(tmp_path) == []
    assert "told to stop: nothing is saved yet" in caplog.text


def test_a_run_told_to_stop_before_an_evaluation_makes_it_when_it_goes_on(
    examples: str, tmp_path: Path, around_step: AroundStep
) -> None:
    settings: dict[str, Any] = {"num_steps": 4, "evaluation_steps": 2, "shallow_share": 0.75}
    whole = runs.train(examples, tmp_path / "whole", **settings)
    around_step(tell_to_stop_at(1))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path / "stopped", **settings)
    around_step(lambda _: None)
    resumed = runs.train(examples, tmp_path / "stopped", **settings)
    assert runs.result_of(resumed).evaluations == runs.result_of(whole).evaluations


def test_a_run_told_to_stop_amid_an_evaluation_makes_it_of_the_same_layers_when_it_goes_on(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"num_steps": 4, "evaluation_steps": 2, "shallow_share": 0.75}
    whole = runs.train(examples, tmp_path / "whole", **settings)
    outcomes = iter([evaluate, None])  # before the first update, and after the second
    with monkeypatch.context() as stopped:
        stopped.setattr(held_out, "evaluate", lambda *given: _scores_or_stop(next(outcomes), given))
        with pytest.raises(RunAgain):
            runs.train(examples, tmp_path / "stopped", **settings)
    resumed = runs.train(examples, tmp_path / "stopped", **settings)
    assert runs.result_of(resumed).evaluations == runs.result_of(whole).evaluations
    losses = [
        {record["step"]: record["held_out_loss"] for record in map(read_record, _checkpoints(work))}
        for work in (tmp_path / "whole", tmp_path / "stopped")
    ]
    assert losses[1] == losses[0]


def _scores_or_stop(score: Callable[..., Any] | None, given: tuple[Any, ...]) -> Any:
    if score is None:
        raise RunAgain
    return score(*given)


def _checkpoints(work: Path) -> list[str]:
    return [str(path.parent) for path in work.rglob(RECORD)]


def test_a_run_whose_held_out_loss_is_no_number_ends_with_a_sentence(
    examples: str, tmp_path: Path
) -> None:
    diverging: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e30, "warmup_steps": 0}
    with pytest.raises(
        TrainingError, match=r"after step 4 are not numbers.*training.learning_rate"
    ):
        runs.train(examples, tmp_path, num_steps=4, **diverging)


def test_a_tpu_needs_positions_for_the_padding(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = runs.MODEL.max_position_embeddings
    shape = BatchShape(num_sequences=8, length=longest + 8, num_predictions=4)
    monkeypatch.setattr(ExampleShards, "shape_for", lambda *_: shape)
    with pytest.raises(ConfigError, match=f"padded to {longest + 8} pieces.*is {longest}"):
        runs.train(examples, tmp_path)


def test_an_error_leaves_the_checkpoint_that_was_being_written(
    examples: str, tmp_path: Path, around_step: AroundStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_after_one(state: TrainState) -> None:
        if state.step == 1:
            raise OSError("a shard is gone")

    save = checkpoint.save_checkpoint

    def save_slowly(*given: Any) -> str:
        time.sleep(0.3)
        return save(*given)

    around_step(fail_after_one)
    monkeypatch.setattr(checkpoint, "save_checkpoint", save_slowly)
    with pytest.raises(OSError, match="a shard is gone"):
        runs.train(examples, tmp_path, checkpoint_steps=1)
    assert steps_kept(tmp_path) == [1]


# Runs that continue others


@pytest.mark.parametrize(("first", "then"), [("lamb", "muon"), ("muon", "lamb")])
def test_a_run_is_continued_with_another_optimizer(
    first: str, then: str, examples: str, tmp_path: Path
) -> None:
    start = runs.train(examples, tmp_path, optimizer=first, num_steps=3)
    settings: dict[str, Any] = {"optimizer": then, "num_steps": 4, "continue_from": start}
    assert runs.result_of(runs.train(examples, tmp_path, **settings)).step == 4


def test_a_run_is_continued_whose_muon_moved_fewer_matrices(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parts = optimizers._parts_of_maps
    with monkeypatch.context() as earlier:
        earlier.setattr(
            optimizers, "_parts_of_maps", lambda model: dict(list(parts(model).items())[1:])
        )
        start = runs.train(examples, tmp_path, optimizer="muon", num_steps=3)
    settings: dict[str, Any] = {"optimizer": "muon", "num_steps": 4, "continue_from": start}
    assert runs.result_of(runs.train(examples, tmp_path, **settings)).step == 4
    assert "muon does not continue the moments of muon: they begin at 0" in caplog.text


def test_new_text_is_gone_on_with_because_the_vocabulary_was_kept(tmp_path: Path) -> None:
    """From raw text on, if that is asked for; with another vocabulary it is refused."""
    first = runs.train(runs.make_days(tmp_path, 0, 60), tmp_path)
    more = runs.make_days(tmp_path, 0, 90)
    continued: dict[str, Any] = {"continue_from": first, "num_steps": 16}
    assert read_manifest(more).content != read_manifest(first).inputs["examples"]
    with pytest.raises(TrainingError, match=r"set\s+training.accept_other_examples = true"):
        runs.train(more, tmp_path, **continued)
    uri = runs.train(more, tmp_path, **continued, accept_other_examples=True)
    assert runs.result_of(uri).step == 16
    assert read_manifest(uri).account("examples trained on").total == 4 * 8
    corpus = read_manifest(more).input_manifests["corpus"]
    asked = config.VocabularySettings(vocab_size=95, refresh="train")
    vocab = train_vocab.run(asked, corpus, str(tmp_path))
    others = runs.made_again(more, tmp_path, vocab)
    with pytest.raises(TrainingError, match="the same piece would mean something else"):
        runs.train(others, tmp_path, **continued, accept_other_examples=True)


def test_dropout_is_removed_in_mid_run(
    examples: str, tmp_path: Path, around_step: AroundStep
) -> None:
    """As the paper did after a million steps: section 4.8, Figure 2b."""
    seen: list[tuple[int, int]] = []

    def watch(state: TrainState) -> None:
        seen.append((state.step, state.examples_taken))
        if state.step == 6:
            moments = next(iter(state.optimizer.state.values()))
            assert moments["mean"].norm() > 0

    around_step(watch)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    first = runs.train(examples, tmp_path, runs.MODEL.model_copy(update=dropout), num_steps=6)
    continued: dict[str, Any] = {"continue_from": first, "num_steps": 8}
    second = runs.train(examples, tmp_path, **continued)
    assert seen == [(step, step * 8) for step in range(8)]
    manifest = read_manifest(second)
    assert manifest.inputs["continue_from"]
    assert manifest.input_manifests["pretraining"] == first
    assert runs.result_of(second).settings["model"]["hidden_dropout_prob"] == 0
    assert runs.train(examples, tmp_path, **continued) == second
    assert len(seen) == 8


def test_a_run_that_other_code_began_is_named_and_continued_only_if_asked_for(
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
    around_step: AroundStep,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    around_step(tell_to_stop_at(8))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path)
    (checkpoint,) = tmp_path.rglob("step-00000008")
    monkeypatch.setattr(pretrain, "code_digest", lambda _: "0123456789abcdef")
    around_step(tell_to_stop_at(2))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path)
    assert "was begun by other code or libraries" in caplog.text
    assert f"training.continue_from = {checkpoint} goes on from there" in caplog.text
    around_step(lambda _: None)
    continued = runs.train(examples, tmp_path, continue_from=str(checkpoint))
    torch.testing.assert_close(
        runs.weights_of(continued), runs.weights_of(uninterrupted), rtol=0, atol=0
    )
    made_of = read_manifest(continued).input_manifests["pretraining"]
    assert made_of == str(checkpoint.parents[1] / "begun.json")


def test_with_dropout_a_run_of_another_cut_is_named_with_what_differs(
    examples: str, tmp_path: Path, around_step: AroundStep, caplog: pytest.LogCaptureFixture
) -> None:
    model = runs.MODEL.model_copy(update={"hidden_dropout_prob": 0.1})
    around_step(tell_to_stop_at(2))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path, model, micro_batch_size=4)
    (checkpoint,) = tmp_path.rglob("step-00000002")
    assert "was begun" not in caplog.text
    around_step(tell_to_stop_at(1))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path, model, micro_batch_size=2)
    said = "was begun with micro_batch_size 4 (here 2), on which dropout depends. "
    assert f"{said}training.continue_from = {checkpoint} goes on from there" in caplog.text


def test_a_run_starts_from_the_weights_of_a_model(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    model = str(Path(uninterrupted).parent / "model")
    uri = runs.train(examples, tmp_path, initial_model=model, num_steps=3)
    after = runs.result_of(uninterrupted).after["masked_lm_loss"].value
    assert runs.result_of(uri).before["masked_lm_loss"].value == pytest.approx(after)
    assert read_manifest(uri).inputs["initial_model"]
    assert read_manifest(uri).account("examples trained on").total == 3 * 8


def test_a_head_that_is_drawn_does_not_tell_one_source_from_another(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    """The bits that are drawn depend on the processor, and runs go on on another."""
    headless = str(tmp_path / "headless")
    model = AlbertForMaskedLM.from_pretrained(Path(uninterrupted).parent / "model")
    model.save_pretrained(headless)
    settings: dict[str, Any] = {"initial_model": headless, "num_steps": 3}
    of_seeds = [runs.train(examples, tmp_path, seed=seed, **settings) for seed in (1, 2)]
    digests = [read_manifest(uri).inputs["initial_model"] for uri in of_seeds]
    assert digests[1] == digests[0]


@pytest.mark.parametrize(
    ("source", "values", "message"),
    [
        ("", {"num_steps": 12}, r"is at step 12, but .*num_steps, .* is 12: there is nothing"),
        ("", {"num_steps": 16, "seed": 1}, "the examples' order would change in mid-epoch"),
        (
            "",
            {"num_steps": 24, "shallow_share": 0.6},
            r"step 12 and computed 2 layers, .*num_steps 24 .* would compute 1\. .*_share = 0:",
        ),
        ("nowhere", {"num_steps": 16}, r"there is no good checkpoint at .*nowhere"),
        (
            "",
            {"num_steps": 16, "num_attention_heads": 2, "hidden_act": "relu"},
            r"'gelu_new' there and 'relu' here; num_attention_heads is 4 there and 2 here",
        ),
        ("", {"num_steps": 16, "sharing": "none"}, "model: sharing is 'all' there and 'none' here"),
        ("", {"num_steps": 16, "num_hidden_groups": 2}, "num_hidden_groups is 1 there and 2 here"),
        ("", {"num_steps": 16, "inner_group_num": 2}, "model: inner_group_num is 1 there and 2 h"),
        ("", {"num_steps": 16, "num_hidden_layers": 1}, "num_hidden_layers is 2 there and 1 here"),
    ],
)
def test_a_run_that_cannot_be_continued_is_refused(
    source: str,
    values: dict[str, Any],
    message: str,
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
) -> None:
    of_model = runs.MODEL.model_dump().keys() & values.keys()
    model = runs.MODEL.model_copy(update={name: values[name] for name in of_model})
    of_training = {name: value for name, value in values.items() if name not in of_model}
    start = f"{uninterrupted}{source}"
    with pytest.raises(ConfigError, match=message):
        runs.train(examples, tmp_path, model, continue_from=start, **of_training)


def test_a_run_is_continued_with_more_layers_that_have_the_same_blocks(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    deeper = runs.MODEL.model_copy(update={"num_hidden_layers": 4})
    continued: dict[str, Any] = {"continue_from": uninterrupted, "num_steps": 13}
    assert runs.result_of(runs.train(examples, tmp_path, deeper, **continued)).step == 13
    own = deeper.model_copy(update={"sharing": "none"})
    both = r"num_hidden_layers is 2 there and 4 here; sharing is 'all' there .*initial_model"
    with pytest.raises(ConfigError, match=both):
        runs.train(examples, tmp_path, own, **continued)


@pytest.mark.parametrize(("most", "steps"), [(50, [6, 12, 18]), (4, [12, 18])])
def test_a_continued_run_keeps_evaluations_on_as_many_examples_as_its_own(
    most: int, steps: list[int], examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    continued: dict[str, Any] = {"continue_from": uninterrupted, "num_steps": 18}
    uri = runs.train(examples, tmp_path, max_evaluation_examples=most, **continued)
    assert [point["step"] for point in runs.result_of(uri).evaluations] == steps


def test_a_run_that_grows_is_scored_with_the_layers_that_its_updates_compute(
    examples: str, tmp_path: Path, around_step: AroundStep
) -> None:
    layers = []
    around_step(lambda state: layers.append(state.model.encoder.num_layers))
    settings: dict[str, Any] = {"num_steps": 4, "shallow_share": 0.75, "evaluation_steps": 2}
    uri = runs.train(examples, tmp_path, keep_checkpoints=2, **settings)
    assert layers == [1, 1, 1, 2]
    held_out, most = ExampleShards(examples, "held_out"), runs.TRAINING.max_evaluation_examples
    checkpoints = sorted(Path(uri).with_name("checkpoints").iterdir())
    points = runs.result_of(uri).evaluations
    for folder, point, num_layers in zip(checkpoints, points, (1, 2), strict=True):
        source = read_source(str(folder))
        model = source.start(source.settings)
        model.encoder.num_layers = num_layers
        loss = evaluate(model, held_out, most)["masked_lm_loss"].value
        assert loss == point["masked_lm_loss"]
        # Only what loads with all layers may be the best one.
        of_checkpoint = read_record(str(folder)).get("held_out_loss")
        assert of_checkpoint == (loss if num_layers == 2 else None)


def test_a_run_that_grew_and_is_continued_for_longer_keeps_its_layers(
    examples: str, tmp_path: Path, around_step: AroundStep
) -> None:
    first = runs.train(examples, tmp_path, num_steps=4, shallow_share=0.5)
    continued: dict[str, Any] = {"continue_from": first, "num_steps": 12}
    with pytest.raises(ConfigError, match=r"Give training\.shallow_share = 0\.1666:"):
        runs.train(examples, tmp_path, shallow_share=0.5, **continued)
    layers = []
    around_step(lambda state: layers.append(state.model.encoder.num_layers))
    runs.train(examples, tmp_path, shallow_share=0.1666, **continued)
    assert layers == [2] * 8


def test_first_weights_come_from_counts_only_where_they_are_used(
    examples: str, tmp_path: Path, around_step: AroundStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr(cooccurrence, "initialise_from_counts", lambda *_: counted.append(1))
    settings: dict[str, Any] = {"initial_weights": "counts", "num_steps": 3}
    around_step(tell_to_stop_at(1))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path, **settings)
    around_step(lambda _: None)
    first = runs.train(examples, tmp_path, **settings)
    runs.train(examples, tmp_path, continue_from=first, **settings | {"num_steps": 4})
    assert counted == [1]
    runs.train(examples, tmp_path, max_evaluation_examples=4, **settings)
    assert counted == [1, 1]  # they are scored before the run is taken over


@pytest.mark.parametrize(("optimizer", "num_keys"), [("lamb", 1), ("muon", 2)])
def test_the_rate_of_what_muon_leaves_to_adamw_makes_another_run_with_muon_only(
    optimizer: str, num_keys: int, examples: str
) -> None:
    both: list[dict[str, Any]] = [
        {"optimizer": optimizer, "adam_learning_rate": rate} for rate in (0.003, 0.001)
    ]
    keys = {key_of(runs.MODEL, runs.with_settings(**each), examples) for each in both}
    assert len(keys) == num_keys


# Runs that are others, and runs that are not


def key_of(model: ModelSettings, settings: TrainingSettings, examples: str) -> str:
    """Return the key of a run that is not made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagePlan, "find", lambda plan, _work: plan.key)
        return pretrain.run(model, settings, examples, "")


def test_a_run_of_one_layer_is_the_same_whatever_its_share_of_shallow_updates(
    examples: str,
) -> None:
    one = runs.MODEL.model_copy(update={"num_hidden_layers": 1})
    keys = {key_of(one, runs.with_settings(shallow_share=share), examples) for share in (0.0, 0.5)}
    assert len(keys) == 1


@pytest.mark.parametrize(("dropout", "num_keys"), [(0.0, 1), (0.1, 3)])
def test_with_dropout_another_cut_into_ranks_and_micro_batches_is_another_run(
    dropout: float, num_keys: int, examples: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = runs.MODEL.model_copy(update={"hidden_dropout_prob": dropout})
    keys = {key_of(model, runs.with_settings(micro_batch_size=size), examples) for size in (4, 2)}
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(keys | {key_of(model, runs.with_settings(), examples)}) == num_keys


def test_a_finished_run_is_measured_on_other_examples_without_training_it_again(
    examples: str, uninterrupted: str, around_step: AroundStep
) -> None:
    around_step(lambda _: pytest.fail("an update was made"))
    work = Path(uninterrupted).parents[2]
    again = runs.train(examples, work, max_evaluation_examples=4)
    assert again != uninterrupted
    for name, weights in runs.weights_of(uninterrupted).items():
        assert torch.equal(runs.weights_of(again)[name], weights), name
    assert runs.result_of(again).after != runs.result_of(uninterrupted).after
    assert runs.result_of(again).before != runs.result_of(uninterrupted).before


def test_settings_that_do_not_change_the_result_do_not_make_another_run(
    examples: str, uninterrupted: str
) -> None:
    other: dict[str, Any] = {
        "micro_batch_size": 1,
        "activation_checkpointing": True,
        "compile": True,
        "deterministic": True,
        "shard_state": True,
        "log_steps": 1,
        "evaluation_steps": 1,
        "checkpoint_steps": 1,
        "keep_checkpoints": 1,
        "max_skipped_steps": 0,
        "accept_other_examples": True,
        "evaluation_minutes": 1.0,
        "checkpoint_minutes": 1.0,
        "system_metrics": False,
    }
    assert other.keys() == TrainingSettings.HOW_NOT_WHAT
    assert runs.train(examples, Path(uninterrupted).parents[2], **other) == uninterrupted
