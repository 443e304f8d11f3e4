"""What happens between two progress lines: means of the updates made, and how fast it went."""

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.planning.hardware import Hardware, hardware_called, processor_name
from albert_core.planning.run_plan import ExampleSizes, RunPlan
from albert_core.training.optimizer import Lamb
from albert_core.training.ranks import Ranks
from albert_core.training.shards import ExampleShards
from albert_core.training.step import Update

OF_THE_MACHINE = frozenset(
    {
        "pieces_per_second",
        "model_tflops_per_second",
        "model_flops_utilisation",
        "data_wait_share",
        "peak_memory_gb",
    }
)
"""Metrics that say how a run went, not what it computed: no two runs have the same."""

_BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024


class ProgressWindow:
    """The updates since the last progress line.

    Args:
        metrics: of the updates that a resumed run made before it was stopped.
    """

    def __init__(self, metrics: Iterable[dict[str, float]] = ()) -> None:
        self.metrics = list(metrics)
        """Of each update made, but for those skipped."""
        self.num_updates = 0
        """Updates done by this process, those skipped included."""
        self.num_pieces = 0
        """Real pieces in them, all ranks."""
        self.num_flops = 0.0
        """Their floating-point operations, all ranks."""
        self.waited = 0.0
        """Seconds of waiting for data."""
        self._began = time.perf_counter()
        self._left_out = 0.0

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Do not count the block's time: it is no training."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began

    def add(self, update: Update, num_pieces: int, num_flops: float, waited: float) -> None:
        """Add an update.

        Args:
            update: as it was made or skipped.
            num_pieces: real ones, all ranks.
            num_flops: its floating-point operations, by the model's own products, all ranks.
            waited: seconds of waiting for its data.
        """
        self.waited += waited
        self.num_updates += 1
        self.num_pieces += num_pieces
        self.num_flops += num_flops
        if update.skipped is None:
            self.metrics.append(update.metrics)

    @property
    def seconds(self) -> float:
        """Time since the window began, but for what was left out."""
        return time.perf_counter() - self._began - self._left_out

    def means(self) -> dict[str, float]:
        """Return the means over the updates made; empty if all were skipped."""
        return {
            name: sum(point[name] for point in self.metrics) / len(self.metrics)
            for name in (self.metrics[0] if self.metrics else ())
        }

    def speed(self, device: torch.device, peak_flops: float | None) -> dict[str, float]:
        """Return what `OF_THE_MACHINE` names: of all ranks, but memory of this one.

        Args:
            device: of this rank.
            peak_flops: operations a second of all ranks' devices; None: without utilisation.
        """
        seconds = self.seconds
        flops = self.num_flops / seconds
        utilisation = {} if peak_flops is None else {"model_flops_utilisation": flops / peak_flops}
        return {
            "pieces_per_second": self.num_pieces / seconds,
            "model_tflops_per_second": flops / 1e12,
            **utilisation,
            "data_wait_share": self.waited / seconds,
            "peak_memory_gb": peak_memory_bytes(device) / 1e9,
        }


@dataclass(kw_only=True)
class RunTotals:
    """What this process did in all its windows."""

    num_updates: int = 0
    num_pieces: int = 0
    num_flops: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, window: ProgressWindow) -> None:
        """Add a window that has ended."""
        self.num_updates += window.num_updates
        self.num_pieces += window.num_pieces
        self.num_flops += window.num_flops
        self.seconds += window.seconds
        self.waited += window.waited

    @property
    def pieces_per_second(self) -> float:
        """Real pieces, all ranks."""
        return self.num_pieces / self.seconds

    def summary(
        self,
        spent: Mapping[str, float],
        peak_memory: int,
        peak_flops: float | None,
        peak_source: str,
    ) -> str:
        """Return what the training took, for a person.

        Args:
            spent: seconds of this thread, by what they went into.
            peak_memory: bytes.
            peak_flops: operations a second of all ranks' devices; None where it is not known.
            peak_source: where that is from, or why it is not known.
        """
        if not self.num_updates:
            return "no update was left to do"
        shares = {"data wait": self.waited} | dict(spent)
        of_time = ", ".join(f"{what} {s / self.seconds:.2%}" for what, s in shares.items())
        utilisation = f"unknown ({peak_source})"
        if peak_flops is not None:
            share = self.num_flops / self.seconds / peak_flops
            utilisation = f"{share:.3f} of {peak_flops / 1e12:,.3g} TFLOP/s ({peak_source})"
        return (
            f"{self.num_updates:,} updates in {_clock(self.seconds)}, "
            f"{self.pieces_per_second:,.0f} pieces/s; model FLOPs utilisation {utilisation}; of "
            f"the time, {of_time}; peak memory {peak_memory / 1e9:.1f} GB"
        )


def trust_ratios(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return least, mean and greatest trust ratio of the last update; empty if it has none."""
    if not isinstance(optimizer, Lamb) or optimizer.trust_ratios is None:
        return {}
    ratios = optimizer.trust_ratios
    low, mean, high = torch.stack([ratios.min(), ratios.mean(), ratios.max()]).tolist()
    return {"trust_ratio_min": low, "trust_ratio_mean": mean, "trust_ratio_max": high}


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_OF_MAXRSS


def progress_line(step: int, num_steps: int, point: dict[str, float], seconds_left: float) -> str:
    """Return the progress line of ``point``, whose losses are absent if no update was made."""
    parts = [f"step {step:,}/{num_steps:,}"]
    if "masked_lm_loss" in point:
        parts.append(f"masked LM {point['masked_lm_loss']:.3f} ({point['masked_lm_accuracy']:.0%})")
    else:
        parts.append("every update skipped")
    for task, name in (("sentence_order", "order"), ("next_sentence", "next sentence")):
        if f"{task}_loss" in point:
            parts.append(f"{name} {point[f'{task}_loss']:.3f} ({point[f'{task}_accuracy']:.0%})")
    if "grad_norm" in point:
        parts.append(f"grad {point['grad_norm']:.2f}")
    if "trust_ratio_mean" in point:
        parts.append(f"trust {point['trust_ratio_min']:.2g}..{point['trust_ratio_max']:.2g}")
    parts += [
        f"lr {point['learning_rate']:.2e}",
        f"{point['pieces_per_second']:,.0f} pieces/s",
    ]
    if "model_flops_utilisation" in point:
        parts.append(f"MFU {point['model_flops_utilisation']:.0%}")
    parts += [
        f"data wait {point['data_wait_share']:.0%}",
        f"{point['peak_memory_gb']:.1f} GB",
    ]
    if point["skipped_steps"]:
        parts.append(f"{point['skipped_steps']:.0f} skipped")
    return "  ".join([*parts, f"{_clock(seconds_left)} left"])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
    plan: RunPlan | None
    """None on devices that nothing is known of."""


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
        plan=None if hardware is None else _plan(hardware, model, settings, examples, ranks),
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


def _plan(
    hardware: Hardware,
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
) -> RunPlan:
    lengths, num_predictions = examples.sizes(np.arange(min(_SAMPLE, len(examples))))
    sizes = ExampleSizes.of_lengths(lengths, int(num_predictions.sum()), "the run's examples")
    facts = examples.manifest.facts
    return RunPlan(
        model=model,
        training=settings,
        vocab_size=facts["vocab_size"],
        sizes=sizes,
        max_seq_length=facts["max_seq_length"],
        max_predictions=facts["max_predictions"],
        hardware=hardware,
        num_devices=ranks.world_size if ranks.device.type == "cuda" else 1,
    )
