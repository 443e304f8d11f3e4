from dataclasses import replace

import numpy as np
import pytest

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.flops import training_flops
from albert_core.planning.hardware import find_hardware
from albert_core.planning.run_plan import (
    ExampleSizes,
    RunPlan,
    TrainingDevices,
    TrainingSetup,
    batch_advice,
    plan_run,
)
from albert_core.stage.errors import ConfigError

H200 = find_hardware("h200").with_given(
    peak_tflops=1000.0, memory_gib=None, utilisation=0.5, usd_per_hour=4.0
)
FULL = ExampleSizes.of_lengths([512], 77, "here")
DEVICES = TrainingDevices(
    hardware=H200,
    num_devices=1,
    precision="bfloat16",
    activation_checkpointing=False,
    hidden_size=768,
)
SETUP = TrainingSetup(model=ModelSettings(), vocab_size=30_000, sizes=FULL, devices=DEVICES)


def plan(training: TrainingSettings, num_devices: int = 1) -> RunPlan:
    return plan_run(ModelSettings(), training, 30_000, FULL, 512, 77, H200, num_devices)


def speed(devices: TrainingDevices) -> float:
    return replace(SETUP, devices=devices).predicted_pieces_per_second


def test_base_at_half_of_an_h200_is_as_fast_as_was_worked_out() -> None:
    # Source: PEERS.md, section 2.1: 0.570 GFLOP a piece, 867,000 pieces/s at 50 % of 989.5 TFLOP/s.
    published = replace(DEVICES, hardware=replace(H200, peak_tflops={"bfloat16": 989.5}))
    assert SETUP.flops_per_piece / 1e9 == pytest.approx(0.570, abs=0.001)
    assert speed(published) == pytest.approx(867_000, rel=0.002)


def test_devices_share_the_work_evenly() -> None:
    assert speed(replace(DEVICES, num_devices=8)) == 8 * speed(DEVICES)


def test_computing_activations_again_takes_a_third_more_time() -> None:
    again = replace(DEVICES, activation_checkpointing=True)
    assert speed(DEVICES) / speed(again) == pytest.approx(4 / 3)


@pytest.mark.parametrize(("share", "says"), [(0.9, "10% below"), (1.2, "20% above")])
def test_the_end_of_a_run_says_how_far_off_the_plan_was(share: float, says: str) -> None:
    devices = replace(DEVICES, num_devices=8)
    eight, planned = replace(SETUP, devices=devices), speed(devices)
    flops_per_second = share * planned * SETUP.flops_per_piece
    assert eight.speed_to_plan(flops_per_second) == pytest.approx(share)
    line = eight.compared_with_plan(flops_per_second, share * planned)
    assert line == (
        f"{share * planned:,.0f} pieces/s, {says} the {planned:,.0f} planned for 8 x "
        f"h200; model FLOPs utilisation {share * 0.5:.3f}, planned 0.500 (given)"
    )


def test_what_the_last_layer_leaves_out_is_planned_as_speed() -> None:
    # Operations are counted whole; of the last of 2 layers three quarters are not done for 84 %.
    known = replace(DEVICES, hardware=find_hardware("h200"))
    two_layers = ModelSettings(num_hidden_layers=2)
    setups = [replace(SETUP, model=m, devices=known) for m in (two_layers, ModelSettings())]
    gains = [setup.utilisation / setup.devices.utilisation for setup in setups]
    undone = (1 - 78 / 512) * (768**2 + 2 * 768 * 3072)
    of_two = undone / (setups[0].flops_per_piece / 6)
    assert gains[0] == pytest.approx(1 / (1 - of_two))
    assert 1.2 < gains[0] < 1.5
    assert 1.04 < gains[1] < 1.07
    assert SETUP.utilisation == 0.5  # what is given is taken as it is


def test_hours_and_cost_follow_from_the_speed() -> None:
    training = TrainingSettings(num_steps=10_000, batch_size=64, precision="bfloat16")
    made = plan(training, num_devices=2)
    seconds = 10_000 * training_flops(ModelSettings(), 30_000, [512] * 64, 64 * 77) / (2 * 5e14)
    assert made.hours == pytest.approx(seconds / 3600)
    assert made.cost_usd == pytest.approx(made.hours * 2 * 4.0)
    assert made.num_pieces == 10_000 * 64 * 512


def test_a_micro_batch_is_no_larger_than_a_devices_share_of_the_batch() -> None:
    training = TrainingSettings(batch_size=100, micro_batch_size=64)
    assert plan(training).micro_batch.num_sequences == 64
    assert plan(training, num_devices=3).micro_batch.num_sequences == 34


def test_what_fits_is_what_the_largest_micro_batch_says() -> None:
    made = plan(TrainingSettings(batch_size=4096, micro_batch_size=16, precision="bfloat16"))
    largest, again = made.largest_micro_batch(False), made.largest_micro_batch(True)
    assert 16 < largest < again
    assert made.fits
    for size, fits in ((largest, True), (largest + 1, False)):
        assert replace(made, micro_batch=replace(made.micro_batch, num_sequences=size)).fits == fits
    assert made.largest_micro_batch() == largest
    assert (
        made.memory(True).activations < made.memory(False).activations == made.memory().activations
    )


@pytest.mark.parametrize("num_devices", [0, 5])
def test_a_batch_is_not_shared_by_more_devices_than_it_has_examples(num_devices: int) -> None:
    with pytest.raises(ConfigError, match=f"{num_devices} devices cannot share a batch of 4"):
        plan(TrainingSettings(batch_size=4), num_devices)


def test_sizes_are_means_over_the_examples() -> None:
    sizes = ExampleSizes.of_lengths(np.array([10, 20, 60]), 15, "here")
    assert (sizes.num_pieces, sizes.num_predictions, sizes.basis) == (30, 5, "measured")
    assert sizes.square == pytest.approx((100 + 400 + 3600) / 3)


def test_assumed_sizes_are_those_of_the_mixture_that_they_name() -> None:
    draws = np.random.default_rng(0).random((2, 200_000))
    lengths = np.where(draws[0] < 0.55, 512, 512 * draws[1])
    sizes = ExampleSizes.assumed(512, 0.15)
    assert sizes.num_pieces == pytest.approx(lengths.mean(), rel=0.01)
    assert sizes.square == pytest.approx(np.square(lengths).mean(), rel=0.01)
    assert sizes.num_predictions == pytest.approx(0.15 * sizes.num_pieces)


def test_advice_for_another_batch_keeps_the_examples_and_scales_the_rate_by_a_root() -> None:
    paper, small = batch_advice(4096), batch_advice(1024)
    assert (paper.learning_rate, paper.warmup_steps, paper.num_steps) == (0.00176, 3125, 125_000)
    assert (small.learning_rate, small.warmup_steps, small.num_steps) == (0.00088, 3125, 500_000)
