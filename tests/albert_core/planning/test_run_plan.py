from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.planning.model_size import muon_flops, training_flops
from albert_core.planning.run_plan import (
    HARDWARE,
    ExampleSizes,
    RunPlan,
    Utilisation,
    depths,
    find_hardware,
    hardware_called,
)
from albert_core.stage.errors import ConfigError
from albert_core.text.records import Sizes
from albert_core.training.step import layers_at
from flows.recipe import load_recipe

TRAINING = TrainingSettings(num_steps=10_000, batch_size=64, warmup_steps=0, precision="bfloat16")
PLAN = RunPlan(
    model=ModelSettings(),
    training=TRAINING,
    vocab_size=30_000,
    sizes=ExampleSizes.mean_of(np.array([512]), 77, "here"),
    max_seq_length=512,
    max_predictions=77,
    hardware=find_hardware("h200").with_given(1000.0, utilisation=0.5, price_per_hour=4.0),
)


def changed(plan: RunPlan, **changes: object) -> RunPlan:
    """Return the plan with other settings of the training."""
    return replace(plan, training=plan.training.model_copy(update=changes))


def test_hours_and_cost_follow_from_the_operations_and_the_devices() -> None:
    two = replace(PLAN, num_devices=2)
    update = Sizes.of_lengths(np.full(64, 512), 64 * 77)
    seconds = 10_000 * training_flops(PLAN.model, 30_000, update) / (2 * 5e14)
    assert two.hours == pytest.approx(seconds / 3600)
    assert two.cost_usd == pytest.approx(two.hours * 2 * 4.0)
    assert two.num_pieces == 10_000 * 64 * 512
    assert two.pieces_per_second == 2 * PLAN.pieces_per_second


def test_recomputing_activations_takes_a_third_more_time() -> None:
    plan = replace(PLAN, hardware=find_hardware("h200"))
    recomputing = changed(plan, activation_checkpointing=True)
    assert recomputing.hours / plan.hours == pytest.approx(4 / 3)


@pytest.mark.parametrize("share", [0.9, 1.2])
def test_the_end_of_a_run_says_how_far_off_the_plan_was(share: float) -> None:
    eight = replace(PLAN, num_devices=8)
    planned = eight.pieces_per_second
    flops_per_second = share * planned * PLAN.flops_per_piece
    assert eight.speed_to_plan(flops_per_second) == pytest.approx(share)
    assert eight.say_speed(flops_per_second, share * planned) == (
        f"{share * planned:,.0f} pieces in a second of time, {share:.2f} times the {planned:,.0f} "
        f"planned for 8 x h200; model FLOPs utilisation {share * 0.5:.3f}, planned 0.500 (given)"
    )


def test_a_cpu_is_compared_with_the_plan_in_the_time_of_its_cores() -> None:
    # A plan is for both cores of cpu2: one of them does half of it in a second of its time.
    plan = replace(changed(PLAN, precision="float32"), hardware=find_hardware("cpu2"))
    of_a_core = plan.pieces_per_second / 2
    assert plan.speed_to_plan(of_a_core * plan.flops_per_piece) == pytest.approx(1)
    said, rate = plan.say_speed(of_a_core * plan.flops_per_piece, of_a_core), f"{of_a_core:,.0f}"
    assert said.startswith(
        f"{rate} pieces in a second of a CPU core, 1.00 times the {rate} planned"
    )


@pytest.mark.parametrize(
    ("hardware", "hidden_size", "basis"),
    [
        ("cpu2", 64, "extrapolated"),
        ("cpu2", 128, "measured"),
        ("cpu2", 512, "measured"),
        ("cpu2", 2048, "measured"),
        ("cpu2", 4096, "extrapolated"),
        ("h200", 384, "assumed"),
        ("h200", 768, "modelled"),
        ("h200", 6144, "extrapolated"),
        ("l4", 64, "assumed"),
    ],
)
def test_only_what_lies_among_the_measured_widths_is_called_measured(
    hardware: str, hidden_size: int, basis: str
) -> None:
    model = ModelSettings(hidden_size=hidden_size, num_attention_heads=2)
    plan = replace(PLAN, model=model, hardware=find_hardware(hardware))
    assert plan.utilisation_basis == basis
    given = replace(plan, hardware=plan.hardware.with_given(utilisation=0.5))
    assert given.utilisation_basis == "given"


def test_what_the_last_layer_skips_is_planned_as_speed() -> None:
    # Of the last layer, three quarters are not done for the 84 % of rows that no head reads.
    known = replace(PLAN, hardware=find_hardware("h200"))
    two_layers = replace(known, model=ModelSettings(num_hidden_layers=2))
    skipped = (1 - 78 / 512) * (768**2 + 2 * 768 * 3072)
    share = skipped / (two_layers.flops_per_piece / 6)
    assert two_layers.utilisation == pytest.approx(known.reached.at(768) / (1 - share))
    assert known.reached.at(768) < known.utilisation < two_layers.utilisation


@pytest.mark.filterwarnings("ignore")  # what counting on fake tensors itself does
@pytest.mark.parametrize(
    "recipe",
    [
        "base-v2",
        *(pytest.param(f"{n}large-v2", marks=pytest.mark.long) for n in ("", "x", "xx")),
    ],
)
def test_a_hopper_gpu_is_planned_as_a_little_slower_than_what_is_counted(recipe: str) -> None:
    from benchmarks.counted_update import counted  # it loads torch's compiler

    plan = replace(PLAN, model=load_recipe(recipe).model, hardware=find_hardware("h200"))
    share = counted(recipe, compiled=False).share_of_peak
    assert plan.utilisation == pytest.approx(0.87 * share, rel=0.01)


def test_a_given_share_is_taken_as_it_is_also_where_activations_are_computed_again() -> None:
    assert PLAN.utilisation == 0.5
    assert changed(PLAN, activation_checkpointing=True, optimizer="muon").utilisation == 0.5


def test_muons_operations_are_planned_as_time_that_a_small_batch_feels() -> None:
    known = replace(PLAN, hardware=find_hardware("cpu2"))
    hours = {}
    for precision in ("float32", "bfloat16"):
        for optimizer in ("lamb", "muon"):
            plan = changed(known, precision=precision, optimizer=optimizer)
            hours[precision, optimizer] = plan.hours
    shares: dict[Precision, float] = {"float32": 0.94, "bfloat16": 0.79}
    for precision, share in shares.items():
        rate = share * known.hardware.peak_tflops[precision] * 1e12
        of_muon = TRAINING.num_steps * muon_flops(PLAN.model) / rate / 3600
        added = hours[precision, "muon"] - hours[precision, "lamb"]
        assert added == pytest.approx(of_muon, rel=1e-6)
        eight = replace(changed(known, optimizer="muon", precision=precision), num_devices=8)
        lamb = changed(eight, optimizer="lamb")
        assert eight.hours - lamb.hours == pytest.approx(of_muon, rel=1e-6)


@pytest.mark.parametrize("first_step", [0, 2500, 9000])
@pytest.mark.parametrize("num_layers", [1, 2, 6, 12])
def test_updates_of_few_layers_are_planned_as_the_run_makes_them(
    num_layers: int, first_step: int
) -> None:
    shallow = changed(PLAN, shallow_share=0.6)
    plan = replace(shallow, model=sized(num_layers), first_step=first_step)
    made = (layers_at(step, 10_000, 0.6, num_layers) for step in range(first_step, 10_000))
    flops = {depth: training_flops(sized(depth), 30_000, PLAN.sizes) for depth in range(1, 13)}
    mean = np.mean([flops[depth] for depth in made])
    assert plan.flops_per_piece == pytest.approx(mean / PLAN.sizes.num_pieces, rel=1e-3)


@given(
    num_steps=st.integers(1, 60),
    share=st.floats(0, 0.999),
    num_layers=st.integers(1, 40),
    first_step=st.integers(0, 59),
)
def test_the_planned_shares_of_updates_are_those_of_the_run(
    num_steps: int, share: float, num_layers: int, first_step: int
) -> None:
    first_step = min(first_step, num_steps - 1)
    training = TRAINING.model_copy(update={"num_steps": num_steps, "shallow_share": share})
    made = Counter(layers_at(n, num_steps, share, num_layers) for n in range(first_step, num_steps))
    planned = {layers: part for layers, part in depths(training, num_layers, first_step) if part}
    expected = {layers: count / made.total() for layers, count in made.items()}
    assert planned == pytest.approx(expected)


def sized(num_layers: int) -> ModelSettings:
    return ModelSettings(num_hidden_layers=num_layers)


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


def test_fresh_masks_of_another_share_are_planned_with_it() -> None:
    masked = replace(PLAN, training=TrainingSettings(masks="fresh", mask_share=0.4))
    assert masked.example.num_predictions == pytest.approx(0.4 * PLAN.sizes.num_pieces)
    assert masked.flops_per_piece > PLAN.flops_per_piece
    assert masked.memory.num_predictions == round(0.4 * PLAN.max_seq_length)


def test_a_utilisation_is_linear_in_the_logarithm_of_the_width() -> None:
    share = Utilisation(by_hidden_size=((64, 0.1), (256, 0.3)), basis="assumed", source="here")
    widths = (16, 64, 128, 256, 4096)
    assert [share.at(width) for width in widths] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3])


def test_every_device_has_plausible_figures_with_their_sources_and_names_of_its_own() -> None:
    for hardware in HARDWARE.values():
        assert hardware.peak_tflops["bfloat16"] > hardware.peak_tflops["float32"] > 0
        assert hardware.price_source
        for share in hardware.utilisation.values():
            widths, shares = zip(*share.by_hidden_size, strict=True)
            assert list(widths) == sorted(set(widths))
            assert all(0 < each < 1 for each in shares)
            assert share.source
    names = [name for hardware in HARDWARE.values() for name in hardware.device_names]
    assert len(names) == len(set(names))
    assert hardware_called("NVIDIA A100-SXM4-40GB") is find_hardware("a100-40")
    assert hardware_called("A device of tomorrow") is None


def test_an_unknown_device_is_refused_and_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"no hardware 'h300'; there is h200, .*--peak-tflops"):
        find_hardware("h300")


def test_your_own_figures_replace_the_known_ones() -> None:
    known = find_hardware("l4")
    assert known.with_given() == known
    own = known.with_given(100.0, 10.0, utilisation=0.25, price_per_hour=2.0)
    assert (own.peak_tflops["bfloat16"], own.peak_basis) == (100.0, "given")
    assert own.memory_gib == 10.0
    assert [own.utilisation["bfloat16"].at(width) for width in (1, 768, 9999)] == [0.25] * 3
    assert own.utilisation["float32"].basis == "given"
    assert (own.usd_per_hour, own.price_basis) == (2.0, "given")
