from dataclasses import replace

import numpy as np
import pytest

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.hardware import find_hardware
from albert_core.planning.parameters import training_flops
from albert_core.planning.run_plan import ExampleSizes, RunPlan, batch_advice
from albert_core.stage.errors import ConfigError
from albert_core.training.shards import UpdateSizes

TRAINING = TrainingSettings(num_steps=10_000, batch_size=64, warmup_steps=0, precision="bfloat16")
PLAN = RunPlan(
    model=ModelSettings(),
    training=TRAINING,
    vocab_size=30_000,
    sizes=ExampleSizes.of_lengths([512], 77, "here"),
    max_seq_length=512,
    max_predictions=77,
    hardware=find_hardware("h200").with_given(1000.0, utilisation=0.5, price_per_hour=4.0),
)


def changed(plan: RunPlan, **changes: object) -> RunPlan:
    """Return the plan with other settings of the training."""
    return replace(plan, training=plan.training.model_copy(update=changes))


def test_hours_and_cost_follow_from_the_operations_and_the_devices() -> None:
    two = replace(PLAN, num_devices=2)
    update = UpdateSizes.of_lengths(np.full(64, 512), 64 * 77)
    seconds = 10_000 * training_flops(PLAN.model, 30_000, update) / (2 * 5e14)
    assert two.hours == pytest.approx(seconds / 3600)
    assert two.cost_usd == pytest.approx(two.hours * 2 * 4.0)
    assert two.num_pieces == 10_000 * 64 * 512
    assert two.pieces_per_second == 2 * PLAN.pieces_per_second


def test_recomputing_activations_takes_a_third_more_time() -> None:
    recomputing = changed(PLAN, activation_checkpointing=True)
    assert recomputing.hours / PLAN.hours == pytest.approx(4 / 3)


@pytest.mark.parametrize(("share", "says"), [(0.9, "10% below"), (1.2, "20% above")])
def test_the_end_of_a_run_says_how_far_off_the_plan_was(share: float, says: str) -> None:
    eight = replace(PLAN, num_devices=8)
    planned = eight.pieces_per_second
    flops_per_second = share * planned * PLAN.flops_per_piece
    assert eight.speed_to_plan(flops_per_second) == pytest.approx(share)
    assert eight.compared_with_plan(flops_per_second, share * planned) == (
        f"{share * planned:,.0f} pieces/s, {says} the {planned:,.0f} planned for 8 x "
        f"h200; model FLOPs utilisation {share * 0.5:.3f}, planned 0.500 (given)"
    )


def test_what_the_last_layer_skips_is_planned_as_speed() -> None:
    # Of the last layer, three quarters are not done for the 84 % of rows that no head reads.
    known = replace(PLAN, hardware=find_hardware("h200"))
    two_layers = replace(known, model=ModelSettings(num_hidden_layers=2))
    skipped = (1 - 78 / 512) * (768**2 + 2 * 768 * 3072)
    share = skipped / (two_layers.flops_per_piece / 6)
    assert two_layers.utilisation == pytest.approx(known.reached.at(768) / (1 - share))
    assert known.reached.at(768) < known.utilisation < two_layers.utilisation
    assert PLAN.utilisation == 0.5  # a given share is taken as it is


def test_a_micro_batch_is_no_larger_than_a_devices_share_of_the_batch() -> None:
    plan = changed(PLAN, batch_size=100, micro_batch_size=64)
    assert plan.memory.num_sequences == 64
    assert replace(plan, num_devices=3).memory.num_sequences == 34


def test_what_fits_is_what_the_largest_micro_batch_says() -> None:
    plan = changed(PLAN, batch_size=4096)
    largest = plan.memory.largest_micro_batch(plan.usable_bytes)
    assert changed(plan, micro_batch_size=largest).fits
    assert not changed(plan, micro_batch_size=largest + 1).fits
    assert changed(plan, micro_batch_size=largest + 1, activation_checkpointing=True).fits


@pytest.mark.parametrize("num_devices", [0, 65])
def test_a_batch_is_not_shared_by_more_devices_than_it_has_examples(num_devices: int) -> None:
    with pytest.raises(ConfigError, match=f"{num_devices} devices cannot share a batch of 64"):
        replace(PLAN, num_devices=num_devices)


def test_assumed_sizes_are_those_of_the_mixture_that_they_name() -> None:
    draws = np.random.default_rng(0).random((2, 200_000))
    lengths = np.where(draws[0] < 0.55, 512, 512 * draws[1])
    sizes = ExampleSizes.assumed(512, 0.15)
    assert sizes.num_pieces == pytest.approx(lengths.mean(), rel=0.01)
    assert sizes.sum_of_squares == pytest.approx(np.square(lengths).mean(), rel=0.01)
    assert sizes.num_predictions == pytest.approx(0.15 * sizes.num_pieces)


def test_advice_for_another_batch_keeps_the_examples_and_scales_the_rate_by_a_root() -> None:
    advice = {"learning_rate": 0.00088, "warmup_steps": 3125, "num_steps": 500_000}
    assert batch_advice(1024) == {"batch_size": 1024, **advice}
