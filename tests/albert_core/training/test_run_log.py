import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.model_size import training_flops
from albert_core.planning.run_plan import HARDWARE, RunPlan
from albert_core.text.records import Sizes
from albert_core.training import run_log
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.shards import ExampleShards
from albert_core.training.step import TrainState, layers_at
from tests.albert_core.made_examples import made_examples

MODEL, TRAINING = ModelSettings(), TrainingSettings(precision="bfloat16")
CLEAR_REFS = Path("/proc/self/clear_refs")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    return ExampleShards(made_examples(str(tmp_path_factory.mktemp("made")), 101, 60), "train")


@pytest.fixture
def gpu_name(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A name that every GPU answers to, to be set."""
    answer = SimpleNamespace(name="")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: answer.name)
    return answer


def on_two_gpus(examples: ExampleShards) -> RunPlan | None:
    return run_log.plan_of(MODEL, TRAINING, examples, Ranks(0, 2, torch.device("cuda", 0)))


def test_the_peak_of_known_gpus_is_the_vendors_times_their_number(
    examples: ExampleShards, gpu_name: SimpleNamespace
) -> None:
    gpu_name.name = "NVIDIA H200"
    plan = on_two_gpus(examples)
    assert plan is not None
    assert plan.hardware is HARDWARE["h200"]
    assert plan.peak_flops == 2 * 989.5e12
    lengths, _ = examples.sizes(np.arange(len(examples)))
    assert plan.sizes.num_pieces == pytest.approx(lengths.mean())


def test_of_an_unknown_gpu_nothing_is_claimed(
    examples: ExampleShards, gpu_name: SimpleNamespace
) -> None:
    gpu_name.name = "A device of tomorrow"
    assert on_two_gpus(examples) is None


def test_a_cpu_is_held_to_the_plan_by_the_time_that_it_worked(
    examples: ExampleShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "measured_peak_flops", lambda _: 1e12)
    alone, share = reported(examples, monkeypatch, waits=0.0, worked=2.0)
    busy, same_share = reported(examples, monkeypatch, waits=90.0, worked=2.0)
    _, half = reported(examples, monkeypatch, waits=0.0, worked=4.0)
    assert alone == pytest.approx(10 * busy)  # pieces a second by the clock
    assert same_share == share == pytest.approx(2 * half)


def reported(
    examples: ExampleShards, monkeypatch: pytest.MonkeyPatch, waits: float, worked: float
) -> tuple[float, float]:
    """Return the pieces a second and `speed_to_plan` of an update on a clock of this test.

    Args:
        examples: to train on.
        monkeypatch: replaces the clock.
        waits: seconds of the 10 and these that pass while other programs have the cores.
        worked: seconds that the threads of this process worked in the update.
    """
    clock = SimpleNamespace(now=0.0, worked=0.0)
    now = {"perf_counter": lambda: clock.now, "process_time": lambda: clock.worked}
    plan = run_log.plan_of(MODEL, TRAINING, examples, ALONE)
    monkeypatch.setattr(run_log, "time", SimpleNamespace(**now))
    tracked = SimpleNamespace(key="key", seconds=0.0, metrics={})
    tracked.log_metrics = lambda _, metrics: tracked.metrics.update(metrics)
    log = run_log.RunLog(MODEL, TRAINING, 100, ALONE, plan, 0, cast(Any, tracked))
    with log.not_training():
        clock.now, clock.worked = 1000.0, 700.0
    clock.now, clock.worked = clock.now + 10 + waits, clock.worked + worked
    sizes = Sizes.of_lengths(np.full(64, 60), 64 * 9)
    shape = SimpleNamespace(encoder=SimpleNamespace(num_layers=12))
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}], trust_ratios=None)
    state = TrainState(model=cast(Any, shape), optimizer=cast(Any, optimizer), step=1)
    log.add(state, sizes, 0.0)
    log.report(state)
    log.summarise(state, {}, 0.0)
    return tracked.metrics["pieces_per_second"], tracked.metrics["speed_to_plan"]


@pytest.mark.parametrize(("share", "done"), [(0.0, 1), (0.8, 1), (0.8, 500), (0.8, 1000)])
def test_a_progress_line_tells_fewer_layers_and_a_time_left_that_counts_those_of_later_updates(
    share: float, done: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=0.0)
    now = {"perf_counter": lambda: clock.now, "process_time": lambda: clock.now}
    monkeypatch.setattr(run_log, "time", SimpleNamespace(**now))
    settings = TRAINING.model_copy(update={"num_steps": 1000, "shallow_share": share})
    tracked = SimpleNamespace(key="key", log_metrics=lambda *_: None)
    log = run_log.RunLog(MODEL, settings, 100, ALONE, None, 0, cast(Any, tracked))
    sizes = Sizes.of_lengths(np.full(64, 60), 64 * 9)
    layers = [layers_at(step, 1000, share, 12) for step in range(1000)]
    flops = {n: training_flops(sized(n), 100, sizes) for n in set(layers)}
    shape = SimpleNamespace(encoder=SimpleNamespace(num_layers=layers[done - 1]))
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}], trust_ratios=None)
    state = TrainState(model=cast(Any, shape), optimizer=cast(Any, optimizer), step=done)
    clock.now = 60.0
    log.add(state, sizes, 0.0)
    with caplog.at_level(logging.INFO):
        log.report(state)
    assert ("(1 of 12 layers)" in caplog.text) == (layers[done - 1] == 1)
    told = re.search(r"([\d:]+) left", caplog.text)
    assert told is not None
    seconds = sum(int(part) * 60**n for n, part in enumerate(reversed(told[1].split(":"))))
    expected = 60 * sum(flops[n] for n in layers[done:]) / flops[layers[done - 1]]
    assert seconds == pytest.approx(expected, rel=0.005)


def sized(num_layers: int) -> ModelSettings:
    return ModelSettings(num_hidden_layers=num_layers)


@pytest.mark.parametrize("pair_task", [None, "sentence_order"])
def test_a_run_that_made_no_update_and_was_never_measured_has_a_picture(
    pair_task: str | None, examples: ExampleShards
) -> None:
    skipped = [{"step": step, "learning_rate": 0.01, "skipped_steps": step} for step in (4, 8)]
    picture = run_log.draw_curves(skipped, [], examples.result, pair_task)
    assert picture.startswith(b"\x89PNG")


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="the peak of a process can be reset on Linux")
def test_the_peak_above_what_was_there_before_has_what_was_freed_and_no_mapped_files(
    tmp_path: Path,
) -> None:
    mapped = tmp_path / "shard"
    mapped.write_bytes(b"1" * (64 << 20))
    CLEAR_REFS.write_text("5")  # the peak begins anew
    before = run_log.used_memory(ALONE.device)
    pages = np.memmap(mapped, mode="r")
    tensor = torch.ones(50 << 20)
    assert tensor.sum() + int(pages.sum()) > 0
    del tensor
    assert 195 << 20 < run_log.peak_memory(ALONE.device, before) < 240 << 20
    assert run_log.used_memory(ALONE.device) - before < 40 << 20
