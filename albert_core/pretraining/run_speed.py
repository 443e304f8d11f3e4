"""How fast the devices of a run are, and how fast it was planned to be on them."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.data import ExampleShards
from albert_core.distributed import Ranks
from albert_core.planning.hardware import Hardware, hardware_called, processor_name
from albert_core.planning.run_plan import ExampleSizes, TrainingDevices, TrainingSetup
from albert_core.planning.training_memory import Precision

MEASURING_SECONDS = 0.3
"""How long the peak of a CPU is measured, at the start of a run."""

_WIDTH = 1024
_SAMPLE = 100_000
"""Examples whose lengths the plan is made from; they lie in random order."""


@dataclass(frozen=True, kw_only=True)
class ExpectedSpeed:
    """What the devices of a run could do, and what it is planned to do on them."""

    peak_flops: float | None
    """Operations a second of all ranks' devices together; None where it is not known."""
    peak_source: str
    """Where that is from."""
    setup: TrainingSetup | None
    """What the plan is made of; None on devices that nothing is known of."""


def expected_speed(
    model: ModelSettings, settings: TrainingSettings, examples: ExampleShards, ranks: Ranks
) -> ExpectedSpeed:
    """Return what a run on ``examples`` is expected to reach; every rank calls this at once.

    The peak of a GPU is looked up by its name. That of a CPU is measured: `MEASURING_SECONDS` of
    matrix products, on all ranks at the same time.
    """
    hardware = hardware_called(_device_name(ranks.device))
    if ranks.device.type == "cpu":
        mine, source = measured_peak_flops(settings.precision), "measured at the start"
    elif hardware is not None:
        mine, source = hardware.peak_tflops[settings.precision] * 1e12, "the vendor's"
    else:
        mine, source = float("nan"), f"{_device_name(ranks.device)} is not known"
    total = ranks.sum(torch.tensor(mine, dtype=torch.float64, device=ranks.device)).item()
    return ExpectedSpeed(
        peak_flops=None if np.isnan(total) else total,
        peak_source=source,
        setup=None if hardware is None else _setup(hardware, model, settings, examples, ranks),
    )


def measured_peak_flops(precision: Precision) -> float:
    """Return the operations a second of matrix products on all of this process's threads.

    By the threads' own time, so that another process that computes now doesn't lower it.
    """
    one, other = (torch.randn(_WIDTH, _WIDTH).to(getattr(torch, precision)) for _ in range(2))
    _ = one @ other  # the first one is planned
    num_products, began = 0, time.process_time()
    end = time.perf_counter() + MEASURING_SECONDS
    while time.perf_counter() < end or num_products == 0:
        _ = one @ other
        num_products += 1
    seconds = (time.process_time() - began) / torch.get_num_threads()
    return num_products * 2 * _WIDTH**3 / seconds


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return processor_name()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _setup(
    hardware: Hardware,
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
) -> TrainingSetup:
    devices = TrainingDevices(
        hardware=hardware,
        num_devices=ranks.world_size if ranks.device.type == "cuda" else 1,
        precision=settings.precision,
        activation_checkpointing=settings.activation_checkpointing,
        hidden_size=model.hidden_size,
    )
    lengths, num_predictions = examples.sizes(np.arange(min(_SAMPLE, len(examples))))
    sizes = ExampleSizes.of_lengths(lengths, int(num_predictions.sum()), "the run's examples")
    vocab_size = examples.manifest.facts["vocab_size"]
    return TrainingSetup(model=model, vocab_size=vocab_size, sizes=sizes, devices=devices)
