"""Pretraining on real shards, in real processes."""

import json
import re
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import set_layer_execution
from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import read_manifest
from albert_core.tracking.server import open_client
from albert_core.training import pretrain, pretraining, run_log
from albert_core.training.launcher import status_of
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.shards import Batch, ExampleShards, UpdateBatch
from albert_core.training.step import TrainState, train_step
from tests.albert_core.one_update import sizes_of
from tests.albert_core.training.conftest import AroundStep
from tests.albert_core.training_runs import (
    MODEL,
    TRAINING,
    make_days,
    run_with_faults,
    weights_of,
    with_settings,
)


def points_of(manifest: str) -> list[dict[str, float]]:
    lines = (Path(manifest).parent / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def new_model(examples: str, settings: ModelSettings = MODEL) -> AlbertForPretraining:
    torch.manual_seed(1)
    return AlbertForPretraining(settings, read_manifest(examples).facts["vocab_size"])


def begun(model: AlbertForPretraining) -> TrainState:
    return TrainState(model=model, optimizer=build_optimizer(model, "lamb", 0.01, 0.01))


def after_one_step(
    examples: str,
    model: AlbertForPretraining,
    cuts: Sequence[int] = (),
    pair_task: str | None = "sentence_order",
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return weights and metrics after a step over 8 examples, cut at ``cuts``."""
    shards = ExampleShards(examples, "train")
    order = example_order(0, 8, len(shards), 1)
    parts = [shards.batch(order[a:b]) for a, b in zip([0, *cuts], [*cuts, 8], strict=True)]
    batch = UpdateBatch(sizes=sizes_of(shards.rows(order)), micro_batches=iter(parts))
    update = train_step(begun(model), batch, TRAINING, ALONE, pair_task)
    assert update.skipped is None
    return model.state_dict(), list(update.metrics.values())


@pytest.mark.parametrize("cuts", [[1, 6], [4], [1, 2, 3, 4, 5, 6, 7]])
def test_cutting_the_batch_unevenly_changes_nothing(examples: str, cuts: list[int]) -> None:
    whole, whole_metrics = after_one_step(examples, new_model(examples).double())
    cut, cut_metrics = after_one_step(examples, new_model(examples).double(), cuts)
    torch.testing.assert_close(cut, whole, rtol=1e-11, atol=1e-11)
    assert cut_metrics == pytest.approx(whole_metrics, rel=1e-5)  # sums of float32


def test_without_pairs_to_learn_from_their_head_stays_as_it_is(examples: str) -> None:
    before = new_model(examples).state_dict()
    after, metrics = after_one_step(examples, new_model(examples), pair_task=None)
    still = {name for name, weight in after.items() if torch.equal(weight, before[name])}
    assert still == {
        "sentence_order.weight",
        "sentence_order.bias",
        "encoder.pooler.weight",
        "encoder.pooler.bias",
    }
    assert len(metrics) == 3  # masked LM loss and accuracy, gradient norm


def test_a_run_leaves_a_model_its_scores_and_its_account(uninterrupted: str) -> None:
    manifest = read_manifest(uninterrupted)
    folder = Path(uninterrupted).parent
    assert manifest.facts["step"] == 12
    for when in ("before", "after"):
        for score in manifest.facts[when].values():
            assert score["low"] <= score["value"] <= score["high"]
    assert {shard.kind for shard in manifest.shards} == {"model", "metrics"}
    assert [point["step"] for point in points_of(uninterrupted)] == [4, 8, 12]
    assert [point["step"] for point in manifest.facts["evaluations"]] == [6, 12]
    last, after = manifest.facts["evaluations"][-1], manifest.facts["after"]
    assert {**{name: score["value"] for name, score in after.items()}, "step": 12} == last
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_broke_off_resumes_to_the_same_bits(
    examples: str,
    uninterrupted: str,
    tmp_path: Path,
    around_step: AroundStep,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that was killed does too: `test_resume`."""
    caplog.set_level("INFO")

    def break_off(state: TrainState) -> None:
        if state.step == 7 and "resuming from" not in caplog.text:
            raise KeyboardInterrupt

    around_step(break_off)
    with pytest.raises(KeyboardInterrupt):
        pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert not list(tmp_path.rglob("manifest.json"))
    manifest = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    assert "resuming from" in caplog.text
    torch.testing.assert_close(weights_of(manifest), weights_of(uninterrupted), rtol=0, atol=0)
    assert read_manifest(manifest).content == read_manifest(uninterrupted).content


def test_bfloat16_learns_what_float32_learns(examples: str, tmp_path: Path) -> None:
    settings = TRAINING.model_copy(update={"precision": "bfloat16"})
    manifest = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path)))
    before, after = manifest.facts["before"], manifest.facts["after"]
    assert after["masked_lm_loss"]["value"] < before["masked_lm_loss"]["value"]


def test_examples_longer_than_the_models_positions_are_refused(
    examples: str, tmp_path: Path
) -> None:
    short = MODEL.model_copy(update={"max_position_embeddings": 64})
    with pytest.raises(ConfigError, match="max_position_embeddings is 64"):
        pretrain.run(short, TRAINING, examples, str(tmp_path))


@pytest.mark.parametrize("objective", ["nsp", "none"])
def test_what_is_learnt_from_pairs_is_called_by_its_name(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    examples = make_days(tmp_path, seed=0, num_documents=60, objective=objective)
    uri = pretrain.run(MODEL, with_settings(num_steps=8), examples, str(tmp_path))
    facts = read_manifest(uri).facts
    masked_lm = {"masked_lm_loss", "masked_lm_accuracy"}
    pairs = {"nsp": {"next_sentence_loss", "next_sentence_accuracy"}, "none": set()}[objective]
    assert facts["before"].keys() == facts["after"].keys() == masked_lm | pairs
    assert [point.keys() - {"step"} for point in facts["evaluations"]] == [masked_lm | pairs] * 2
    (first, *_) = points_of(uri)
    assert {name for name in first if name.endswith(("_loss", "_accuracy"))} == masked_lm | pairs
    assert (Path(uri).parent / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_every_progress_line_has_what_a_person_looks_for(
    examples: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(run_log, "processor_name", lambda: "AMD EPYC, 2 cores")
    uri = pretrain.run(MODEL, TRAINING, examples, str(tmp_path))
    numbers = r"[\d.,]+"
    assert re.search(
        rf"step 4/12  masked LM {numbers} \(\d+%\)  order {numbers} \(\d+%\)  grad {numbers}  "
        rf"trust {numbers}\.\.{numbers}  lr 8\.18e-03  {numbers} pieces/s  MFU \d+%  "
        r"data wait \d+%  "
        r"\d+\.\d GB  0:0\d left",
        caplog.text,
    ), caplog.text
    assert re.search(
        rf"12 updates in 0:0\d, {numbers} pieces/s; model FLOPs utilisation {numbers} of "
        rf"{numbers} TFLOP/s \(measured at the start\); of the time, data wait {numbers}%, "
        rf"checkpoint {numbers}%, tracking {numbers}%; peak memory {numbers} GB",
        caplog.text,
    )
    assert re.search(rf"planned for 1 x cpu2: {numbers} pieces/s, {numbers} hours", caplog.text)
    assert re.search(rf"% (above|below) the {numbers} planned for 1 x cpu2", caplog.text)
    client = open_client(str(tmp_path))
    run = client.get_run(read_manifest(uri).facts["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.micro_batch_size"] == "4"
    assert run.data.metrics.keys() == {
        "masked_lm_loss",
        "masked_lm_accuracy",
        "sentence_order_loss",
        "sentence_order_accuracy",
        "grad_norm",
        "learning_rate",
        "skipped_steps",
        "trust_ratio_min",
        "trust_ratio_mean",
        "trust_ratio_max",
        "pieces_per_second",
        "model_tflops_per_second",
        "model_flops_utilisation",
        "planned_pieces_per_second",
        "planned_hours",
        "speed_to_plan",
        "checkpoint_share",
        "tracking_share",
        "data_wait_share",
        "peak_memory_gb",
        "held_out/masked_lm_loss",
        "held_out/masked_lm_accuracy",
        "held_out/sentence_order_loss",
        "held_out/sentence_order_accuracy",
    }


def test_a_batch_of_any_size_needs_the_room_of_one_micro_batch(examples: str) -> None:
    """Nothing that a micro-batch made is alive when the one after the next is asked for."""
    shards = ExampleShards(examples, "train")
    model = new_model(examples)
    state = begun(model)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    model.masked_lm.register_forward_hook(
        lambda _module, _inputs, logits: made.append(weakref.ref(logits))
    )

    def micro_batches() -> Iterator[Batch]:
        for number in range(512 // 16):
            alive.append(sum(each() is not None for each in made))
            yield shards.batch(np.arange(number * 16, number * 16 + 16) % len(shards))

    numbers = np.arange(512) % len(shards)
    batch = UpdateBatch(sizes=sizes_of(shards.rows(numbers)), micro_batches=micro_batches())
    train_step(state, batch, TRAINING, ALONE)
    assert (len(made), state.examples_taken) == (32, 512)
    assert max(alive) == 0


class CallCounter:
    num_calls = 0

    def __call__(self, *_: object) -> None:
        self.num_calls += 1


def test_activations_computed_again_give_the_same_gradients(examples: str) -> None:
    found = []
    for again in (False, True):
        model = new_model(examples, MODEL.model_copy(update={"hidden_dropout_prob": 0.2}))
        set_layer_execution(model, compiled=False, activation_checkpointing=again)
        counter = CallCounter()
        model.get_submodule("encoder.attentions.0.query").register_forward_hook(counter)
        found.append(after_one_step(examples, model)[0])
        assert counter.num_calls == MODEL.num_hidden_layers * (1 + again)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
def test_compiled_layers_do_the_update_of_plain_ones(
    examples: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced only: `test_compiled_layers_learn_what_plain_ones_do` makes code of them too."""
    compile_module, calls = nn.Module.compile, CallCounter()

    def trace(module: nn.Module) -> None:
        calls()
        compile_module(module, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", trace)
    plain, _ = after_one_step(examples, new_model(examples))
    model = new_model(examples)
    set_layer_execution(model, compiled=True, activation_checkpointing=False)
    assert calls.num_calls == 2  # the attention and the feed-forward block that all layers share
    compiled, _ = after_one_step(examples, model)
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_compiled_layers_learn_what_plain_ones_do(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    done = run_with_faults(tmp_path, with_settings(compile=True), examples)
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = (tmp_path / "work" / "pretraining").glob("*/manifest.json")
    assert manifest.parent.name == Path(uninterrupted).parent.name  # the same key
    torch.testing.assert_close(
        weights_of(str(manifest)), weights_of(uninterrupted), rtol=1e-3, atol=1e-4
    )


def test_more_ranks_than_examples_in_a_batch_are_refused(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def nine_ranks() -> Iterator[Ranks]:
        yield Ranks(0, 9, torch.device("cpu"))

    monkeypatch.setattr(pretraining, "ranks_of_environment", nine_ranks)
    with pytest.raises(ConfigError, match="batch_size is 8, but there are 9 ranks"):
        pretrain.run(MODEL, TRAINING, examples, str(tmp_path))


RANK = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
signal.pause()
"""


def test_a_launcher_told_to_stop_passes_it_on_and_ends_with_the_same_status(
    tmp_path: Path,
) -> None:
    script, ready = tmp_path / "rank.py", tmp_path / "ready"
    script.write_text(RANK)
    ready.mkdir()
    options = ["--standalone", "--nproc-per-node=2", str(script), str(ready)]
    launcher = [sys.executable, "-m", "albert_core.training.launcher", *options]
    with subprocess.Popen(launcher, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while len(list(ready.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        said, _ = process.communicate()
    assert process.returncode == RUN_AGAIN_STATUS
    assert "goes on from the newest checkpoint" in said


@pytest.mark.parametrize(
    ("exitcodes", "status"),
    [([-9], 75), ([75, -9], 75), ([75, 75], 75), ([75, 2], 1), ([1, -15], 1)],
)
def test_the_launcher_says_whether_to_run_again(exitcodes: list[int], status: int) -> None:
    failures = {rank: SimpleNamespace(exitcode=code) for rank, code in enumerate(exitcodes)}
    assert status_of(cast(Any, failures)) == status


@pytest.mark.slow
def test_sentence_order_is_learned_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    settings = TrainingSettings(
        num_steps=250,
        batch_size=32,
        micro_batch_size=32,
        learning_rate=0.01,
        warmup_steps=25,
        log_steps=50,
        checkpoint_steps=250,
    )
    examples = make_days(tmp_path, seed=0, num_documents=2000)
    manifest = read_manifest(pretrain.run(MODEL, settings, examples, str(tmp_path)))
    assert manifest.facts["after"]["sentence_order_accuracy"]["value"] > 0.9
